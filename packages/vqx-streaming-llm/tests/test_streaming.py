"""StreamingLLM keeps the sinks and the newest rows, and nothing else, however it is fed."""

import vqx  # before mlx

# isort: split

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import gemma2
from vqx import Options
from vqx.testing import STREAMS, cache_of, feed, remaining, stream
from vqx_streaming_llm.method import SlidingWindowConfig, StreamingConfig

CUTS = ([64], [1] * 64, [7, 20, 1, 13, *[1] * 23], [17, 47])


@pytest.mark.parametrize("cadence", ["token", "block"])
@pytest.mark.parametrize("queries", ["keys", "centred-keys", "model"])
@pytest.mark.parametrize("n_sink", [0, 4, 11])
def test_exactly_the_sinks_and_the_newest_rows_stay(cadence: str, queries: str, n_sink: int) -> None:
    engine = Options(queries=queries, cadence=cadence)  # type: ignore[arg-type]
    for name in STREAMS:
        for lengths in CUTS:
            cache = feed(cache_of("streaming-llm", engine, budget=12, n_sink=n_sink), stream(name), lengths)
            right = [*range(n_sink), *range(64 - 12 + n_sink, 64)]
            assert (remaining(cache).position == np.array(right)).all(), (name, lengths)


def test_an_interval_lets_the_newest_rows_wait() -> None:
    cache = cache_of("streaming-llm", Options(queries="model", interval=4), budget=12)
    feed(cache, stream("gaussian"), [50, 1, 1, 1])
    assert (remaining(cache).position == np.array([*range(4), *range(42, 53)])).all()
    feed(cache, stream("gaussian"), [1], 53)
    assert (remaining(cache).position == np.array([*range(4), *range(46, 54)])).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 0}, "budget=0: give an integer of at least 1"),
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"budget": 8, "n_sink": -1}, "n_sink=-1: give an integer of at least 0"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, int], words: str) -> None:
    for config in (StreamingConfig, SlidingWindowConfig):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
            config(**{"n_sink": 4, **given})
        assert words in str(refused.value)


@pytest.mark.parametrize(("name", "n_sink"), [("streaming-llm", 4), ("sink", 4), ("sliding-window", 0)])
def test_a_model_whose_attention_cannot_be_seen_is_served_without_a_warning(name: str, n_sink: int) -> None:
    model = gemma2.Model(
        gemma2.ModelArgs(
            model_type="gemma2",
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=32,
            num_attention_heads=4,
            head_dim=8,
            rms_norm_eps=1e-6,
            vocab_size=50,
            num_key_value_heads=2,
        )
    )
    caches = vqx.make_cache(model, name, budget=12)
    for length in (20, 1, 1):
        mx.eval(model(mx.arange(length)[None], cache=caches))
    for cache in caches:
        assert (remaining(cache).position == np.array([*range(n_sink), *range(22 - 12 + n_sink, 22)])).all()
