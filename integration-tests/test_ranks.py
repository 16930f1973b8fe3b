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
from subjects import METHODS

RANKS = Path(__file__).parent / "ranks.py"


def hosts(count: int) -> list[list[str]]:
    """Addresses on this machine that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [[f"127.0.0.1:{one.getsockname()[1]}"] for one in sockets]


def ran(count: int, kind: str, settings: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """What the first of ``count`` processes prints."""
    file = folder / "hosts.json"
    file.write_text(json.dumps(hosts(count)))
    command = [sys.executable, str(RANKS), "ring", kind, *settings]
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
    ("count", "kind", "settings"),
    [
        (2, "heads", [*METHODS, "ada(h2o)", "h2o:undo=2", "h2o:cadence=token", "tova:cadence=token"]),
        (
            3,
            "heads",
            ["tova", "keyformer", "squeezeattention", "ada", "ada(morphkv):interval=4", "tova:cadence=token"],
        ),
        (2, "layers", ["pyramidkv", "keyformer", "ada", "critical", "squeezeattention"]),
        (3, "layers", ["h2o:undo=2", "pyramidkv", "squeezeattention(h2o)"]),
    ],
    ids=["heads-2", "heads-3", "layers-2", "layers-3"],
)
def test_processes_keep_what_one_keeps_alone(
    count: int, kind: str, settings: list[str], tmp_path: Path
) -> None:
    found = ran(count, kind, settings, tmp_path)
    assert [one["setting"] for one in found] == settings
    for one in found:
        assert (one["ranks"], one.get("same"), one.get("near")) == (count, 1.0, True), one
        shared = "ada" in one["setting"] if kind == "heads" else "squeeze" in one["setting"]
        assert (one["excess"] > 0) == (shared or (kind == "layers" and one["setting"] == "pyramidkv")), one


def test_heads_that_share_a_budget_are_two_in_each_process(tmp_path: Path) -> None:
    found = ran(2, "head", ["ada"], tmp_path)
    assert "share a budget need two of them in each process" in found[0]["refused"]
