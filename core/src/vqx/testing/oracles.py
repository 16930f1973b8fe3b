"""A method's oracle: the module ``oracle.py`` beside its tests, which imports nothing of ours.

It is loaded by its path, since with ``--import-mode=importlib`` a test folder is not importable. A plugin's
``conftest.py`` is one line: ``from vqx.testing import oracle as oracle``.
"""

import importlib.util
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def oracle(request: pytest.FixtureRequest) -> ModuleType:
    """The module ``oracle.py`` beside the test that asks.

    Raises:
        FileNotFoundError: there is none.
    """
    path = request.path.with_name("oracle.py")
    spec = importlib.util.spec_from_file_location(f"{path.parts[-3]}_oracle", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
