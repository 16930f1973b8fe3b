"""The tasks, found by name: every file of this folder declares its own with ``@task``."""

from importlib import import_module
from pkgutil import iter_modules

from vqx_eval.task import TASKS, Task


def load_tasks() -> dict[str, Task]:
    """Every task by its name, in alphabetical order of their files."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return TASKS
