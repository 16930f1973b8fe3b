"""Candidates of one layer without a model, for streams of planted rows."""

import mlx.core as mx
from vqx import EvictingCache, Held, LayerInfo, Method, Options, Scorer, Setting
from vqx.build import chain_of, methods_for, split_options
from vqx.planted import WIDTH
from vqx.settings import label
from vqx.state.positions import rotary_of

from vqx_eval.candidates import SINKS, Candidate

CHANCE = "random eviction"
LAYERS = 9
"""A method is built for so many and the middle one is taken: some leave the first whole, or give the later
ones less."""


def chance(budget: int) -> Candidate:
    """Every row but the sinks is as likely to go: what a rule must beat."""

    def score(held: Held) -> mx.array:
        return mx.random.uniform(shape=held.position.shape, key=mx.random.key(held.newest))

    method = Method(Scorer(score), budget, SINKS)
    return Candidate(CHANCE, budget, {}, lambda: _cache(method, Options(queries="keys")))


def one_layer(setting: Setting, budget: int) -> Candidate:
    """A method as one layer would have it; the streams show it their true queries.

    Raises:
        ValueError: a budget or an option that the method refuses.
    """
    chain = chain_of(setting.method)
    own, engine = split_options(chain, {**setting.options, "budget": budget})
    options = Options(**{"queries": "model", **engine})
    layers = [LayerInfo(number, options.queries or "model") for number in range(LAYERS)]
    method = methods_for(chain, own, layers)[LAYERS // 2]
    return Candidate(label(setting), budget, dict(setting.options), lambda: _cache(method, options))


def _cache(method: Method, options: Options) -> EvictingCache:
    wanted = options.positions == "compact" or method.scorer.rotary
    still = rotary_of(lambda x, offset: x, WIDTH) if wanted else None  # these rows are not rotated
    return EvictingCache(method, options, rotary=still)
