"""A server in another process, ours or mlx-lm's own, and what a client asks of it."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen


class Server(NamedTuple):
    port: int
    log: Path

    def get(self, path: str) -> Any:
        with urlopen(self._at(path), timeout=60) as answer:
            return json.load(answer)

    def ask(self, path: str, **body: Any) -> Any:
        with urlopen(self._asked(path, body), timeout=300) as answer:
            return json.load(answer)

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of an answer that is streamed, as they came."""
        chunks = []
        with urlopen(self._asked(path, {**body, "stream": True}), timeout=300) as answer:
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data: ") and text != "data: [DONE]":
                    chunks.append(json.loads(text.removeprefix("data: ")))
        return chunks

    def complete(self, prompt: str, tokens: int) -> str:
        answer = self.ask("/v1/completions", prompt=prompt, max_tokens=tokens)
        text: str = answer["choices"][0]["text"]
        return text

    def _asked(self, path: str, body: dict[str, Any]) -> Request:
        data = json.dumps({"model": "default_model", **body}).encode()
        return Request(self._at(path), data, {"Content-Type": "application/json"})

    def _at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def served(
    folder: Path,
    arguments: Sequence[str],
    python: str | Path = sys.executable,
    *,
    command: Sequence[str] = ("vqx", "serve"),
) -> Iterator[Server]:
    """``vqx serve`` of an environment with these arguments, or another module's, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / f"serve-{port}.log"
    whole = [str(python), "-m", *command, "--port", str(port), *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(whole, stdout=out, stderr=subprocess.STDOUT)
    server = Server(port, log)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            try:
                server.get("/health")
                break
            except (HTTPError, URLError, ConnectionError):
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(30)
