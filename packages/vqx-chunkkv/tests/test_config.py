"""What ChunkKV refuses at construction."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from vqx import LayerInfo, MethodSpec
from vqx.build import chain_of, split_options
from vqx_chunkkv import ChunkKVConfig
from vqx_chunkkv.method import build


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": 4}, "budget=4 leaves no room beside n_sink=4"),
        ({"chunk": 0}, "chunk=0: give an integer of at least 1"),
        ({"chunk": 2.0}, "chunk=2.0: give an integer of at least 1"),
        ({"window": 0}, "window=0: give an integer of at least 1"),
        ({"heads": "all"}, "heads='all' is not known; choose one of 'each', 'layer'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (its words are compared as they stand)
        ChunkKVConfig(**{"budget": 64, **given})
    assert words in str(refused.value)


def test_alone_the_window_needs_room() -> None:
    with pytest.raises(ValueError, match="budget=36 leaves no room beside n_sink=4 and window=32"):
        build(ChunkKVConfig(budget=36), [LayerInfo(0, "model")])


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A budget and nothing else."""

    budget: int


def test_around_another_method_the_window_is_no_option_unless_that_method_has_one() -> None:
    (chunkkv,) = chain_of("chunkkv")
    bare = MethodSpec(name="bare", summary="-", paper="-", config=Bare, build=lambda config, layers: [])
    windowed = replace(bare, name="windowed", config=ChunkKVConfig)
    for chain in ((chunkkv,), (chunkkv, windowed)):
        assert split_options(chain, {"window": 4})[0] == {"window": 4}
    with pytest.raises(ValueError, match=r"chunkkv\(bare\) has no option 'window'"):
        split_options((chunkkv, bare), {"window": 4})
