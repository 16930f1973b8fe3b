"""mlx-lm's generate for programs: the text, and what was read, written and kept for it."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from mlx_lm.generate import stream_generate
from mlx_lm.models.cache import make_prompt_cache

from vqx.host.mains import Eviction, evicting, held, replaced


def run_generate(eviction: Eviction, arguments: Sequence[str]) -> dict[str, Any]:
    """``mlx_lm.generate`` with these arguments of its own, every cache evicting.

    Returns:
        The method, the text, tokens written (``tokens``) and why they ended, and what the caches hold, as
        ``vqx chat --json`` names them; the prompt's tokens, and the seconds from its first to the answer's
        last.

    Raises:
        ValueError: an option that evicting caches could not follow; as ``vqx.attach``.
    """
    module, watched = import_module("mlx_lm.generate"), _Watched()
    with (
        redirect_stdout(io.StringIO()) as printed,
        evicting(module, eviction, (*arguments, "--verbose", "False")),
        replaced(module, stream_generate=watched.stream),
    ):
        module.main()
    text = printed.getvalue().removesuffix("\n")
    return {"method": eviction.label, "text": text, **watched.told, **held(watched.caches)}


class _Watched:
    """One generation."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.told: dict[str, Any] = {}

    def stream(self, model: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """mlx-lm's own, with caches that can be looked at."""
        self.caches = make_prompt_cache(model)
        draft = options.get("draft_model")
        both = [*self.caches, *([] if draft is None else make_prompt_cache(draft))]
        begun = time.perf_counter()
        for response in stream_generate(model, *args, **{**options, "prompt_cache": both}):
            self.told = {
                "tokens": response.generation_tokens,
                "finish": response.finish_reason,
                "prompt_tokens": response.prompt_tokens,
                "seconds": round(time.perf_counter() - begun, 3),
            }
            yield response
