"""kvpress's presses on the same weights in transformers: they prune once, after the prompt's forward.

While decoding nothing is evicted: the rows grow by the question that comes after, and by the answer.
"""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from vqx.host.embedded import save_embedded
from vqx_eval import Candidate, Engine

from compared.ours import Cell

UNUSED = ("cachetools", "datasets", "fire", "requests")
"""What kvpress imports at once and only its training and downloads call: an absent one is made empty."""
CHUNK = 20  # ChunkKVPress's own
EAGER = 8  # sequences read at once where the whole matrix of attention is wanted
NEAR = 1e-3  # logits of the full cache, theirs from ours


class Press(NamedTuple):
    """How a press is made for ``[prompt tokens, budget]``, and how it must be called."""

    make: Callable[[int, int], Any]
    eager: bool = False  # it wants the attention weights
    slice: int | None = None  # prompts read at once


def ratio(tokens: int, budget: int) -> float:
    """So that ``int(tokens * (1 - ratio))`` is the budget."""
    return 1 - (budget + 0.5) / tokens


def plain(name: str, tokens: int, budget: int) -> Any:
    return getattr(library(), name)(compression_ratio=ratio(tokens, budget))


def pyramid(tokens: int, budget: int) -> Any:
    return library().PyramidKVPress(compression_ratio=1 - budget / tokens)


def chunks(tokens: int, budget: int) -> Any:
    """As many whole chunks as the budget holds: at most 19 rows fewer."""
    share = 1 - (budget // CHUNK + 0.5) / math.ceil(tokens / CHUNK)
    return library().ChunkKVPress(library().SnapKVPress(compression_ratio=share), chunk_length=CHUNK)


def adaptive(tokens: int, budget: int) -> Any:
    inner = library().ExpectedAttentionPress(compression_ratio=ratio(tokens, budget))
    return library().AdaKVPress(inner)


PRESSES = {
    "SnapKVPress": Press(partial(plain, "SnapKVPress")),
    "ExpectedAttentionPress": Press(partial(plain, "ExpectedAttentionPress")),
    "ObservedAttentionPress": Press(partial(plain, "ObservedAttentionPress"), eager=True, slice=EAGER),
    "TOVAPress": Press(partial(plain, "TOVAPress")),
    "KeyDiffPress": Press(partial(plain, "KeyDiffPress")),
    "StreamingLLMPress": Press(partial(plain, "StreamingLLMPress")),
    "KnormPress": Press(partial(plain, "KnormPress")),
    "LagKVPress": Press(partial(plain, "LagKVPress")),
    "PyramidKVPress": Press(pyramid),
    "AdaKVPress(ExpectedAttention)": Press(adaptive),
    "ChunkKVPress(SnapKV)": Press(chunks, slice=1),  # it takes the first sequence's chunks for all of a batch
}


@cache
def library() -> ModuleType:
    for name in UNUSED:
        if find_spec(name) is None:
            sys.modules[name] = _nothing(name)
    import kvpress

    return kvpress  # type: ignore[no-any-return]


def _nothing(name: str) -> ModuleType:
    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return lambda *given, **options: lambda function: function  # a decorator, or never called

    module = ModuleType(name)
    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module


@cache
def network() -> Any:
    """Our embedded model's weights in transformers, in float32."""
    import torch
    from transformers import LlamaForCausalLM

    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as folder:
        model = LlamaForCausalLM.from_pretrained(save_embedded(folder), dtype=torch.float32)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


class PressReading:
    """A batch in torch; without a press it keeps everything. Logits come back as MLX arrays."""

    def __init__(self, press: Press | None, budget: int) -> None:
        self.press, self.budget, self.seen, self.caches = press, budget, 0, []

    def prompt(self, tokens: list[list[int]]) -> mx.array:
        import torch

        ids = torch.tensor(tokens, device=network().device)
        if self.seen:  # a question after the context: nothing is pruned any more
            # one by one where layers hold other numbers of rows, of which transformers makes one mask
            step = ids.shape[1] if len(set(self.rows)) == 1 else 1
            return [self._read(part) for part in ids.split(step, dim=1)][-1][:, -1]
        torch.cuda.empty_cache()  # MLX allocates beside it
        network().set_attn_implementation("eager" if self.press and self.press.eager else "sdpa")
        size = (self.press and self.press.slice) or len(tokens)
        parts = [self._pressed(ids[first : first + size]) for first in range(0, len(tokens), size)]
        self.caches = _merged([cached for cached, _ in parts])
        self.seen = ids.shape[1]
        return mx.array(np.concatenate([logits for _, logits in parts]))

    def feed(self, tokens: mx.array) -> mx.array:
        import torch

        return self._read(torch.tensor(np.array(tokens), device=network().device))

    def _pressed(self, ids: Any) -> tuple[Any, np.ndarray]:
        import torch
        from transformers import DynamicCache

        cached = DynamicCache(config=network().config)
        here = torch.arange(ids.shape[1], device=ids.device)
        read = partial(
            network(),
            ids,
            past_key_values=cached,
            position_ids=here[None],
            cache_position=here,
            logits_to_keep=1,
        )
        if self.press is None:
            return cached, read().logits[:, -1].cpu().numpy()
        with self.press.make(ids.shape[1], self.budget)(network()):
            return cached, read().logits[:, -1].cpu().numpy()

    def _read(self, ids: Any) -> mx.array:
        import torch

        here = torch.arange(self.seen, self.seen + ids.shape[1], device=ids.device)
        out = network()(ids, past_key_values=self.caches, position_ids=here[None], cache_position=here)
        self.seen += ids.shape[1]
        return mx.array(out.logits.cpu().numpy())

    @property
    def rows(self) -> list[int]:
        """Rows held in each layer."""
        return [layer.keys.shape[2] for layer in self.caches.layers]


def _merged(parts: list[Any]) -> Any:
    """One cache of the whole batch; where a press left its parts unlike, that is an error."""
    import torch

    if len(parts) > 1:
        for number, layer in enumerate(parts[0].layers):
            layer.keys = torch.cat([part.layers[number].keys for part in parts])
            layer.values = torch.cat([part.layers[number].values for part in parts])
    return parts[0]


def cells(engine: Engine, budgets: Sequence[int]) -> Iterator[Cell]:
    for name, press in PRESSES.items():
        for budget in budgets:
            start = partial(PressReading, press, budget)
            one = Candidate(f"kvpress {name}", budget, {"version": _version()}, start)
            yield Cell(one.label, budget, lambda protocol, one=one: one)


def _version() -> str:
    from importlib.metadata import version

    return version("kvpress")


def apart(engine: Engine, tokens: list[list[int]]) -> float:
    """The largest difference of the full cache's logits, theirs and ours, after a prompt and two tokens."""
    readings = [engine.full().start(), PressReading(None, 0)]
    found = []
    for reading in readings:
        first = reading.prompt(tokens)
        found.append([first, reading.feed(mx.array(tokens)[:, :1]), reading.feed(mx.array(tokens)[:, 1:2])])
    return max(float(mx.abs(a - b).max()) for a, b in zip(*found, strict=True))
