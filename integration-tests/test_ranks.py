"""Several processes share a model over MLX's ring: together they keep what one process keeps alone.

Over NVIDIA GPUs the same script runs by NCCL: ``ranks.py`` says how.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from subjects import METHODS, NATURES

RANKS = Path(__file__).parent / "ranks.py"


def hosts(count: int) -> list[list[str]]:
    """Addresses on this machine that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [[f"127.0.0.1:{one.getsockname()[1]}"] for one in sockets]


def ran(count: int, kind: str, methods: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """What the first of ``count`` processes prints."""
    file = folder / "hosts.json"
    file.write_text(json.dumps(hosts(count)))
    command = [sys.executable, str(RANKS), "ring", kind, *methods]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, "MLX_HOSTFILE": str(file), "MLX_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * count, outputs
    return [json.loads(line) for line in outputs[0][0].splitlines()]


@pytest.mark.parametrize(
    ("count", "kind", "methods"),
    [
        (2, "heads", [method for method in METHODS if not NATURES[method].shares_heads]),
        (3, "heads", ["tova", "keyformer", "squeezeattention"]),
        (2, "layers", ["pyramidkv", "keyformer", "ada", "critical"]),
        (3, "layers", ["h2o", "pyramidkv"]),
    ],
    ids=["heads-2", "heads-3", "layers-2", "layers-3"],
)
def test_processes_keep_what_one_keeps_alone(
    count: int, kind: str, methods: list[str], tmp_path: Path
) -> None:
    found = ran(count, kind, methods, tmp_path)
    asked = [(method, undo) for undo in (0, 2) for method in methods if not undo or method == "h2o"]
    assert [(one["method"], one["undo"]) for one in found] == asked
    for one in found:
        assert (one["ranks"], one.get("same"), one.get("near")) == (count, 1.0, True), one


def test_what_processes_cannot_decide_together_is_refused(tmp_path: Path) -> None:
    heads = ran(2, "heads", ["ada"], tmp_path)
    assert "the heads of a layer are split over several processes" in heads[0]["refused"]
    layers = ran(2, "layers", ["squeezeattention"], tmp_path)
    assert "which cannot decide together what each layer keeps" in layers[0]["refused"]
