"""Scorers for tests of the engine itself."""

import functools

import mlx.core as mx

from vqx.kernels import offered
from vqx.noise import frozen_array
from vqx.scorers import Arrivals, Scorer, accumulated


@functools.cache
def noisy(number: int) -> Scorer:
    """Mass and a quarter of noise that rows of the layer ``number`` start with: layers differ by it alone.

    Its kernel equals it.
    """

    def init(arrivals: Arrivals) -> dict[str, object]:
        noise = frozen_array(5, number, arrivals.heads, arrivals.start, arrivals.length)
        shape = arrivals.batch, arrivals.heads, arrivals.length
        return {"mass": arrivals.full(0.0), "noise": mx.broadcast_to(noise, shape)}

    return _ranked()._replace(init=init)


@functools.cache
def _ranked() -> Scorer:
    kernels = offered()
    if kernels is None:
        raise ValueError("no package offers kernels here")
    lines = kernels.Method(
        "noisy",
        "const float kept = mass[at] + gained; mass_out[at] = kept; score = kept + factors[1] * noise[at];",
        reads=("mass", "noise"),
        writes=("mass",),
    )
    ranked = accumulated()._replace(score=lambda held: held.stats["mass"] + 0.25 * held.stats["noise"])
    return ranked.with_kernel(lines, lambda *_: (0.25,))
