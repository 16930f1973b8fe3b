"""How far MLX's evaluator runs ahead of a device: when it closes a task, and what both take for an operation.

The times are those of an H200 and its host, fitted to prompts that were read there (docs/host.md).
"""

import math
import os
from typing import NamedTuple

import mlx.core as mx

TASKS = 10
"""Tasks that the evaluator runs ahead of the device."""

WRITING, STARTING = 5.0, 200.0
"""Microseconds that it takes a host to write an operation down, and to start an evaluation."""

WRITTEN = {"CustomKernel": 40.0}
"""The same of operations that take longer to write down."""

ASKING, LAUNCHING, RUNNING = 6.0, 5.0, 4.0
"""Microseconds that a kernel takes: to be asked for, to be handed over with its task, and to run at least."""

SPLIT = 18.0
"""The first of these for a product of a few rows, which is split into several kernels."""

FREEING, WAITED = 50.0, 310.0
"""Microseconds until what a finished task read is let go of, and that of one which was waited for."""

CLUSTERED = (128, 256)
"""Rows and columns from which on a product of float32 takes a kernel whose blocks work in clusters."""

LONG = 1e12
"""A task of a device that is never done before the evaluator waits for it."""


class Pace(NamedTuple):
    """When the evaluator closes a task: what its operations read is held until the device has run it."""

    operations: int
    numbers: float  # read, in 2**20
    making: int  # what an operation counts
    viewing: int  # what one counts that only looks at its input in another way
    products: float = 0.0  # additions and multiplications of the device in a microsecond
    moved: float = 0.0  # bytes that it reads and writes in that time; 0: the evaluator is always ahead
    single: float = 1.0  # of those products, the share in float32
    waits: bool = False  # for tasks with such products: their graph is destroyed as soon as it is launched


def pace() -> Pace:
    """That of the device in use."""
    if mx.default_device() == mx.Device(mx.cpu):
        return Pace(10, math.inf, 2, 1)
    if mx.metal.is_available():
        return Pace(50, 50, 1, 0)
    # 583 TFLOP/s in half precision and 4.2 TB/s: fitted to an H200's peaks; by its data sheet float32 has
    # half of that with TF32, which MLX uses unless told otherwise, else 1/15
    tensor = os.environ.get("MLX_ENABLE_TF32") != "0"
    return Pace(101, 1000, 1, 0, 583e6, 4.2e6, 0.5 if tensor else 1 / 15, tensor)


def under_way() -> int:
    """Operations that make something new and that the device may be behind: no more hold memory at once."""
    return (TASKS + 2) * pace().operations // pace().making
