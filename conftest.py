"""One option for all tests: ``--each-once``, for environments where one of each kind says enough."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--each-once", action="store_true", help="every test with its first parameters only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--each-once"):
        return
    first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    kept = [item for item in items if first[item.nodeid.partition("[")[0]] is item]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
