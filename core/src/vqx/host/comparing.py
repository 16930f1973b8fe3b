"""One prompt, answered once for each cache: what the full cache writes, and what others make of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm import stream_generate
from mlx_lm.models.cache import KVCache

from vqx.host.caches import cache_factory, own_caches
from vqx.settings import label
from vqx.spec import Setting
from vqx.state.cache import EvictingCache

FULL = "full cache"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one cache wrote, greedily."""

    name: str
    rows: int
    """Rows kept in the fullest layer, once the answer is there."""
    megabytes: float
    """Keys and values kept, all layers."""
    prompt_tokens_per_second: float
    answer_tokens_per_second: float
    tokens: int
    """Written."""
    alike: int
    """Of them, those before the first that is not the full cache's."""
    text: str


def tokens_of(tokenizer: Any, prompt: str, *, raw: bool = False) -> list[int]:
    """The prompt's tokens, as the user's turn of a chat where the tokenizer has a template for it."""
    if raw or not tokenizer.has_chat_template:
        return [*tokenizer.encode(prompt)]
    return [*tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)]


def compared(
    model: nn.Module,
    tokenizer: Any,
    prompt: Sequence[int],
    settings: Sequence[Setting],
    *,
    budget: int,
    tokens: int,
    chunk: int = 512,
    advance: Callable[[int, str], None] = lambda tokens, now: None,
) -> Iterator[Answer]:
    """The full cache's answer, then each setting's.

    Args:
        prompt: tokens, read ``chunk`` at once.
        budget: rows per layer, for settings that do not name one.
        tokens: the most that each writes.
        advance: called with tokens read or written, and by which cache.

    Raises:
        ValueError: before the first token is read, what a method or the model refuses.
    """

    def factory(setting: Setting) -> Callable[[], list[Any]]:
        options: dict[str, Any] = {"budget": budget, **setting.options}
        return cache_factory(model, setting.method, **options)

    makers: list[tuple[str, Callable[[], list[Any]]]] = [(FULL, lambda: own_caches(model))]
    makers += [(label(setting), factory(setting)) for setting in settings]

    def answers() -> Iterator[Answer]:
        reference: list[int] | None = None
        for name, make in makers:
            caches, moved = make(), _counting(advance, name)
            kinds: Mapping[str, Any] = {"prompt_cache": caches, "prefill_step_size": chunk}
            written, text = [], ""
            for said in stream_generate(
                model, tokenizer, [*prompt], tokens, prompt_progress_callback=moved, **kinds
            ):
                written.append(said.token)
                text += said.text
                advance(1, name)
            advance(tokens - len(written), name)
            reference = written if reference is None else reference
            yield Answer(
                name=name,
                rows=max(_rows(cache) for cache in caches),
                megabytes=sum(_bytes(cache) for cache in caches) / 1e6,
                prompt_tokens_per_second=said.prompt_tps,
                answer_tokens_per_second=said.generation_tps,
                tokens=len(written),
                alike=_alike(written, reference),
                text=text.strip(),
            )

    return answers()


def _counting(advance: Callable[[int, str], None], name: str) -> Callable[[int, int], None]:
    """mlx-lm says how many tokens were read so far; a bar wants those read since."""
    before = 0

    def moved(read: int, total: int) -> None:
        nonlocal before
        advance(read - before, name)
        before = read

    return moved


def _alike(written: Sequence[int], reference: Sequence[int]) -> int:
    same = [one == other for one, other in zip(written, reference, strict=False)]
    return same.index(False) if False in same else len(same)


def _rows(cache: Any) -> int:
    return int(cache.tokens_kept if isinstance(cache, EvictingCache) else cache.size())


def _bytes(cache: Any) -> int:
    if isinstance(cache, EvictingCache):
        return cache.kept_bytes
    if type(cache) is KVCache:  # without the room for growth
        return sum(array.nbytes for array in cache.keys_and_values())
    return int(cache.nbytes)
