"""Loads the oracle by its path: under importlib mode test folders are not importable."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    path = Path(__file__).with_name("oracle.py")
    spec = importlib.util.spec_from_file_location("vqx_kvzip_oracle", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
