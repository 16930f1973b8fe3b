"""A body on a target: built when it first runs, since MLX builds a kernel only where its device is.

On Metal and CUDA a kernel is a node of MLX's graph like any other; on the host it runs at once.
"""

import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import mlx.core as mx

from vqx_kernels import host, nvrtc
from vqx_kernels.bodies import STRIDED, Body

THREADS = 256
"""Threads of a block: few enough for the registers of any Apple GPU, and the order of every sum."""

Outputs: TypeAlias = Sequence[tuple[tuple[int, ...], mx.Dtype]]
Run: TypeAlias = Callable[[list[mx.array]], list[mx.array]]


def run(
    target: str,
    body: Body,
    arrays: Mapping[str, mx.array],
    constants: Mapping[str, int],
    *,
    rows: int,
    parts: int = 1,
    outputs: Outputs,
) -> list[mx.array]:
    """Run ``parts`` times ``rows`` blocks of a body.

    Args:
        target: ``host``, ``metal`` or ``cuda``, which must be available.
        arrays: what ``body.reads`` names; of at least one axis, since a number is no pointer in Metal.
        constants: integers that the text is compiled for.
        outputs: shape and dtype of each of ``body.writes``.
    """
    inputs = laid_out(target, body, arrays)
    types = tuple([array.dtype for array in inputs])
    numbers, shapes = tuple(constants.items()), tuple(outputs)
    return prepared(target, body, types, numbers, rows=rows, parts=parts, outputs=shapes)(inputs)


def laid_out(target: str, body: Body, arrays: Mapping[str, mx.array]) -> list[mx.array]:
    """What a body reads; what it does not read where it lies comes row by row, which flat arrays do.

    The host sees for itself how an array lies.
    """
    if target == "host" or not body.strided:
        return [arrays[name] for name in body.reads]
    return [arrays[name] if name in STRIDED else flat(arrays[name]) for name in body.reads]


def flat(array: mx.array) -> mx.array:
    """Row by row; nothing is asked for what is flat."""
    return array if array.ndim == 1 else array.reshape(-1)


@functools.lru_cache(maxsize=1024)
def prepared(
    target: str,
    body: Body,
    types: tuple[mx.Dtype, ...],
    constants: tuple[tuple[str, int], ...],
    *,
    rows: int,
    parts: int,
    outputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...],
) -> Run:
    """As ``run``, for any arrays of these types."""
    if target == "host":
        return host.prepared(body, types, dict(constants), parts, rows, outputs)
    how: dict[str, Any] = {
        "grid": (parts * THREADS, rows, 1),
        "threadgroup": (THREADS, 1, 1),
        "output_shapes": [shape for shape, _ in outputs],
        "output_dtypes": [dtype for _, dtype in outputs],
    }
    given = tuple(how["output_dtypes"])
    return lambda inputs: built(target, body, types, constants, given)(inputs=inputs, **how)


@functools.cache
def built(
    target: str,
    body: Body,
    types: tuple[mx.Dtype, ...],
    constants: tuple[tuple[str, int], ...],
    outputs: tuple[mx.Dtype, ...],
) -> Any:
    """The kernel as MLX builds it."""
    told = texts(target, body, types, constants)
    if target == "metal":
        return mx.fast.metal_kernel(**told)
    return mx.fast.cuda_kernel(**nvrtc.stored(by_file(told), types, outputs))


def by_file(told: dict[str, Any]) -> dict[str, Any]:
    """The same CUDA kernel, whose text the compiler takes from a file of the user's cache folder.

    MLX writes down and goes through all that it is handed at every call, some 20 KB, which takes its host as
    long as a launch. What it looks for in it, which arrays are asked for their shape or strides, stays. Where
    no file can be written, all of it does.
    """
    asked = [f"{array}_{what}" for array in told["input_names"] for what in ("shape", "strides", "ndim")]
    names = " ".join(name for name in asked if name in told["source"])
    text = f"#ifndef VQX_BODY\n{told['header']}#else\n{told['source']}\n#endif\n"
    try:
        folder = (host.cache_folder() / "cuda").absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, folder / f"{told['name']}.h")
    except (OSError, RuntimeError):  # the latter where nobody knows a home
        return told
    include = f'#include "{folder}/{told["name"]}.h"\n'
    return {**told, "header": include, "source": f"#define VQX_BODY\n{include}// {names}\n"}


def texts(
    target: str, body: Body, types: tuple[mx.Dtype, ...], constants: tuple[tuple[str, int], ...]
) -> dict[str, Any]:
    """What ``mx.fast.metal_kernel`` and ``mx.fast.cuda_kernel`` are called with.

    Constants stand in the text: MLX would write those of a template down anew at every call. On CUDA it keeps
    what it compiled by name alone, in a folder that all processes share: a name that did not tell types and
    texts apart would have bfloat16 read as float16.
    """
    numbers = "".join(f"constexpr int {name} = {value};\n" for name, value in constants)
    return {
        "name": f"vqx_{body.name}_{body.key(target, (*map(str, types), numbers))}",
        "input_names": list(body.reads),
        "output_names": list(body.writes),
        "header": body.header(target),
        "source": numbers + body.source(target),
        "ensure_row_contiguous": not body.strided,
    }
