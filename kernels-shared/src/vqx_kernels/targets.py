"""The targets a kernel may be built for, which of them this machine has, and which one was asked for.

A kernel replaces a reference of MLX operations and never redefines it; where none fits, the reference runs.
"""

import os
from typing import NamedTuple

import mlx.core as mx


class Target(NamedTuple):
    """One place where a kernel may run."""

    name: str  # "reference", "metal" or "cuda"
    available: bool
    why: str  # what was found, in one line


def targets() -> list[Target]:
    """Every target, with what this machine says of it."""
    metal, cuda = mx.metal.is_available(), mx.cuda.is_available()
    return [
        Target("reference", True, "MLX operations, on every device"),
        Target("metal", metal, "an Apple GPU" if metal else "no Metal device"),
        Target("cuda", cuda, "an NVIDIA GPU" if cuda else "no CUDA device"),
    ]


def choose(built: tuple[str, ...]) -> Target:
    """The target to run on, of those that a kernel was ``built`` for; the reference is always among them.

    The environment's ``VQX_DEVICE`` forces one.

    Raises:
        ValueError: ``VQX_DEVICE`` names no target, or one that this machine or this kernel does not have.
    """
    known = {target.name: target for target in targets()}
    forced = os.environ.get("VQX_DEVICE")
    if forced is None:
        fitting = [known[name] for name in ("metal", "cuda") if name in built and known[name].available]
        return fitting[0] if fitting else known["reference"]
    if forced not in known:
        raise ValueError(f"VQX_DEVICE={forced}: choose one of {', '.join(known)}")
    if not known[forced].available:
        raise ValueError(f"VQX_DEVICE={forced}: this machine has {known[forced].why}; unset it")
    if forced != "reference" and forced not in built:
        raise ValueError(f"VQX_DEVICE={forced}: this kernel was built for {', '.join(built) or 'no device'}")
    return known[forced]
