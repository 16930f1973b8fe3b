"""CUDA where there is none: launches give zeros, for what Python does and what is asked of a device."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from vqx_kernels.targets import Target

ASKING = [import_module(f"vqx_kernels.{name}") for name in (
    "attending", "attention", "gathering", "kernel", "prompts", "turning")]  # fmt: skip
"""Modules that ask for launches."""


@contextmanager
def pretended() -> Iterator[set[tuple[Any, ...]]]:
    """Have ``vqx_kernels`` believe that a GPU of NVIDIA's is there, with tensor cores; nothing runs.

    What kernels were asked for, as ``vqx_kernels.kernel.built`` takes them.
    """
    asked = set[tuple[Any, ...]]()

    @functools.lru_cache(maxsize=4096)
    def prepared(*what: Any, rows: int, parts: int, outputs: Any) -> Callable[[list[mx.array]], Any]:
        asked.add((*what, tuple(dtype for _, dtype in outputs)))
        zeros = [mx.zeros(shape, dtype) for shape, dtype in outputs]
        return lambda inputs: mx.depends(zeros, inputs)

    there = Target("cuda", True, "none at all")
    with ExitStack() as stack:
        _forget()
        stack.callback(_forget)
        for module in ASKING:
            stack.enter_context(patch.object(module, "prepared", prepared))
        for name, what, instead in (("targets", "_choose", there), ("tensor", "_tried", (True, ""))):
            given = functools.partial(lambda answer, *_: answer, instead)
            stack.enter_context(patch.object(import_module(f"vqx_kernels.{name}"), what, given))
        yield asked


def _forget() -> None:
    """Let go of launches that were prepared before."""
    for module in ASKING:
        for function in vars(module).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
