"""mlx-lm's chat for programs: a line of standard input is a turn, a line of JSON its answer.

Its own user interface draws for people; what stands in its place here has the same methods.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any, Self

from mlx_lm import chat
from mlx_lm.models.cache import make_prompt_cache

from vqx.host.mains import Eviction, evicting, held, replaced


def run_chat(eviction: Eviction, arguments: Sequence[str]) -> None:
    """``mlx_lm.chat`` with these arguments of its own, every cache evicting, until its input ends or says q.

    Raises:
        ValueError: an option that evicting caches could not follow; as ``vqx.attach``.
    """
    turns = _Turns()
    names = {"ChatUI": turns.begin, "make_prompt_cache": turns.fresh}
    with evicting(chat, eviction, arguments), replaced(chat, **names):
        chat.main()


class _Turns:
    """What mlx-lm's chat asks and tells."""

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.text = ""
        self.rank = 0

    def begin(self, _: argparse.Namespace, rank: int = 0) -> Self:
        self.rank = rank
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def fresh(self, *given: Any) -> list[Any]:
        """The chat's caches, which are looked at after each turn."""
        self.caches = make_prompt_cache(*given)
        return self.caches

    def prompt(self) -> str:
        try:
            return input()
        except EOFError:
            return "q"

    def say_bye(self) -> None:
        return None

    def say_reset(self) -> None:
        self._say({"reset": True})

    def say_help(self) -> None:
        self._say({"commands": {"q": "exit", "r": "reset", "h": "help"}})

    def stream_token(self, text: str) -> None:
        self.text += text

    def end_turn(self, response: Any) -> None:
        told = {"text": self.text, "tokens": response.generation_tokens, "finish": response.finish_reason}
        self._say({**told, **held(self.caches)})
        self.text = ""

    def _say(self, told: dict[str, Any]) -> None:
        if self.rank == 0:
            print(json.dumps(told), flush=True)
