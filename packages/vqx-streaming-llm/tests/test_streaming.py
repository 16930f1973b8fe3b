"""StreamingLLM keeps the sinks and the newest rows, and nothing else, however it is fed."""

import numpy as np
import pytest
from vqx import Options
from vqx.testing import STREAMS, cache_of, feed, remaining, stream
from vqx_streaming_llm.method import StreamingConfig

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
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        StreamingConfig(**given)
    assert words in str(refused.value)
