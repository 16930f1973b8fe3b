"""mlx-lm's server with every cache evicting, what it keeps in its log, and in a route of its own."""

import atexit
import json
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import server
from mlx_lm.generate import BatchGenerator, stream_generate
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.server import APIHandler, ModelProvider

from vqx.host.mains import EVICTING, Eviction, evicting, kept, replaced
from vqx.host.trial import check_evicts
from vqx.state.batch import EvictingBatch

ROUTE = "/v1/vqx"

http_server = server._run_http_server


def run_serve(eviction: Eviction, arguments: Sequence[str], *, as_json: bool = False) -> None:
    """``mlx_lm.server`` with these arguments of its own, every cache evicting.

    ``GET /v1/vqx`` answers with the method, its options, what each sequence under way keeps, and memory.

    Args:
        as_json: standard output is one line that says where it listens and what evicts; the log, on standard
            error, has a JSON object a line.

    Raises:
        ValueError: an option that evicting caches could not follow; as ``vqx.attach``.
    """
    serving = _Serving(eviction, as_json=as_json)
    names = {
        "ModelProvider": serving.provider,
        "BatchGenerator": serving.generator,
        "stream_generate": serving.alone,
        "LRUPromptCache": Prefixes,
        "_run_http_server": serving.answer,
    }
    with evicting(server, eviction, arguments, check_evicts), replaced(server, **names):
        server.main()


class Prefixes(LRUPromptCache):
    """The server's prompt cache: what an exact prefix of a prompt left is read no more.

    No token is taken back, so what goes beyond a prompt is never reused; and of a prompt that was read before
    to its end, the last token is read again.
    """

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """The caches of the longest prefix that was read, and the tokens behind it: at least one."""
        found = self._trie.search(model, tokens[:-1]) if len(tokens) > 1 else None
        prefix = None if found is None else found.exact or found.shorter
        if not prefix:
            return None, tokens
        # an exact match of what was inserted: copied by the server's own rules
        caches, _ = super().fetch_nearest_cache(model, list(prefix))
        return caches, tokens[len(prefix) :]

    def insert_cache(
        self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant"
    ) -> None:
        """Hold the caches of a text, and say what they keep where it ends."""
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        if cache_type == "assistant":
            logging.info("vqx: %s", kept(prompt_cache))


