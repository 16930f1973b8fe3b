"""mlx-lm's own commands with every cache evicting: their parsers, their options, their output.

Each command loads its models by a name of its module; what stands there attaches the method to what it loads.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import mlx.nn as nn

from vqx.host.caches import BEST, Question, attach
from vqx.host.embedded import load_embedded
from vqx.host.models import EMBEDDED
from vqx.state.cache import EvictingCache
from vqx.state.reversible import ReversibleCache

EVICTING = (EvictingCache, ReversibleCache)
"""The caches of one sequence that evict."""

REFUSED = {
    "kv_bits": "it would leave evicting caches as they are",
    "max_kv_size": "give --budget, the rows that each layer keeps",
    "prompt_cache_file": "its caches would be read as they were saved; use vqx.load_cache",
}
"""Options of mlx-lm's commands that evicting caches could not follow, and why."""


class Eviction(NamedTuple):
    """What is attached to every model that a command loads."""

    method: str | None
    question: Question
    options: Mapping[str, Any]

    def attach(self, model: nn.Module) -> None:
        """Let all of the model's caches evict.

        Raises:
            ValueError: as ``vqx.attach``.
        """
        attach(model, self.method, question=self.question, **self.options)

    @property
    def chosen(self) -> str:
        """The method that was named, or the best for the question."""
        return self.method or BEST[self.question][0]

    @property
    def label(self) -> str:
        """As it is written on the command line."""
        return f"{self.chosen}:" + ",".join(f"{name}={value}" for name, value in self.options.items())


def run(command: str, eviction: Eviction, arguments: Sequence[str]) -> None:
    """``mlx_lm.generate`` or ``mlx_lm.chat`` with these arguments of its own, every cache evicting.

    Raises:
        ValueError: an option that evicting caches could not follow; as ``vqx.attach``.
    """
    module = import_module(f"mlx_lm.{command}")
    with evicting(module, eviction, arguments):
        module.main()


@contextmanager
def evicting(
    module: ModuleType,
    eviction: Eviction,
    arguments: Sequence[str],
    loaded: Callable[[nn.Module], None] = lambda model: None,
) -> Iterator[None]:
    """While the block runs, one of mlx-lm's commands reads these arguments, and what it loads evicts.

    Args:
        loaded: called with each model that was loaded and attached to.
    """
    parse, argv = argparse.ArgumentParser.parse_args, sys.argv

    def parsed(parser: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        with replaced(parser, error=partial(_refuse, parser)):
            found: argparse.Namespace = parse(parser, *given)
        check(eviction, found)
        return found

    names = [name for name in ("load", "sharded_load") if hasattr(module, name)]
    loads = {name: _attached(getattr(module, name), eviction, loaded) for name in names}
    sys.argv = [f"vqx {module.__name__.rpartition('.')[2]}", *arguments]
    try:
        with replaced(argparse.ArgumentParser, parse_args=parsed), replaced(module, **loads):
            yield
    finally:
        sys.argv = argv


@contextmanager
def replaced(owner: Any, **names: Any) -> Iterator[None]:
    """Names of a module or a class, while the block runs."""
    before = {name: getattr(owner, name) for name in names}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def help_of(command: str) -> str:
    """The options of one of mlx-lm's commands, as its own ``--help`` lists them."""
    found: list[str] = []

    def told(parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.usage = argparse.SUPPRESS
        parser.description = None
        found.append(parser.format_help())
        raise SystemExit

    try:
        with replaced(argparse.ArgumentParser, parse_args=told):
            import_module(f"mlx_lm.{command}").main()
    except SystemExit:
        pass
    return found[0]


def check(eviction: Eviction, given: argparse.Namespace) -> None:
    """Refuse what cannot be together.

    Raises:
        ValueError: an option that evicting caches could not follow, a draft model without ``undo``.
    """
    for name, why in REFUSED.items():
        if getattr(given, name, None) is not None:
            raise ValueError(f"--{name.replace('_', '-')}: {why}")
    undo, drafted = eviction.options.get("undo", 0), getattr(given, "num_draft_tokens", 0)
    if getattr(given, "draft_model", None) is not None and undo < drafted:
        raise ValueError(
            f"--draft-model: rejected tokens are taken back, for which undo={undo} does not suffice; write"
            f" --method {eviction.method or 'h2o'}:undo={drafted}"
        )


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """What mlx-lm's parser says, without its page of usage, with the nearest option that there is."""
    unknown = re.search(r"unrecognized arguments: (--\S+)", message)
    known = ["--method", "--budget", "--question", *re.findall(r"--[a-z-]+", parser.format_help())]
    near = difflib.get_close_matches(unknown[1], known, 1) if unknown else []
    raise ValueError(f"{message}; " + (f"did you mean {near[0]}?" if near else "--help lists the options"))


def held(caches: Sequence[Any]) -> dict[str, Any]:
    """What evicting caches hold: tokens read, rows in the layer that keeps least and most, bytes."""
    found = [cache for cache in caches if isinstance(cache, EVICTING)]
    if not found:
        return {}
    rows = [cache.tokens_kept for cache in found]
    return {
        "tokens_seen": max(cache.tokens_seen for cache in found),
        "tokens_kept": [min(rows), max(rows)],
        "bytes": sum(cache.kept_bytes for cache in found),
    }


def kept(caches: Sequence[Any]) -> str:
    """The same in words."""
    if not (found := held(caches)):
        return "no evicting cache"
    least, most = found["tokens_kept"]
    each = f"{least}" if least == most else f"{least} to {most}"
    return f"{found['tokens_seen']} tokens read, {each} rows a layer kept, {found['bytes'] / 1e6:.1f} MB"


def _attached(
    load: Callable[..., Any], eviction: Eviction, loaded: Callable[[nn.Module], None]
) -> Callable[..., Any]:
    """mlx-lm's ``load`` or ``sharded_load``, with the method attached to what it loads."""

    def attached(path: Any, *args: Any, **options: Any) -> Any:
        found = load(path, *args, **options) if path != EMBEDDED else load_embedded()
        eviction.attach(found[0])
        loaded(found[0])
        return (*found, {}) if path == EMBEDDED and options.get("return_config") else found

    return attached
