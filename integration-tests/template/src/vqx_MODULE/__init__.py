"""Keep the rows that gathered most attention lately: half of it is forgotten every ``half_life`` queries."""

from dataclasses import dataclass

import vqx
from vqx.options import at_least, room_beside


@dataclass(frozen=True, kw_only=True)
class Config:
    budget: int
    n_sink: int = 4
    recent: int = 4
    half_life: int = 32

    def __post_init__(self) -> None:
        room_beside(self.budget, self.n_sink, self.recent)
        at_least("half_life", self.half_life, 1)


def build(config: Config, layers: list[vqx.LayerInfo]) -> list[vqx.Method]:
    decay = 0.5 ** (1 / config.half_life)
    scorers = [vqx.accumulated(decay=decay, itself=layer.queries == "model") for layer in layers]
    return [vqx.Method(scorer, config.budget, config.n_sink, config.recent) for scorer in scorers]


@vqx.hookimpl
def vqx_methods() -> list[vqx.MethodSpec]:
    summary = "rows that gathered most attention lately"
    return [vqx.MethodSpec(name="METHOD", summary=summary, paper="none", config=Config, build=build)]