class _Serving:
    """One server: what it was told, and what its other thread holds."""

    def __init__(self, eviction: Eviction, *, as_json: bool = False) -> None:
        self.eviction, self.as_json = eviction, as_json
        self.ready = threading.Event()
        self.failed: Exception | None = None
        self.models: Any = None
        self.batches: Any = lambda: None
        self.single: Sequence[Any] = ()  # the caches of a request that is read by itself

    def provider(self, given: Any) -> Any:
        """mlx-lm's keeper of models, which says what it attached."""
        serving = self
        if self.as_json:
            logged_as_json()

        class Provider(ModelProvider):
            def _load(self, *paths: Any) -> None:
                super()._load(*paths)  # type: ignore[no-untyped-call]
                model: Any = self.model
                budgets, why = serving.budgets(model), "" if self.is_batchable else _apart(model)
                logging.info(
                    "vqx: %s; %d layers evict, %s rows each; requests are read %s",
                    serving.eviction.label,
                    len(budgets),
                    "/".join(str(rows) for rows in sorted(set(budgets))),
                    "in batches" if self.is_batchable else f"one by one{why and f' ({why})'}",
                )

            def load_default(self) -> None:
                try:
                    super().load_default()  # type: ignore[no-untyped-call]
                except Exception as error:
                    serving.failed = error.with_traceback(None)  # whose frames hold the model
                serving.ready.set()

        self.models = Provider(given)
        return self.models

    def generator(self, *args: Any, **options: Any) -> Any:
        """mlx-lm's batches, of which the route tells."""
        made = BatchGenerator(*args, **options)
        self.batches = weakref.ref(made)
        return made

    def alone(self, *args: Any, prompt_cache: Sequence[Any], **options: Any) -> Iterator[Any]:
        """mlx-lm's generation of one request by itself, of which the route tells."""
        self.single = prompt_cache
        try:
            yield from stream_generate(*args, prompt_cache=prompt_cache, **options)
        finally:
            self.single = ()

    def answer(self, host: str, port: int, responses: Any) -> None:
        """Answer requests, once the model named first is loaded and fits the method."""
        self.ready.wait()
        if self.failed is not None:
            responses.stop_and_join()
            _leave_at_once(2 if isinstance(self.failed, ValueError) else 1)
            raise self.failed
        _leave_at_once(0)
        serving = self

        class Handler(APIHandler):
            def do_GET(self) -> None:
                if self.path != ROUTE:
                    super().do_GET()  # type: ignore[no-untyped-call]
                    return
                self._set_completion_headers(200)
                self.end_headers()
                self.wfile.write(json.dumps(serving.status(responses)).encode())
                self.wfile.flush()

            def log_message(self, format: str, *args: Any) -> None:
                if serving.as_json:
                    logging.info(format, *args)
                else:
                    super().log_message(format, *args)

        class Listening(ThreadingHTTPServer):
            def server_activate(self) -> None:
                super().server_activate()
                if serving.as_json:
                    print(json.dumps(serving.listening(*self.server_address[:2])), flush=True)

        http_server(host, port, responses, server_class=Listening, handler_class=Handler)

    def listening(self, host: Any, port: int) -> dict[str, Any]:
        """Where requests are answered, and with what."""
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return {"address": address, "status": address + ROUTE, **self.chosen()}

    def chosen(self) -> dict[str, Any]:
        """What evicts, and how many rows each layer keeps."""
        return {
            "method": self.eviction.chosen,
            "question": self.eviction.question,
            "options": dict(self.eviction.options),
            "budgets": self.budgets(self.models.model),
        }

    def budgets(self, model: nn.Module | None) -> list[int]:
        """Rows that each evicting layer keeps."""
        caches = [] if model is None else model.make_cache()
        return [cache.plan.method.budget for cache in caches if isinstance(cache, EVICTING)]

    def status(self, responses: Any) -> dict[str, Any]:
        """What the route answers with."""
        made = self.batches()
        under_way = [] if made is None else [made._prompt_batch, made._generation_batch]
        prefixes = responses.prompt_cache
        return {
            **self.chosen(),
            "batches": bool(self.models.is_batchable),
            "sequences": [
                *(each for batch in under_way for each in _sequences([*batch.prompt_cache])),
                *_sequence(self.single),
            ],
            "prompt_cache": {"sequences": len(prefixes), "bytes": prefixes.nbytes},
            "memory": {"active": mx.get_active_memory(), "peak": mx.get_peak_memory()},
        }


class _JSONLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
        return json.dumps(
            {**told, "error": self.formatException(record.exc_info)} if record.exc_info else told
        )


def logged_as_json() -> None:
    """Every event of the log is a JSON object on a line of its own; warnings are events."""
    logging.captureWarnings(True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_JSONLines())


def _apart(model: nn.Module) -> str:
    """Why its caches have no ``merge``; empty where they have."""
    for cache in model.make_cache():
        if isinstance(cache, EVICTING):
            try:
                _ = cache.merge
            except AttributeError as error:
                return str(error)
    return ""


def _leave_at_once(code: int) -> None:
    """When all is done: MLX may abort the interpreter's end where a thread used it (mlx_lm.server, too)."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)


def _sequence(caches: Sequence[Any]) -> list[dict[str, Any]]:
    """Of the one sequence of these caches the same."""
    held = [cache for cache in caches if isinstance(cache, EVICTING)]
    # layers that share their rows decide in the thread that generates
    rows = [cache.size() if getattr(cache, "allotment", None) else cache.tokens_kept for cache in held]
    seen = max((cache.tokens_seen for cache in held), default=0)
    return [{"tokens_seen": seen, "tokens_kept": [min(rows), max(rows)]}] if seen else []


def _sequences(caches: list[Any]) -> list[dict[str, Any]]:
    """Of each sequence of a batch: tokens read, and rows kept in the layer that keeps least and most."""
    held = [cache for cache in caches if isinstance(cache, EvictingBatch)]
    # the thread that generates may be between two layers
    rows = zip(*(cache.tokens_kept for cache in held), strict=False)
    seen = zip(*(cache.tokens_seen for cache in held), strict=False)
    return [
        {"tokens_seen": max(tokens), "tokens_kept": [min(kept), max(kept)]}
        for tokens, kept in zip(seen, rows, strict=False)
    ]
