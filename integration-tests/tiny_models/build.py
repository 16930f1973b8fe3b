"""A tiny random model for every file of mlx-lm, which are found by globbing and never listed."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx.utils import tree_map
from tiny_models.sizes import FILES, SIZES


def model_files() -> list[str]:
    """Every module of mlx-lm that may define a model, by name."""
    return sorted(file.stem for file in Path(next(iter(mlx_lm.models.__path__))).glob("*.py"))


def tiny_model(name: str, **changes: Any) -> nn.Module | None:
    """The file's model at its smallest, weights drawn anew; None where the file defines no model."""
    if name == "olmo":  # it asks for a package that only registers names elsewhere
        sys.modules.setdefault("hf_olmo", ModuleType("hf_olmo"))
    module = importlib.import_module(f"mlx_lm.models.{name}")
    if not (hasattr(module, "Model") and hasattr(module, "ModelArgs")):
        return None
    config = {**SIZES, "model_type": name, **FILES.get(name, {}), **changes}
    mx.random.seed(0)
    model: nn.Module = module.Model(module.ModelArgs.from_dict({"text_config": config, **config}))
    # what is drawn as zeros or ones (learned sinks, norms, biases) must count for something too
    model.update(tree_map(_shaken, model.parameters()))
    mx.eval(model.parameters())
    return model


def _shaken(parameter: mx.array) -> mx.array:
    if not mx.issubdtype(parameter.dtype, mx.floating):
        return parameter
    return parameter + (0.1 * mx.random.normal(parameter.shape)).astype(parameter.dtype)
