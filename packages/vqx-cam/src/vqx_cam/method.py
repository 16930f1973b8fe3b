"""CaM: a row that goes is merged into the rows next to it.

Zhang, Du, Luo, Zhong, Zhang, Liu, Ji, "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024,
section 4: a row goes in with a probability that grows with the attention it gathered, which keeps the
output's expected error low. The values of kept rows change; their keys and positions do not.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vqx import Arrivals, LayerInfo, Method, Scorer
from vqx.noise import frozen
from vqx.options import at_least, room_beside

from vqx_cam.merging import merged

DRAWS = (2024,)
"""The key of CaM's draws: Keyformer's, of the same seed, are others."""


@dataclass(frozen=True, kw_only=True)
class CamConfig:
    """Options of CaM; ``budget`` rows stay in each layer.

    Raises:
        ValueError: a budget that leaves no room beside the sinks, a negative merge_budget or seed.
    """

    budget: int
    merge_budget: int = 32
    """The next rows, by position, among which a row that goes is shared out (the paper's m: 16 or 32); 0:
    nothing is merged."""
    seed: int = 0
    n_sink: int = 4
    """Alone: first positions that are never evicted; the other rows are the newest (StreamingLLM)."""

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, 0)
        at_least("merge_budget", self.merge_budget, 0)
        at_least("seed", self.seed, 0)


def cam(config: CamConfig, layer: LayerInfo, method: Method) -> Method:
    """The method, with what it evicts merged by the attention that rows gathered."""
    base, itself = method.scorer, layer.queries == "model"

    def init(arrivals: Arrivals) -> Mapping[str, Any]:
        shape = arrivals.heads, arrivals.start, arrivals.length
        draw = frozen(config.seed, layer.number, *shape, key=DRAWS, rank=layer.rank)
        own = {"attention": arrivals.full(0.0), "draw": arrivals.full(0.0) + draw}
        return {**base.init(arrivals), **own}

    def observe(stats: Mapping[str, Any], attention: Any) -> Mapping[str, Any]:
        others = {} if base.observe is None else base.observe(stats, attention)
        gathered = stats["attention"] + attention.mass(itself=itself)
        return {**stats, **others, "attention": gathered}

    merge = functools.partial(merged, keep=method.budget, targets=config.merge_budget)
    plain = itself and (base.observe is None or base.decay == 1.0)
    scorer = base._replace(init=init, observe=observe, decay=1.0 if plain else None)
    return method._replace(scorer=scorer, merge=merge)


def wrap(config: CamConfig, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    """The methods, with what they evict merged."""
    if any(method.merge is not None for method in methods):
        raise ValueError("cam around a method that merges values itself would merge twice: name it once")
    if config.merge_budget == 0:
        return list(methods)
    return [cam(config, layer, method) for layer, method in zip(layers, methods, strict=True)]


def build(config: CamConfig, layers: Sequence[LayerInfo]) -> list[Method]:
    """One method per layer, around the sinks and the newest rows (StreamingLLM)."""
    alike = Scorer(score=lambda held: 0.0)
    return wrap(config, layers, [Method(alike, config.budget, config.n_sink)] * len(layers))
