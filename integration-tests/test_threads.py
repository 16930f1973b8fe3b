"""Caches that go from thread to thread, and two generations at once.

MLX's streams belong to threads: what one thread left to be evaluated, no other can finish. Each test runs in
a process of its own, since one in which a thread with streams has ended does not end well (mlx 0.32.4).
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from subjects import METHODS

BEGIN = """
import importlib, os, sys, threading
sys.path.insert(0, sys.argv[1])
import vqx
import mlx.core as mx
from conftest import tiny_llama
from subjects import caches_of

generate_step = importlib.import_module("mlx_lm.generate").generate_step
model = tiny_llama()
texts = mx.random.randint(0, 97, (3, 60), key=mx.random.key(1)).tolist()

def write(caches, text):
    steps = generate_step(mx.array(text), model, max_tokens=6, prompt_cache=caches)
    return [int(token) for token, _ in steps]

def elsewhere(run):
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]
"""

ENGINES = ({"undo": 2}, {"interval": 4}, {"cadence": "token"}, {"positions": "compact"})


def ran(code: str, *arguments: str) -> str:
    whole = BEGIN + textwrap.dedent(code) + "\nprint('done', flush=True)\nos._exit(0)\n"
    folder = str(Path(__file__).parent)
    process = subprocess.run(
        [sys.executable, "-c", whole, folder, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_a_cache_goes_on_in_another_thread_than_it_was_made_or_read_in() -> None:
    settings = [(method, {}) for method in METHODS]
    settings += [(method, engine) for method in ("h2o", "tova") for engine in ENGINES]
    printed = ran(
        f"""
        for method, engine in {settings!r}:
            try:
                caches = caches_of(model, method, budget=24, **engine)
            except ValueError:
                continue  # engine options that this method refuses
            alone = [write(caches, text) for text in texts]
            made = elsewhere(lambda: caches_of(model, method, budget=24, **engine))
            turns = [write(made, texts[0]), elsewhere(lambda: write(made, texts[1]))]
            turns.append(write(made, texts[2]))
            assert turns == alone, (method, engine)
            assert all(cache.tokens_kept < cache.tokens_seen for cache in made)
            print(method)
        """
    )
    assert set(printed.split()) == {*METHODS, "done"}


@pytest.mark.parametrize("method", ["h2o", "tova"])
def test_two_generations_at_once_write_what_each_writes_alone(method: str) -> None:
    ran(
        """
        alone = [write(caches_of(model, sys.argv[2], budget=24), text) for text in texts]
        for _ in range(5):
            found = {}
            def one(number):
                found[number] = write(caches_of(model, sys.argv[2], budget=24), texts[number])
            threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [found[number] for number in range(3)] == alone, found
        """,
        method,
    )
