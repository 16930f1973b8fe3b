"""Methods that read no queries work where a model's attention cannot be seen, and nobody is warned."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from vqx.fingerprint import fingerprint
from vqx.host.caches import attention_of
from vqx_qfilters.filters import Filters, save


@pytest.fixture(scope="module")
def hidden() -> Any:
    """A small plamo, whose attention reads other keys than the rows held."""
    plamo = importlib.import_module("mlx_lm.models.plamo")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4}
    more = {"vocab_size": 97, "rms_norm_eps": 1e-6, "n_shared_head": 2}
    mx.random.seed(0)
    model = plamo.Model(plamo.ModelArgs.from_dict({"model_type": "plamo", **sizes, **more}))
    mx.eval(model.parameters())
    return model


def test_the_model_hides_its_queries(hidden: Any) -> None:
    with pytest.warns(UserWarning, match="centred keys stand in for its queries"):
        vqx.make_cache(hidden, "h2o", budget=24)


@pytest.mark.parametrize("method", ["keydiff", "l2norm", "lagkv", "qfilters"])
def test_a_method_without_queries_evicts_there_in_silence(method: str, hidden: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"skip": 1} if method == "l2norm" else {}
    if method == "qfilters":
        options["filters"] = tmp_path / "filters.safetensors"
        own = fingerprint([attention_of(hidden, number) for number in range(3)])
        save(Filters(mx.random.normal((3, 2, 16)).astype(mx.float16), own), options["filters"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        caches = vqx.make_cache(hidden, method, budget=24, **options)
    for length in (40, 1, 1, 20, 1):
        logits = hidden(mx.random.randint(0, 97, (1, length)), cache=caches)
        assert mx.isfinite(logits).all().item()
    whole = [63] if method == "l2norm" else []
    assert [cache.tokens_kept for cache in caches] == [*whole, *[24] * (3 - len(whole))]
