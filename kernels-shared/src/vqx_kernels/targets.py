"""The targets a kernel may be built for, which of them this machine has, and which one was asked for.

A kernel replaces a reference of MLX operations and never redefines it; where none fits, the reference runs.
"""

import functools
import os
from typing import NamedTuple

import mlx.core as mx

from vqx_kernels import attending, host, nvrtc, probe, tensor


class Target(NamedTuple):
    """One place where a kernel may run."""

    name: str  # "reference", "host", "metal" or "cuda"
    available: bool
    why: str  # what was found, in one line


def targets() -> list[Target]:
    """Every target, with what this machine says of it; a GPU's kernels are tried once."""
    compiler = host.compiler()
    return [
        Target("reference", True, "MLX operations, on every device"),
        Target("host", compiler.usable, compiler.why),
        _device("metal", mx.metal.is_available(), "an Apple GPU", "no Metal device"),
        _device("cuda", mx.cuda.is_available(), "an NVIDIA GPU", "no CUDA device"),
    ]


def _device(name: str, there: bool, what: str, absent: str) -> Target:
    if not there:
        return Target(name, False, f"this machine has {absent}")
    wrong = probe.wrong(name)
    if wrong:
        return Target(name, False, f"{what}: {wrong}")
    why = f"{what}, whose kernels give the expected bits"
    if name == "cuda":
        compiler = nvrtc.found()
        why += f", compiled once, for {compiler.told()}" if compiler else ", compiled by MLX in every process"
    if name == "cuda" and (slow := tensor.wrong(name)):
        why += f"; no tensor cores for prompts: {slow}"
    return Target(name, True, why)


def choose() -> Target:
    """The target to run on: MLX operations, unless MLX's default device is a GPU whose kernels work.

    The environment's ``VQX_DEVICE`` forces one. ``host`` has to be asked for: its loops run at once, so
    tokens wait for one another.

    Raises:
        ValueError: ``VQX_DEVICE`` names no target, or one that cannot run here.
    """
    return _choose(os.environ.get("VQX_DEVICE"), mx.default_device().type == mx.DeviceType.gpu)


def choose_at_once() -> Target:
    """As ``choose``, for work that its caller waits for: the host's loops need not be asked for there."""
    chosen, forced = choose(), os.environ.get("VQX_DEVICE")
    host = next(target for target in targets() if target.name == "host")
    return host if chosen.name == "reference" and forced is None and host.available else chosen


def describe() -> list[str]:
    """What runs here and why, in one line, and a line for each target; and what the one that runs leaves out.

    Raises:
        ValueError: as ``choose``.
    """
    chosen, forced = choose(), os.environ.get("VQX_DEVICE")
    asked = f" (VQX_DEVICE={forced})" if forced else ""
    found = [f"{name}: {why}" if here else f"{name}: not here, {why}" for name, here, why in targets()]
    if chosen.name == "reference":
        return [f"none on this device{asked}; MLX operations do their work", *found]
    if chosen.name == "cuda" and (off := attending.wrong("cuda")):
        found.append(f"a token's attention is MLX's: {off}")
    return [f"run on {chosen.name}{asked}, {chosen.why}", *found]


@functools.cache
def _choose(forced: str | None, on_gpu: bool) -> Target:
    known = {target.name: target for target in targets()}
    if forced is None:
        fitting = [known[name] for name in ("metal", "cuda") if on_gpu and known[name].available]
        return fitting[0] if fitting else known["reference"]
    known = {target.name: target for target in targets()}
    if forced not in known:
        raise ValueError(f"VQX_DEVICE={forced}: choose one of {', '.join(known)}")
    if not known[forced].available:
        raise ValueError(f"VQX_DEVICE={forced}: {known[forced].why}; unset it")
    return known[forced]
