"""Wrappers that reach into a model: what each needs of it is there, or refused before a row goes."""

from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from mlx_lm.models import afm7
from mlx_lm.models.cache import KVCache
from tiny_models.build import tiny_model
from tiny_models.verdicts import evicting, read

GUARDS = {"budget": 6, "n_sink": 1, "recent": 2}


def built(file: str) -> Any:
    model = tiny_model(file)
    assert model is not None
    return model


@pytest.mark.parametrize("file", ["llama", "gpt_oss", "cohere", "gemma3_text", "phi3", "glm4"])
def test_heads_with_the_whole_floor_read_as_heads_apart(file: str) -> None:
    model = built(file)
    apart, together = (
        read(model, vqx.make_cache(model, method, **GUARDS, **more))
        for method, more in (("h2o", {}), ("ada(h2o)", {"floor": 1.0}))
    )
    for one, other in zip(apart, together, strict=True):
        assert mx.allclose(one, other, rtol=1e-3, atol=1e-4)
    caches = vqx.make_cache(model, "ada(h2o)", **GUARDS)
    read(model, caches)
    assert {cache.tokens_kept for cache in evicting(caches)} == {6}


@pytest.mark.parametrize("file", ["gemma4_text", "iquestloopcoder"])
def test_layers_that_read_the_rows_of_others_keep_their_heads_apart(file: str) -> None:
    with pytest.raises(ValueError, match="reads the rows of a layer in a way of its own"):
        vqx.make_cache(built(file), "ada(h2o)", **GUARDS)


@pytest.mark.filterwarnings("ignore:.*centred keys stand in:UserWarning")
@pytest.mark.parametrize(
    ("method", "file", "words"),
    [
        ("ada(h2o)", "deepseek_v3", "heads that share a budget need queries='model'"),
        ("critical(h2o)", "deepseek_v3", "makes its values from the latent rows held"),
        ("squeezeattention(h2o)", "minicpm", "does not just add its attention's output"),
        ("squeezeattention(h2o)", "cohere", "does not just add its attention's output"),
    ],
)
def test_what_a_model_does_not_show_is_refused(method: str, file: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vqx.make_cache(built(file), method, **{**GUARDS, "budget": 16})


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ada(fusion)", "this method reads keys or values head by head"),
        ("ada(r-kv)", "this method reads keys or values head by head"),
        ("ada(tova)", "this method keeps one set of rows for all heads"),
        ("ada(keydiff)", "by attention, and the method inside looks at none"),
        ("ada(expected-attention)", "this method merges values, or sums up queries"),
        ("ada(cam)", "this method merges values, or sums up queries"),
        ("critical(l2norm)", "multiplies attention by what a value does"),
        ("cam(cam)", "names cam twice"),
        ("squeezeattention(pyramidkv)", "sets the budgets of the layers, and so does the method inside it"),
        ("h2o(tova)", "h2o wraps no other method"),
    ],
)
def test_pairs_that_make_no_sense_are_refused_before_a_token(method: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vqx.make_cache(built("qwen2"), method, budget=32)


@pytest.mark.parametrize(
    ("method", "options", "kept"),
    [
        ("protect(ada(snapkv))", {"window": 4, "spans": ((2, 4),)}, {12}),
        ("ada(critical(h2o))", {}, {12}),
        ("squeezeattention(ada(h2o))", {"n_sink": 1}, {6, 14}),
    ],
)
def test_wrappers_compose(method: str, options: dict[str, Any], kept: set[int]) -> None:
    model = built("qwen2")
    caches = vqx.make_cache(model, method, budget=12, **options)
    read(model, caches)
    assert {cache.tokens_kept for cache in caches} == kept


@pytest.mark.parametrize("file", ["phi3", "qwen2", "mixtral"])
def test_layers_share_their_rows(file: str) -> None:
    model = built(file)
    caches = vqx.make_cache(model, "squeezeattention(h2o)", **{**GUARDS, "budget": 8, "percent": 0.75})
    read(model, caches)
    kept = [cache.tokens_kept for cache in evicting(caches)]
    assert min(kept) == 6 < max(kept)
    assert sum(kept) <= 8 * len(kept)


def test_rows_that_layers_count_for_the_place_of_their_queries_stay() -> None:
    """afm7's last layers read the rows of the one before, and turn a query by how many these are."""
    model = built("afm7")
    caches = vqx.make_cache(model, "h2o", budget=16)
    assert type(caches[-1]) is KVCache
    assert len(evicting(caches)) == len(caches) - 1 > 0


def test_layers_that_read_again_what_is_kept_see_it_as_in_a_full_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """afm7 beside itself on full caches, where each layer's evicted rows are hidden by a mask."""
    model = built("afm7")
    caches, full = vqx.make_cache(model, "h2o", budget=10), model.make_cache()
    masks: dict[int, mx.array] = {}
    plain = afm7.Attention.__call__

    def masked(self: Any, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        return plain(self, x, masks.get(id(cache), mask), cache)

    tokens = mx.random.randint(0, 60, (1, 30), key=mx.random.key(1))
    assert mx.array_equal(model(tokens[:, :12], cache=caches), model(tokens[:, :12], cache=full)).item()
    monkeypatch.setattr(afm7.Attention, "__call__", masked)
    heads = model.layers[0].self_attn.n_heads
    for at in range(12, 30):
        token = tokens[:, at : at + 1]
        found = model(token, cache=caches)
        for own, cache in zip(full[:-1], caches[:-1], strict=True):
            seen = mx.any(cache.position[..., None] == mx.arange(at + 1), axis=2)
            masks[id(own)] = mx.repeat(seen, heads // seen.shape[1], axis=1)[:, :, None]
        assert mx.allclose(found, model(token, cache=full), rtol=1e-3, atol=1e-4).item()
    assert {cache.tokens_kept for cache in caches[:-1]} == {10}
    assert any(mx.any(~mask).item() for mask in masks.values())
