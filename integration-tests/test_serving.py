"""``vqx serve`` as its clients meet it: a real server in a process of its own, a small model, plain HTTP."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from serving import Server, served
from vqx.host.embedded import load_embedded

BUDGET, CHUNK = 24, 16
METHOD = "h2o:interval=3"


@pytest.fixture(scope="module")
def folder(make_llama: Any, embedded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random llama with the embedded model's tokenizer and template, as mlx_lm.load finds it."""
    path = tmp_path_factory.mktemp("model")
    model = make_llama(vocab_size=embedded.model.args.vocab_size, num_hidden_layers=2)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {name: value for name, value in asdict(model.args).items() if value is not None}
    (path / "config.json").write_text(json.dumps({**config, "eos_token_id": 2}))
    embedded.tokenizer.save_pretrained(path, save_jinja_files=False)
    return path
