"""Whether tensor cores serve a prompt, and how far they are from float64, since they have no fixed bits."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from vqx_kernels import prompts
from vqx_kernels.attention import Asked, Layers, Rule
from vqx_kernels.bodies import Method
from vqx_kernels.prompts import Observed

ERROR = 1e-4
"""Of a row's mass: as far as it may be from float64."""


class Case(NamedTuple):
    """A prompt, drawn from a number."""

    dtype: mx.Dtype
    batch: int
    heads: int
    group: int
    length: int  # queries
    rows: int
    width: int
    rule: Rule = Rule()
    extras: bool = False
    """Learned sinks, noise, a temperature."""


CASES = {
    "tensor cores, bfloat": Case(mx.bfloat16, 1, 2, 4, 64, 300, 64),
    "tensor cores, half": Case(mx.float16, 1, 1, 3, 100, 100, 64, Rule("itself")),
    "tensor cores, fading": Case(mx.bfloat16, 2, 1, 3, 70, 200, 48, Rule("later", decay=0.99), True),
    "tensor cores, wide": Case(mx.float16, 1, 2, 2, 50, 333, 128, Rule("nothing")),
    "tensor cores, few queries": Case(mx.bfloat16, 1, 1, 4, 40, 1300, 32, Rule("later", decay=0.9), True),
    "tensor cores, widest": Case(mx.bfloat16, 1, 1, 1, 40, 90, 256),
}


def apart(target: str, case: Case, groups: bool = True) -> float:
    """The greatest relative error of a row's mass."""
    asked, noise, temperature = drawn(case)
    found = prompts.prompt_mass(target, asked, case.rule, noise, temperature, groups)
    exact = summed(asked, case.rule, noise, temperature)
    return float(np.max(np.abs(np.array(found) - exact) / np.where(exact > 0, exact, 1)))


def drawn(case: Case) -> tuple[Asked, mx.array | None, float]:
    """The arrays of a case, the keys a part of a longer buffer; noise and temperature."""
    made = np.random.Generator(np.random.Philox(case.rows))
    lanes, n = (case.batch, case.heads), case.rows
    shapes = (*lanes, case.group, case.length, case.width), (*lanes, n + 8, case.width), (*lanes, n)
    queries, keys, noise = (mx.array(made.standard_normal(shape).astype(np.float32)) for shape in shapes)
    sinks = mx.array(made.standard_normal(case.heads * case.group).astype(np.float32))
    position = mx.broadcast_to(mx.arange(n, dtype=mx.int32), (*lanes, n))
    queries, keys = queries.astype(case.dtype), keys.astype(case.dtype)[:, :, :n]
    asked = Asked(queries, keys, position, n - case.length, case.width**-0.5)
    return (asked._replace(sinks=sinks), noise, 1.5) if case.extras else (asked, None, 1.0)


def summed(asked: Asked, rule: Rule, noise: mx.array | None, temperature: float) -> Any:
    """The definition in float64."""
    queries, keys = (np.array(each.astype(mx.float32), float) for each in (asked.queries, asked.keys))
    logits = asked.scale * queries @ keys[:, :, None].swapaxes(-1, -2)
    heads, group, length, n = logits.shape[1:]
    if noise is not None:
        logits = logits + np.array(noise, float)[:, :, None, None]
    query, row = np.arange(n - length, n)[:, None], np.arange(n)
    hidden = {"nothing": row < 0, "later": row > query, "itself": row >= np.maximum(query, 1)}[rule.hide]
    powers = np.exp(np.where(hidden, -np.inf, logits / temperature))
    total = powers.sum(-1, keepdims=True)
    if asked.sinks is not None:
        total = total + np.exp(np.array(asked.sinks, float).reshape(heads, group, 1, 1))
    counts = rule.decay ** np.arange(length - 1, -1, -1.0)
    return np.einsum("bhgsn,s->bhn", powers / total, counts) / group


def wrong(target: str) -> str:
    """Why no prompt is left to a device's tensor cores, in words; empty where they give what they should."""
    return _tried(target)[1]


@functools.cache
def _tried(target: str) -> tuple[bool, str]:
    """Whether groups of warps multiply, or warps alone, and what is wrong with either."""
    why = ""
    for groups in (True, False):
        try:
            far = apart(target, CASES["tensor cores, bfloat"], groups)
        except Exception as error:  # whatever a driver or compiler says
            why = f"they do not run: {str(error).splitlines()[0] if str(error) else error!r}"
        else:
            if far <= ERROR:
                return groups, ""
            why = f"they are off by {far:.1e} of a row's mass, where {ERROR:.0e} is allowed"
    return False, why


def prompt_mass(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    *,
    noise: mx.array | None = None,
    temperature: float = 1.0,
) -> mx.array:
    """The weights of every row, summed over the queries and averaged over the group: ``[B, H, n]`` float32.

    Args:
        asked: what ``serves`` allows; the queries' own rows are the last, in their order.
        rule: hides nothing, later rows, or a query's own too; ``decay`` as it says.
        noise: ``[B, H, n]`` float32, added to the logits.
        temperature: divides the logits after that.
    """
    return prompts.prompt_mass(target, asked, rule, noise, temperature, _tried(target)[0])


def observed(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    method: Method,
    stats: Mapping[str, mx.array],
    factors: Sequence[float | mx.array] = (),
) -> Observed:
    """Observe and score: what ``prompt_mass`` gives goes through the method's own lines, ``gained`` in them.

    Args:
        asked, rule: as of ``prompt_mass``.
        method: lines that change no logits.
        stats, factors: as of ``step``.
    """
    return prompts.observed(target, asked, rule, method, stats, factors, _tried(target)[0])


def serves(target: str, asked: Asked | Layers) -> bool:
    """Whether tensor cores take these arrays: one type of 16 bits, a multiple of 16 channels up to 256."""
    if isinstance(asked, Layers):
        queries, keys, heads = asked.queries[0], asked.keys[0], asked.position.shape[1]
    else:
        queries, keys, heads = asked.queries, asked.keys, asked.queries.shape[1]
    batch, *_, width = queries.shape
    right = keys.shape[:2] == (batch, heads) and keys.shape[3] == width
    halves = keys.dtype == queries.dtype and keys.dtype in (mx.float16, mx.bfloat16)
    return target == "cuda" and right and halves and width % 16 == 0 and width <= 256 and not wrong(target)
