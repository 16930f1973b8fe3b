"""Every model file of mlx-lm works, or is refused in words, and docs/coverage.md says which."""

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
import pytest
import vqx
from tiny_models.build import model_files, tiny_model
from tiny_models.page import page
from tiny_models.verdicts import check_scores, verdict

PAGE = (Path(__file__).parent.parent / "docs" / "coverage.md").read_text()


@pytest.mark.parametrize("file", model_files())
def test_a_model_file_works_or_is_refused_in_words(file: str) -> None:
    found = verdict(file)
    assert (found is None) == (f"| `{file}` |" not in PAGE)


def test_the_committed_page_is_what_a_run_gives() -> None:
    if f"with mlx-lm {version('mlx-lm')}:" not in PAGE:
        pytest.skip("the page was written with another mlx-lm")
    assert page() == PAGE, "run: python integration-tests/write_coverage.py"


def test_every_file_with_a_model_in_its_text_is_on_the_page() -> None:
    folder = Path(next(iter(mlx_lm.models.__path__)))
    model = re.compile(r"^class Model\(|^from .* import .*\bModel\b", re.MULTILINE)
    models = {file.stem for file in folder.glob("*.py") if model.search(file.read_text())}
    assert models == set(re.findall(r"^\| `(.+?)` \|", PAGE, re.M))
    assert len(models) > 120


Observe = Callable[..., None]


def without_sinks(observe: Observe) -> Observe:
    return lambda self, queries, keys, scale, mask, sinks: observe(self, queries, keys, scale, mask, None)


def without_numbers(observe: Observe) -> Observe:
    def blind(self: Any, queries: Any, keys: Any, scale: float, mask: Any, sinks: Any) -> None:
        causal = mx.where(mask > -1e30, 0.0, -mx.inf)
        observe(self, queries, keys, scale, causal, sinks)

    return blind


def with_a_root_for_scale(observe: Observe) -> Observe:
    def usual(self: Any, queries: Any, keys: Any, scale: float, mask: Any, sinks: Any, *_: Any) -> None:
        observe(self, queries, keys, keys.shape[-1] ** -0.5, mask, sinks)

    return usual


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("gpt_oss", without_sinks),
        ("deepseek_v3", without_numbers),
        ("gemma4", with_a_root_for_scale),
        ("gemma2", without_numbers),
    ],
)
def test_the_oracle_tells_a_wrong_attention_apart(
    file: str, wrong: Callable[[Observe], Observe], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(file)
    assert model is not None
    check_scores(model)
    monkeypatch.setattr(vqx.EvictingCache, "observe", wrong(vqx.EvictingCache.observe))
    with pytest.raises(AssertionError, match="a score is apart"):
        check_scores(model)


def test_layers_that_share_a_cache_read_the_rows_that_its_owner_holds() -> None:
    model = tiny_model("gemma3n")
    assert model is not None
    owners = check_scores(model)
    assert len(owners) == 2
    assert sum(owner.shared for owner in owners) >= 8, "no layer shared a cache"
