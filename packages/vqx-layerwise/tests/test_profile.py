"""Profiles: budgets that add up, files that are read back, and files that are refused."""

import itertools
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import vqx
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.llama import Model, ModelArgs
from vqx.fingerprint import fingerprint
from vqx.host.layers import attention_of
from vqx_layerwise import LayerwiseConfig
from vqx_layerwise.profile import EMBEDDED, Profile, load, save, shared_out


def tiny(seed: int = 0) -> Model:
    mx.random.seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Model(
        ModelArgs(
            model_type="llama", num_hidden_layers=3, vocab_size=64, rms_norm_eps=1e-5, head_dim=16, **sizes
        )
    )


def profile(model: Model, loss: list[float]) -> Profile:
    return Profile(loss, [0.0] * 3, fingerprint([attention_of(model, number) for number in range(3)]), {})


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40), st.integers(1, 5000), st.floats(0.0, 1.0))
def test_budgets_add_up_exactly_and_stand_above_the_floor(need: list[float], mean: int, floor: float) -> None:
    budgets = shared_out(need, mean, floor)
    assert sum(budgets) == mean * len(need)
    assert min(budgets) >= int(floor * mean + 1e-9)
    ordered = [rows for _, rows in sorted(zip(need, budgets, strict=True))]
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(ordered))


def test_a_layer_that_lost_four_times_as_much_gets_twice_as_much() -> None:
    found = Profile([0.04, 0.01, 0.01], [0.0, -1.0, 0.0], None, {})
    assert shared_out(found.need, 100, 0.0) == [150, 75, 75]


def test_what_a_planted_key_lost_counts_too() -> None:
    text, key = Profile([0.02], [0.0], None, {}), Profile([0.0], [0.5], None, {})
    assert text.need == pytest.approx(key.need)


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    save(profile(tiny(), [0.25, 0.5, 0.0]), tmp_path / "profile.json")
    found = load(tmp_path / "profile.json")
    assert found.loss == [0.25, 0.5, 0.0]
    assert found.fingerprint is not None
    assert found.fingerprint.shape == (3, 16)


def test_the_layers_of_a_model_get_the_budgets_of_its_profile(tmp_path: Path) -> None:
    model = tiny()
    save(profile(model, [0.16, 0.04, 0.04]), tmp_path / "profile.json")
    options: dict[str, Any] = {"budget": 40, "profile": tmp_path / "profile.json", "floor": 0.0}
    caches = vqx.make_cache(model, "layerwise", **options)
    assert [cache.plan.method.budget for cache in caches] == [60, 30, 30]
    assert [cache.plan.method.recent for cache in caches] == [30, 15, 15]
    tokens = mx.random.randint(0, 64, (1, 90))
    model(tokens, cache=caches)
    model(tokens[:, :1], cache=caches)
    assert [cache.tokens_kept for cache in caches] == [60, 30, 30]


def test_another_models_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save(profile(tiny(), [0.1] * 3), path)
    with pytest.raises(ValueError, match="was made for another model"):
        vqx.make_cache(tiny(1), "layerwise", budget=32, profile=path)
    with pytest.raises(ValueError, match="no profile of this model: make one with vqx layerwise"):
        vqx.make_cache(tiny(), "layerwise", budget=32)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": "x"}', '{"format": "vqx-layerwise-1", "loss": 3}'], ids=repr
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot be read as a profile"):
        load(path)
    with pytest.raises(ValueError, match="cannot be read as a profile"):
        load(tmp_path / "absent.json")


def test_the_embedded_profile_says_where_it_comes_from() -> None:
    found = load(EMBEDDED)
    assert len(found.loss) == len(found.recall) == 30
    assert {"texts", "rows", "full", "machine", "versions"} <= set(found.about)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"floor": 1.2}, "floor=1.2"), ({"floor": -1}, "floor=-1"), ({"profile": 3}, "profile=3")],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerwiseConfig(budget=64, **options)
