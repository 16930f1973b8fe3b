"""Which method of ours, with which options, is held against which code of others: one entry a pair.

An entry is all that a new comparison needs. ``theirs`` names a press of kvpress or a
function of official.py or merging.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


class Pair(NamedTuple):
    """A method of ours beside the code of others, on the same recorded tensors."""

    method: str
    options: Callable[[int], Mapping[str, Any]]
    """Budget -> ours, beside the budget."""
    theirs: str
    """``kvpress.<class>``, ``kvpress.<class>(<class inside>)``, or a function of official.py, merging.py."""
    their_options: Callable[[int], Mapping[str, Any]] = lambda budget: {}
    """Budget -> theirs."""
    heads: Literal["shared", "each"] = "shared"
    """``each``: every query head gets rows of its own, for code that knows no shared heads."""
    decode: bool = True
    """Theirs evicts while decoding as well, not only at the end of the prompt."""
    merges: bool = False
    """Values of kept rows change: they are compared as well, and the prompt is as long as the budget, so that
    rows go one at a time."""
    reason: str = ""
    """Why the kept rows differ, where they do."""

    @property
    def name(self) -> str:
        ours = ", ".join(f"{key}={value}" for key, value in self.options(ROUND).items())
        theirs = ", ".join(f"{key}={value}" for key, value in self.their_options(ROUND).items())
        heads = ", rows for each query head" if self.heads == "each" else ""
        return f"{self.method}({ours}) | {self.theirs}({theirs}){heads}"


ROUND = 100
"""The budget at which options that depend on it are written out in a pair's name."""


