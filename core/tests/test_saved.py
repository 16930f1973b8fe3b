"""Caches in files: they go on as if never saved, or are refused in words."""

import copy
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
import vqx
from mlx_lm.models.cache import KVCache, load_prompt_cache, save_prompt_cache
from vqx.host import saved as files
from vqx.registry import Registry

pytestmark = pytest.mark.usefixtures("toys")

ENGINES: Sequence[Mapping[str, Any]] = (
    {},
    {"cadence": "token"},
    {"interval": 3},
    {"prompt": "whole"},
    {"positions": "compact"},
    {"queries": "centred-keys"},
    {"budget": [12, 15]},
)


def run(model: nn.Module, caches: list[Any], lengths: Sequence[int], seed: int = 1) -> mx.array:
    tokens = mx.random.randint(0, 97, (2, sum(lengths)), key=mx.random.key(seed))
    cuts, logits = [sum(lengths[:n]) for n in range(len(lengths) + 1)], []
    for first, last in pairwise(cuts):
        logits.append(model(tokens[:, first:last], cache=caches))
        mx.eval(logits[-1], [cache.state for cache in caches])
    return mx.concatenate(logits, axis=1)


def same(one: vqx.EvictingCache, other: vqx.EvictingCache) -> bool:
    (mine, *arrays), (theirs, *others) = one.state, other.state
    return mine == theirs and all(map(mx.array_equal, arrays, others))


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "cache.safetensors")


@pytest.fixture
def read(tiny_llama: Callable[..., nn.Module]) -> Callable[..., tuple[nn.Module, list[Any]]]:
    """A model and caches of its own that have evicted."""

    def make(method: str = "toy", **options: Any) -> tuple[nn.Module, list[Any]]:
        model = tiny_llama()
        caches = vqx.make_cache(model, method, **{"budget": 12, **options})
        run(model, caches, [20, 1, 1, 5, 1])
        return model, caches

    return make


@pytest.mark.parametrize("how", ["ours", "mlx-lm's"])
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_cache_goes_on_as_if_never_saved(
    options: Mapping[str, Any], how: str, read: Any, file: str
) -> None:
    model, caches = read(**options)
    (vqx.save_cache if how == "ours" else save_prompt_cache)(file, caches)
    back = vqx.load_cache(file, model) if how == "ours" else load_prompt_cache(file)
    assert all(map(same, caches, back))
    later = [1, 1, 4, 1, 1]
    assert mx.array_equal(run(model, caches, later, 2), run(model, back, later, 2)).item()
    assert all(map(same, caches, back))
    assert all(cache.tokens_kept < cache.tokens_seen for cache in back)


@pytest.mark.parametrize("lengths", [[], [5]], ids=["nothing read", "nothing evicted"])
def test_a_cache_that_evicted_nothing_yet_goes_on_too(
    lengths: list[int], tiny_llama: Callable[..., nn.Module], file: str
) -> None:
    model = tiny_llama()
    caches = vqx.make_cache(model, "toy", budget=12)
    if lengths:
        run(model, caches, lengths)
    save_prompt_cache(file, caches, {"note": "x"})
    back, words = load_prompt_cache(file, return_metadata=True)
    assert words == {"note": "x"}
    assert all(cache.empty() == (not lengths) for cache in back)
    assert mx.array_equal(run(model, caches, [20, 1, 1], 2), run(model, back, [20, 1, 1], 2)).item()


def test_either_function_reads_what_the_other_wrote(read: Any, file: str) -> None:
    model, caches = read()
    save_prompt_cache(file, caches)
    assert all(map(same, caches, vqx.load_cache(file, model)))
    vqx.save_cache(file, caches, {"note": "x"})
    back, words = load_prompt_cache(file, return_metadata=True)
    assert all(map(same, caches, back))
    assert words["note"] == "x"


def test_a_deep_copy_goes_on_alike_and_apart(read: Any) -> None:
    model, caches = read()
    twins = copy.deepcopy(caches)
    before = [cache.position for cache in caches]
    found = run(model, twins, [1, 6, 1, 1], 2)
    assert all(map(mx.array_equal, before, [cache.position for cache in caches]))
    assert mx.array_equal(run(model, caches, [1, 6, 1, 1], 2), found).item()


