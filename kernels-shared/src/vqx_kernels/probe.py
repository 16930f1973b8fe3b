"""Whether a device computes what it should: a few cases whose bits are known, tried before it is used."""

import functools
from importlib.resources import files
from typing import Any

import mlx.core as mx
import numpy as np

from vqx_kernels import attention, selection
from vqx_kernels.bodies import Method
from vqx_kernels.small import Guard

MASS = Method(
    "probe",
    "const float kept = vqx_fma(mass[at], factors[1], gained);\nmass_out[at] = kept;\nscore = kept;",
    reads=("mass",),
    writes=("mass",),
)


def expected() -> dict[str, Any]:
    """The bits that every target gives, by case and array (written by ``python -m vqx_kernels.verify``)."""
    with (files("vqx_kernels") / "expected.npz").open("rb") as file:
        return dict(np.load(file))


def small(target: str) -> dict[str, mx.array]:
    """A step and a selection of 96 rows, by what they write."""
    made = np.random.Generator(np.random.Philox(7))
    queries, keys = (
        made.standard_normal((1, 2, *shape)).astype(np.float32) for shape in ((2, 1, 32), (96, 32))
    )
    position = mx.array(made.permuted(np.tile(np.arange(96, dtype=np.int32), (1, 2, 1)), axis=2))
    mass = mx.array(made.random((1, 2, 96), np.float32))
    asked = attention.Asked(mx.array(queries), mx.array(keys), position, 95, 32**-0.5)
    rule, guard = attention.Rule("nothing"), Guard(4, 8)
    step = attention.step(target, asked, rule, MASS, {"mass": mass}, guard, (0.75,))
    stay = selection.survivors(target, step.ranked, position, 60)
    return {"mass": step.written["mass"], "ranked": step.ranked, "slot": step.slot, "stay": stay}


@functools.cache
def wrong(target: str) -> str:
    """What is wrong with a device's kernels, in words; empty where they give the expected bits."""
    try:
        found = {name: np.array(array) for name, array in small(target).items()}
    except Exception as error:  # whatever a driver or compiler says
        return f"its kernels do not run: {str(error).splitlines()[0] if str(error) else error!r}"
    return difference("small", found, expected())


def difference(case: str, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What differs, NaN being equal to NaN; empty where nothing does."""
    said = []
    for name, array in found.items():
        other = wanted[f"{case}/{name}"]
        equal = (array == other) & (np.signbit(array) == np.signbit(other)) | (array != array) & (
            other != other
        )
        if not equal.all():
            said.append(f"{(~equal).sum()} of {equal.size} numbers of {name} differ")
    return "; ".join(said)