PAIRS = [
    Pair("tova", lambda n: {"n_sink": 0, "keep_newest": False}, "official.tova"),
    Pair("tova", lambda n: {"n_sink": 0}, "official.tova", reason="ours shields the newest row"),
    Pair("tova", lambda n: {}, "official.tova", reason="ours shields four sinks and the newest row"),
    Pair("tova", lambda n: {"n_sink": 0}, "kvpress.TOVAPress"),
    Pair(
        "tova",
        lambda n: {"n_sink": 0, "keep_newest": False},
        "kvpress.TOVAPress",
        reason="the press shields the newest row",
    ),
    Pair(
        "tova",
        lambda n: {"n_sink": 0, "heads": "each"},
        "kvpress.TOVAPress",
        reason="the press averages over all heads of a layer, ours lets each key-value head rank alone",
    ),
    Pair("h2o", lambda n: {"n_sink": 0, "normalise": None}, "official.h2o", heads="each"),
    Pair(
        "h2o", lambda n: {"normalise": None}, "official.h2o", heads="each", reason="ours shields four sinks"
    ),
    Pair(
        "h2o",
        lambda n: {},
        "official.h2o",
        heads="each",
        reason="ours by default divides a row's mass by the queries that saw it, and shields four sinks",
    ),
    Pair(
        "h2o",
        lambda n: {"n_sink": 0, "normalise": None},
        "official.h2o_by_mask",
        heads="each",
        reason="the mask holds one row less: the row that leaves the window is no candidate in that step",
    ),
    Pair(
        "h2o",
        lambda n: {"n_sink": 0, "recent": 0, "normalise": "seen"},
        "kvpress.ObservedAttentionPress",
        decode=False,
    ),
    Pair(
        "h2o",
        lambda n: {"n_sink": 0, "normalise": None},
        "kvpress.ObservedAttentionPress",
        decode=False,
        reason="the press divides by the queries that could see a row and shields nothing",
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16, "over": "old", "group": "logits"},
        "official.morphkv_llama",
        lambda n: {"window": 16},
        reason="with shared heads the code stores old logits under another mask than the keys",
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16, "over": "old", "group": "logits"},
        "official.morphkv_llama",
        lambda n: {"window": 16},
        heads="each",
        reason="two scores that differ by 1e-7 of themselves, summed in another order",
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16, "over": "old", "group": "logits", "fuse": "max"},
        "official.morphkv_llama",
        lambda n: {"window": 16, "fuse": "max"},
        heads="each",
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16, "over": "old", "group": "max"},
        "official.morphkv_mistral",
        lambda n: {"window": 16},
        reason="the code holds `window` queries with the newest token's own, and fuses all but that one",
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16, "over": "old", "group": "max"},
        "official.morphkv_mistral",
        lambda n: {"window": 16, "repair": True},
    ),
    Pair(
        "morphkv",
        lambda n: {"n_sink": 0, "window": 16},
        "official.morphkv_mistral",
        lambda n: {"window": 16},
        reason="ours by default takes the softmax over all rows and the mean over the group",
    ),
    Pair(
        "keyformer",
        lambda n: {"n_sink": 0, "recent": n * 3 // 10, "noise": "logit", "tau": 1.0},
        "official.keyformer",
        lambda n: {"recent": n * 3 // 10},
        heads="each",
        reason="the code drops each row that leaves the recent window before it can compete, and for good",
    ),
    Pair("expected-attention", lambda n: {"recent": 0}, "kvpress.ExpectedAttentionPress", decode=False),
    Pair(
        "expected-attention",
        lambda n: {"future": 100, "value_norm": False, "n_sink": 8, "recent": 0},
        "kvpress.ExpectedAttentionPress",
        lambda n: {"n_future_positions": 100, "use_vnorm": False, "n_sink": 8},
        decode=False,
    ),
    Pair(
        "expected-attention",
        lambda n: {},
        "kvpress.ExpectedAttentionPress",
        decode=False,
        reason="ours by default shields recent rows (a quarter of the budget, at most 32)",
    ),
    Pair("keydiff", lambda n: {"n_sink": 0, "recent": 0}, "kvpress.KeyDiffPress"),
    Pair(
        "keydiff",
        lambda n: {},
        "kvpress.KeyDiffPress",
        reason="ours by default shields four sinks, and recent rows to half of the budget",
    ),
    Pair(
        "l2norm",
        lambda n: {"n_sink": 0, "skip": 0, "recent": 0},
        "kvpress.KnormPress",
        reason="in the first layer a token's keys have one norm wherever it stands, and rounding decides",
    ),
    Pair(
        "lagkv",
        lambda n: {"lag": 16},
        "kvpress.LagKVPress",
        lambda n: {"lag_size": 16},
        decode=False,
        reason="the press's choice among equal ranks of several blocks is undefined; ours evicts the oldest",
    ),
    Pair("r-kv", lambda n: {"n_sink": 0}, "official.r_kv", lambda n: {"mix_lambda": 0.1}, decode=False),
    Pair(
        "critical(snapkv)",
        lambda n: {"n_sink": 0, "window": 32, "kernel": 5},
        "kvpress.CriticalKVPress(SnapKVPress)",
        lambda n: {"window_size": 32, "kernel_size": 5},
        decode=False,
    ),
    Pair(
        "snapkv",
        lambda n: {"n_sink": 0},
        "kvpress.SnapKVPress",
        lambda n: {"window_size": 32, "kernel_size": 7},
        decode=False,
    ),
    Pair(
        "snapkv",
        lambda n: {"n_sink": 0, "window": 64, "kernel": 5},
        "kvpress.SnapKVPress",
        decode=False,
    ),
    Pair(
        "snapkv",
        lambda n: {},
        "kvpress.SnapKVPress",
        lambda n: {"window_size": 32, "kernel_size": 7},
        decode=False,
        reason="ours shields four sinks",
    ),
    Pair(
        "streaming-llm",
        lambda n: {},
        "kvpress.StreamingLLMPress",
        lambda n: {"n_sink": 4},
        reason="while decoding: the press evicts by slot, and its `topk` has left the rows in no order",
    ),
    Pair(
        "pyramidkv",
        lambda n: {"n_sink": 0, "beta": 8},
        "kvpress.PyramidKVPress",
        lambda n: {"window_size": 8, "kernel_size": 7, "beta": 8},
        decode=False,
        reason="where the first layer would exceed the prompt, the press flattens its pyramid to the prompt",
    ),
    Pair(
        "pyramidkv",
        lambda n: {"n_sink": 0},
        "kvpress.PyramidKVPress",
        lambda n: {"window_size": 8, "kernel_size": 7},
        decode=False,
        reason="the same, and the press gives all layers alike where the last would fall below its window",
    ),
    Pair(
        "chunkkv(snapkv)",
        lambda n: {"n_sink": 0, "chunk": 16, "heads": "layer"},
        "kvpress.ChunkKVPress(SnapKVPress)",
        lambda n: {"window_size": 32, "kernel_size": 7, "chunk_length": 16},
        decode=False,
    ),
    Pair(
        "chunkkv",
        lambda n: {"n_sink": 0, "chunk": 16, "heads": "layer"},
        "kvpress.ChunkKVPress(SnapKVPress)",
        lambda n: {"window_size": 32, "kernel_size": 1, "chunk_length": 16},
        decode=False,
    ),
    Pair(
        "chunkkv(snapkv)",
        lambda n: {"n_sink": 0, "heads": "layer"},
        "kvpress.ChunkKVPress(SnapKVPress)",
        lambda n: {"window_size": 32, "kernel_size": 7, "chunk_length": 10},
        decode=False,
        reason="the press counts window rows in the mean of a chunk that they share, and keeps whole chunks",
    ),
    Pair(
        "ada(snapkv)",
        lambda n: {"n_sink": 0},
        "kvpress.AdaKVPress(SnapKVPress)",
        lambda n: {"window_size": 32, "kernel_size": 7, "alpha_safeguard": 0.2},
        decode=False,
    ),
    Pair("cam", lambda n: {}, "merging.cam", merges=True),
    Pair(
        "cam",
        lambda n: {},
        "merging.cam",
        lambda n: {"prompt": False},
        merges=True,
        reason="the press gathers attention from the first generated token on, ours from the prompt on",
    ),
]