def test_a_file_that_was_cut_or_changed_is_refused(read: Any, file: str) -> None:
    model, caches = read()
    vqx.save_cache(file, caches)
    whole = Path(file).read_bytes()
    for cut in (0, 5, 400, len(whole) - 9):
        Path(file).write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="no whole file of a prompt cache"):
            vqx.load_cache(file, model)
    Path(file).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="was changed after it was saved"):
        vqx.load_cache(file, model)
    with pytest.raises(ValueError, match="no whole file"):
        vqx.load_cache(file.replace("cache.", "none."), model)
    with pytest.raises(ValueError, match=r"ends in \.safetensors"):
        vqx.load_cache("cache.pkl", model)


def test_another_model_is_told_by_its_weights_and_by_its_caches(
    read: Any, tiny_llama: Callable[..., nn.Module], file: str
) -> None:
    _, caches = read()
    vqx.save_cache(file, caches)
    with pytest.raises(ValueError, match="saved with another model"):
        vqx.load_cache(file, tiny_llama(seed=1))
    with pytest.raises(ValueError, match="holds other caches"):
        vqx.load_cache(file, tiny_llama(3))


def test_mlx_lms_own_function_needs_a_model_that_is_known(
    read: Any, tiny_llama: Callable[..., nn.Module], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, caches = read()
    save_prompt_cache(file, caches)
    monkeypatch.setattr("vqx.host.recipes._known", {})
    vqx.make_cache(tiny_llama(seed=1), "toy", budget=8)
    with pytest.raises(ValueError, match=r"by vqx.load_cache\(path, model\)"):
        load_prompt_cache(file)
    vqx.make_cache(model, "toy", budget=8)
    assert all(map(same, caches, load_prompt_cache(file)))


def test_a_checkout_on_the_path_saves_what_it_reads_again(
    read: Any, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("vqx.host.recipes.version", missing)
    model, caches = read()
    vqx.save_cache(file, caches)
    assert all(map(same, caches, vqx.load_cache(file, model)))


def told(change: Callable[[dict[str, Any]], None], file: str) -> None:
    """Change what every cache of the file says, as one who knows how."""
    arrays: Any
    arrays, metadata = mx.load(file, return_metadata=True)  # type: ignore[misc]
    mx.eval(arrays)  # read before the file is written over
    for name in [name for name in arrays if name.endswith(".0")]:
        words = "".join(map(chr, arrays[name].tolist())).split(" ", 1)[1]
        said = json.loads(words)
        change(said)
        words = json.dumps(said)
        text = f"{hashlib.sha256(words.encode()).hexdigest()} {words}"
        arrays[name] = mx.array([ord(letter) for letter in text])
    mx.save_safetensors(file, arrays, {k: v for k, v in metadata.items() if files.DIGEST not in k})


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        ("made", "method", "os.system", r"no method 'os\.system'"),
        ("made", "method", "toy-newest", "statistics"),
        ("made", "method", "newest(toy", "not understood"),
        ("made", "method", 7, "how the cache was made is not said"),
        ("made", "versions", {"vqx": "9.9"}, "releases"),
        ("made", "files", ["profile"], "with profile=FILE"),
        ("made", "options", {"budget": 12, "eval": "1"}, "no option 'eval'"),
        ("made", "options", {"budget": 3}, "leaves no room"),
        ("made", "options", {"budget": "many"}, "budget"),
        ("made", "options", {"budget": 13}, "a budget of 12"),
        ("made", "options", {"budget": 12, "model": 1}, "cannot be made"),
        ("facts", "number", 5, "stand there twice"),
        ("facts", "tokens_seen", 3, "does not fit"),
        ("facts", "tokens_seen", "3", "tokens_seen='3'"),
        ("facts", "heads", 2, "does not fit"),
        ("facts", "evicted", None, "evicted"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_either_function(
    part: str, name: str, value: Any, message: str, read: Any, file: str
) -> None:
    model, caches = read()
    vqx.save_cache(file, caches)
    told(lambda said: said[part].update({name: value}), file)
    modules = {*sys.modules}
    for load in (lambda: vqx.load_cache(file, model), lambda: load_prompt_cache(file)):
        with pytest.raises(ValueError, match=message):
            load()
    assert {*sys.modules} == modules


@pytest.mark.parametrize("name", ["keys", "values", "position", "column mass"])
def test_arrays_of_another_kind_are_refused(name: str, read: Any, file: str) -> None:
    _, caches = read()
    state = caches[0].state
    names = json.loads(state[0].split(" ", 1)[1])["arrays"]
    for other in (state[names.index(name) + 1][..., :1], state[names.index(name) + 1].astype(mx.float16)):
        changed = [*state]
        changed[names.index(name) + 1] = other
        with pytest.raises(ValueError, match="does not fit its model and method"):
            files.EvictingCaches.from_state(changed)
    with pytest.raises(ValueError, match="was changed"):
        files.EvictingCaches.from_state([state[0].replace("12", "13"), *state[1:]])
    with pytest.raises(ValueError, match="arrays are missing"):
        files.EvictingCaches.from_state(state[:-1])
    assert same(caches[0], files.EvictingCaches.from_state(state))


def test_other_classes_are_not_looked_up(read: Any, file: str) -> None:
    model, caches = read()
    vqx.save_cache(file, caches)
    arrays, metadata = mx.load(file, return_metadata=True)  # type: ignore[misc]
    metadata = {k: "copy" if v == "EvictingCache" else v for k, v in metadata.items()}  # type: ignore[union-attr]
    mx.eval(arrays)  # read before the file is written over
    mx.save_safetensors(file, arrays, metadata)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds other caches"):
        vqx.load_cache(file, model)


def test_caches_of_another_make_are_not_saved(tiny_llama: Callable[..., nn.Module], file: str) -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match="save_prompt_cache"):
        vqx.save_cache(file, [KVCache() for _ in model.layers])
    alike = vqx.Method(vqx.Scorer(score=lambda held: 0.0), 8)
    with pytest.raises(ValueError, match="cannot say how they were made"):
        vqx.save_cache(file, [vqx.EvictingCache(alike, vqx.Options(queries="keys"))])
    assert not Path(file).exists()


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A method that opens a file of its own."""

    budget: int
    profile: str | os.PathLike[str] | None = None


def test_a_file_is_opened_only_where_the_caller_names_it(
    toys: Registry, tiny_llama: Callable[..., nn.Module], file: str
) -> None:
    opened: list[Any] = []

    class Plugin:
        @vqx.hookimpl
        def vqx_methods(self) -> list[vqx.MethodSpec]:
            def build(config: Filed, layers: Sequence[vqx.LayerInfo]) -> list[vqx.Method]:
                opened.append(config.profile)
                return [vqx.Method(vqx.accumulated(), config.budget)] * len(layers)

            return [vqx.MethodSpec(name="filed", summary="", paper="-", config=Filed, build=build)]

    toys.register(Plugin())
    model = tiny_llama()
    caches = vqx.make_cache(model, "filed", budget=8, profile="/secret/place")
    run(model, caches, [20, 1])
    vqx.save_cache(file, caches)
    assert b"secret" not in Path(file).read_bytes()
    assert "secret" not in caches[0].state[0]
    opened.clear()
    for load in (lambda: vqx.load_cache(file, model), lambda: load_prompt_cache(file)):
        with pytest.raises(ValueError, match="made with profile=FILE"):
            load()
    told(lambda said: said["made"]["options"].update(profile="/etc/passwd"), file)
    with pytest.raises(ValueError, match="names a file to open"):
        vqx.load_cache(file, model, profile="mine")
    assert not opened
    vqx.save_cache(file, caches)
    back = vqx.load_cache(file, model, profile="mine")
    assert set(opened) == {"mine"}
    assert mx.array_equal(run(model, back, [1, 1], 2), run(model, caches, [1, 1], 2)).item()
