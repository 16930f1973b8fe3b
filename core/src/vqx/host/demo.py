"""The demonstration: one long prompt with a question, read by the full cache and by every method."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from vqx.host.caches import BEST, cache_factory
from vqx.host.embedded import load_embedded
from vqx.host.layers import own_caches
from vqx.options import Prompt
from vqx.registry import registry
from vqx.state.cache import EvictingCache

CHUNK = 256

FEW = 6
BASELINE = "streaming-llm"

Advance = Callable[[str, int], None]
"""(what is running, tokens done) -> None: moves a progress bar."""


def shown_methods() -> list[str]:
    """The methods installed; of many, those taken where none is named, and the baseline."""
    names = registry.names()
    best = [name for name in (*(name for name, _ in BEST.values()), BASELINE) if name in names]
    return best if len(names) > FEW and best else names


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one cache did with the prompt."""

    name: str
    rows: int
    """Rows kept per layer once the answer is there."""
    kept_bytes: int
    """Bytes of the keys and values kept, all layers."""
    prompt_tokens_per_second: float
    answer_tokens_per_second: float
    loss_over_full: float
    """Nats per token on the full cache's answer, above the full cache's own."""
    answer: str

    def row(self) -> dict[str, str]:
        """The outcome as a line of a table."""
        return {
            "cache": self.name,
            "rows": f"{self.rows}",
            "MB": f"{self.kept_bytes / 1e6:.1f}",
            "prompt tok/s": f"{self.prompt_tokens_per_second:.0f}",
            "answer tok/s": f"{self.answer_tokens_per_second:.1f}",
            "loss": f"{self.loss_over_full:+.3f}",
        }


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A model, a prompt that asks about a long text, and the question."""

    model: nn.Module
    tokenizer: TokenizerWrapper
    prompt: list[int]
    question: str
    model_name: str = "SmolLM2-135M-Instruct"

    reading: ClassVar[str] = (
        "rows: kept per layer; MB: their keys and values; loss: nats per token on the full cache's answer,"
        " above the full cache's own.\nOne prompt and a small model: a picture, not a ranking."
    )

    @classmethod
    def load(cls) -> "Demo":
        """The embedded model with the text that ships beside this module."""
        model, tokenizer = load_embedded()
        text = files("vqx.host").joinpath("demo.txt").read_text(encoding="utf-8")
        document, question = text.rsplit("\n\n", 1)
        question = question.strip()
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"{document}\n\n{question}"}], add_generation_prompt=True
        )
        return cls(model=model, tokenizer=tokenizer, prompt=list(prompt), question=question)

    def steps(self, tokens: int) -> int:
        """Tokens that one cache reads and writes."""
        return len(self.prompt) + 2 * tokens

    def run(
        self, names: list[str], *, budget: int, tokens: int, advance: Advance, prompt: Prompt = "whole"
    ) -> list[Outcome]:
        """The full cache, then every method named; raises ValueError before the first token is read."""
        fresh: list[tuple[str, Callable[[], list[Any]]]] = [("full cache", lambda: own_caches(self.model))]
        fresh += [(name, cache_factory(self.model, name, budget=budget, prompt=prompt)) for name in names]
        outcomes: list[Outcome] = []
        reference, full_loss = None, 0.0
        for name, make in fresh:
            caches, moved = make(), partial(advance, name)
            start = time.perf_counter()
            logits = self._read(caches, moved)
            read = time.perf_counter()
            answer = self._answer(logits, copy.deepcopy(caches), tokens, moved)
            wrote = time.perf_counter()
            if reference is None:
                reference = answer
            loss = self._loss(logits, caches, reference, moved)
            if not outcomes:
                full_loss = loss
            evicting = [cache for cache in caches if isinstance(cache, EvictingCache)]
            outcomes.append(
                Outcome(
                    name=name,
                    rows=max((cache.tokens_kept for cache in evicting), default=caches[0].offset),
                    kept_bytes=sum(c.kept_bytes for c in evicting) or _kv_bytes(caches),
                    prompt_tokens_per_second=len(self.prompt) / (read - start),
                    answer_tokens_per_second=len(answer) / (wrote - read),
                    loss_over_full=loss - full_loss,
                    answer=self.tokenizer.decode(answer, skip_special_tokens=True).strip(),
                )
            )
        return outcomes

    def _read(self, caches: list[Any], moved: Callable[[int], None]) -> mx.array:
        """Read the prompt as mlx-lm does: in chunks, the last token alone; the next token's logits."""
        *most, last = self.prompt
        for first in range(0, len(most), CHUNK):
            chunk = most[first : first + CHUNK]
            self.model(mx.array([chunk]), cache=caches)
            mx.eval([cache.state for cache in caches])
            moved(len(chunk))
        logits: mx.array = self.model(mx.array([[last]]), cache=caches)[0, -1]
        mx.eval(logits)
        moved(1)
        return logits

    def _answer(
        self, logits: mx.array, caches: list[Any], tokens: int, moved: Callable[[int], None]
    ) -> list[int]:
        answer: list[int] = []
        while len(answer) < tokens:
            token: int = mx.argmax(logits).tolist()  # type: ignore[assignment]
            answer.append(token)
            if token in self.tokenizer.eos_token_ids:
                break
            logits = self.model(mx.array([[token]]), cache=caches)[0, -1]
            moved(1)
        moved(tokens - len(answer))
        return answer

    def _loss(
        self, logits: mx.array, caches: list[Any], reference: list[int], moved: Callable[[int], None]
    ) -> float:
        """Nats per token of ``reference``, each token read after the true ones before it."""
        losses: list[mx.array] = []
        for token in reference:
            losses.append(mx.logsumexp(logits) - logits[token])
            logits = self.model(mx.array([[token]]), cache=caches)[0, -1]
            mx.eval(logits)
            moved(1)
        return float(mx.mean(mx.stack(losses)))


def _kv_bytes(caches: list[Any]) -> int:
    """Bytes of the filled rows of plain caches."""
    return sum(array.nbytes for cache in caches for array in cache.keys_and_values())
