"""Keyformer: H2O's accumulated attention, regularised by frozen Gumbel noise and a temperature.

Adnan et al., "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative
Inference", MLSys 2024, arXiv 2403.09054, equations 9 and 10, algorithm 1.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from vqx import Arrivals, Held, LayerInfo, Method, Scorer, accumulated
from vqx.options import at_least, not_negative, one_of, room_beside

from vqx_keyformer.kernel import LOGIT, RANK
from vqx_keyformer.noise import gumbel_array, redrawn


@dataclass(frozen=True, kw_only=True)
class KeyformerConfig:
    """Options of Keyformer; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the protected rows, a negative tau or anneal_steps,
            tau 0 with ``noise="logit"``.
    """

    budget: int
    n_sink: int = 4
    """First positions that are never evicted (the paper: 0)."""
    recent: int | None = None
    """Newest rows that are never evicted; None: 30 % of the budget (the paper: 20 to 30 % is best)."""
    noise: Literal["rank", "logit"] = "rank"
    """``rank``: the mass stays clean and noise joins the ranking (the adapted system); ``logit``: noise and
    temperature stand inside the softmax that is accumulated (the paper)."""
    tau: float | None = None
    """A constant temperature; wins over the ramp."""
    tau_init: float = 1.0
    tau_end: float = 2.0
    anneal_steps: int = 256
    """Tokens over which tau goes from tau_init to tau_end, then held; 0: tau_init throughout."""
    seed: int = 0
    redraw: bool = False
    """With ``noise="logit"``: draw anew for every block of queries, as the official code does."""

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 1)
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget * 3 // 10)
        room_beside(self.budget, self.n_sink, self.recent or 0)
        one_of("noise", self.noise, ("rank", "logit"))
        for name in ("tau_init", "tau_end", *(["tau"] if self.tau is not None else [])):
            not_negative(name, getattr(self, name))
        at_least("anneal_steps", self.anneal_steps, 0)
        at_least("seed", self.seed, 0)
        one_of("redraw", self.redraw, (False, True))
        if self.noise == "logit" and min(self.temperature(0), self.temperature(self.anneal_steps)) <= 0:
            raise ValueError("tau 0 with noise='logit' divides by zero; use noise='rank', where tau 0 is h2o")
        if self.redraw and self.noise != "logit":
            raise ValueError("redraw=True needs noise='logit': noise that joins the ranking is frozen")

    def temperature(self, step: Any) -> Any:
        """tau at a step: a token's position with ``rank``, tokens generated so far with ``logit``.

        One step, or an array of them, one for each sequence of a batch.
        """
        if self.tau is not None:
            return self.tau
        if not self.anneal_steps:
            return self.tau_init
        least = mx.minimum if isinstance(step, mx.array) else min
        share = least(step, self.anneal_steps) / self.anneal_steps
        return self.tau_init + share * (self.tau_end - self.tau_init)


@functools.lru_cache(maxsize=16)
def key_tokens(config: KeyformerConfig, itself: bool) -> Scorer:
    """Accumulated mass with noise at the ranking, or inside the softmax; rows start without their noise.

    It is one scorer for all layers, which decide together then.
    """
    if config.noise == "rank":
        ranked = accumulated(itself=itself)._replace(score=_noisy_rank(config.temperature))
        return ranked.with_kernel(RANK, lambda newest, *_: (config.temperature(newest),), itself=itself)
    noisy = _inside(config, itself, lambda stats, _: stats["noise"])
    return noisy.with_kernel(LOGIT, lambda _, generated, __: (config.temperature(generated),), itself=itself)


def _inside(config: KeyformerConfig, itself: bool, noise: Callable[[Any, Any], Any]) -> Scorer:
    """Noise inside the softmax, as (stats, attention of a block) say it."""

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        drawn = noise(stats, attention)
        gained = attention.mass(itself=itself, temperature=config.temperature, noise=drawn)
        return {**stats, "mass": stats["mass"] + gained}

    return accumulated(itself=itself)._replace(observe=observe, decay=None)


def _anew(config: KeyformerConfig, layer: LayerInfo, attention: Any) -> Any:
    """This block's own draw for the rows that it sees, ``[B, H, n]``."""
    position = attention.position
    heads, seen = position.shape[1], attention.start + attention.length
    if isinstance(attention.start, mx.array):  # sequences at places of their own
        starts = [int(start) for start in np.array(attention.start).reshape(-1)]
        length = max(starts) + attention.length
        every = [redrawn(config.seed, layer.number, heads, start, length, layer.rank) for start in starts]
        return mx.take_along_axis(mx.array(np.stack(every)), position, axis=-1)
    drawn = redrawn(config.seed, layer.number, heads, attention.start, seen, layer.rank)
    each_head = np.arange(heads)[:, None]
    if isinstance(position, mx.array):
        return mx.array(drawn)[mx.array(each_head), position]
    return drawn[each_head, position]


def _noisy_rank(temperature: Callable[[int], float]) -> Callable[[Held], Any]:
    def score(held: Held) -> Any:
        return held.stats["mass"] + temperature(held.newest) * held.stats["noise"]

    return score


def keyformer(config: KeyformerConfig, layer: LayerInfo) -> Method:
    """The method of one layer, whose noise is its own."""
    itself = layer.queries == "model"
    if config.redraw:
        scorer = _inside(config, itself, lambda _, attention: _anew(config, layer, attention))
        scorer = scorer._replace(anew=True)
    else:
        tokens = key_tokens(config, itself)

        def init(arrivals: Arrivals) -> Mapping[str, Any]:
            place = arrivals.heads, arrivals.start, arrivals.length
            noise = gumbel_array(config.seed, layer.number, *place, layer.rank)
            shape = (arrivals.batch, arrivals.heads, arrivals.length)
            return {**tokens.init(arrivals), "noise": mx.broadcast_to(noise, shape)}

        scorer = tokens._replace(init=init)
    return Method(scorer, config.budget, config.n_sink, config.recent or 0)


def build(config: KeyformerConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer."""
    if config.recent == 0:
        warnings.warn(
            "keyformer with recent=0 evicts most new rows at once and the text breaks; set recent"
            " (the paper: 20 to 30 % of the budget)",
            stacklevel=2,
        )
    return [keyformer(config, layer) for layer in layers]
