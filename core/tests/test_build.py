"""From a name and options to one method per layer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from vqx import LayerInfo, Method, MethodSpec, Scorer, UnknownMethod
from vqx.build import chain_of, methods_for, split_options
from vqx.registry import Registry

LAYERS = [LayerInfo(number, "model") for number in (0, 2, 5)]


@pytest.fixture
def toy(toys: Registry) -> MethodSpec:
    return toys.load("toy")


def test_options_are_parted_into_the_methods_and_the_engines(toy: MethodSpec) -> None:
    own, engine = split_options((toy,), {"budget": 8, "cadence": "token", "decay": 0.5, "interval": 1})
    assert own == {"budget": 8, "decay": 0.5}
    assert engine == {"cadence": "token", "interval": 1}


@pytest.mark.parametrize(
    ("wrong", "right"), [("decai", "decay"), ("buget", "budget"), ("query", "queries"), ("recents", "recent")]
)
def test_an_unknown_option_is_answered_with_the_nearest(toy: MethodSpec, wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"toy has no option {wrong!r}; did you mean {right!r}?"):
        split_options((toy,), {"budget": 8, wrong: 1})


def test_where_no_option_is_near_all_are_listed(toy: MethodSpec) -> None:
    with pytest.raises(ValueError, match="has no option 'zzz'") as refused:
        split_options((toy,), {"zzz": 1})
    message = str(refused.value)
    assert "did you mean" not in message
    assert "its options: budget, decay, n_sink, recent" in message
    assert "every method's: bits, cadence, group_size, interval, positions, prompt, queries, undo" in message


def test_an_unknown_method_is_refused(toys: Registry) -> None:
    with pytest.raises(UnknownMethod, match="toy"):
        chain_of("toi")
    assert chain_of("toy") == (toys.load("toy"),)


def test_one_budget_serves_every_layer(toy: MethodSpec) -> None:
    methods = methods_for((toy,), {"budget": 8}, LAYERS)
    assert [(m.budget, m.n_sink, m.recent) for m in methods] == [(8, 2, 2)] * 3


@pytest.mark.parametrize(
    "budgets",
    [[8, 16, 9], (8, 16, 9), np.array([8, 16, 9]), iter([8, 16, 9])],
    ids=["list", "tuple", "array", "iterator"],
)
def test_budgets_are_given_layer_by_layer(toy: MethodSpec, budgets: Any) -> None:
    assert [m.budget for m in methods_for((toy,), {"budget": budgets, "n_sink": 1}, LAYERS)] == [8, 16, 9]


@pytest.mark.parametrize("budget", [np.int64(8), np.int32(8)], ids=repr)
def test_a_budget_may_be_counted_by_numpy(toy: MethodSpec, budget: Any) -> None:
    assert [m.budget for m in methods_for((toy,), {"budget": budget}, LAYERS)] == [8] * 3


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (None, "toy: say how many rows to keep per layer, for example budget=1024"),
        (0, "budget=0: give an integer of at least 1"),
        (3, "budget=3 leaves no room"),
        (True, "budget=True: give an integer"),
        (0.5, "budget=0.5"),
        ("1024", "budget='1024'"),
        ([8, 9], "budget lists 2 numbers, and the model has 3 layers"),
        ([], "budget lists 0 numbers"),
        ([8, 16, 2], "budget=2 leaves no room"),
        ([8, 16, 9.5], "budget=9.5: give an integer"),
    ],
    ids=str,
)
def test_a_budget_that_cannot_serve_is_refused(toy: MethodSpec, budget: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        methods_for((toy,), {} if budget is None else {"budget": budget}, LAYERS)


@dataclass(frozen=True, kw_only=True)
class HalfRecent:
    """``recent`` follows from the budget where it is not given."""

    budget: int
    recent: int | None = None

    def __post_init__(self) -> None:
        if self.recent is None:
            object.__setattr__(self, "recent", self.budget // 2)


def numbered(config: HalfRecent, layers: Sequence[LayerInfo]) -> list[Method]:
    alike = Scorer(score=lambda held: 0.0)
    return [Method(alike, config.budget, layer.number, config.recent or 0) for layer in layers]


@pytest.mark.parametrize(("given", "recent"), [({}, [4, 8, 5]), ({"recent": 1}, [1, 1, 1])], ids=str)
def test_with_budgets_per_layer_each_layer_is_built_as_itself(
    given: dict[str, int], recent: list[int]
) -> None:
    spec = MethodSpec(name="half", summary="-", paper="-", config=HalfRecent, build=numbered)
    methods = methods_for((spec,), {"budget": [8, 16, 10], **given}, LAYERS)
    assert [m.budget for m in methods] == [8, 16, 10]
    assert [m.n_sink for m in methods] == [0, 2, 5]
    assert [m.recent for m in methods] == recent


def test_a_method_that_sets_budgets_itself_takes_no_list_of_them() -> None:
    def halved(config: HalfRecent, layers: Sequence[LayerInfo]) -> list[Method]:
        return [method._replace(budget=config.budget // 2) for method in numbered(config, layers)]

    spec = MethodSpec(name="half", summary="-", paper="-", config=HalfRecent, build=halved)
    assert [m.budget for m in methods_for((spec,), {"budget": 8}, LAYERS)] == [4] * 3
    with pytest.raises(ValueError, match="half sets the budgets of the layers itself: give budget as one"):
        methods_for((spec,), {"budget": [8, 8, 8]}, LAYERS)


@dataclass(frozen=True, kw_only=True)
class Bare:
    """A budget and nothing else."""

    budget: int


def flat(config: Bare, layers: Sequence[LayerInfo]) -> list[Method]:
    return [Method(Scorer(score=lambda held: 0.0), config.budget)] * len(layers)


def more_sinks(config: HalfRecent, layers: Sequence[LayerInfo], methods: Sequence[Method]) -> list[Method]:
    return [method._replace(n_sink=method.n_sink + 1) for method in methods]


def twice_the_sinks(
    config: HalfRecent, layers: Sequence[LayerInfo], methods: Sequence[Method]
) -> list[Method]:
    return [method._replace(n_sink=method.n_sink * 2) for method in methods]


@pytest.fixture
def outer(toys: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    wrappers = {
        name: MethodSpec(name=name, summary="-", paper="-", config=HalfRecent, build=numbered, wrap=wrap)
        for name, wrap in (("outer", more_sinks), ("twice", twice_the_sinks))
    }
    load = toys.load
    monkeypatch.setattr(toys, "load", lambda name: wrappers.get(name) or load(name))
    return toys


def test_wrappers_are_built_from_the_inside_out(outer: Registry) -> None:
    chain = chain_of("outer(twice(toy))")
    own, _ = split_options(chain, {"budget": 8, "n_sink": 2, "recent": 3})
    assert [(m.budget, m.n_sink, m.recent) for m in methods_for(chain, own, LAYERS)] == [(8, 5, 3)] * 3
    with pytest.raises(ValueError, match=re.escape("outer(toy) has no option 'sinks'")):
        split_options(chain_of("outer(toy)"), {"sinks": 1})


def test_what_matters_alone_is_no_option_of_a_wrapper_but_of_what_it_wraps(
    outer: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(outer.load("outer"), alone=("recent",))
    bare = MethodSpec(name="bare", summary="-", paper="-", config=Bare, build=flat)
    load = outer.load
    known = {"outer": spec, "bare": bare}
    monkeypatch.setattr(outer, "load", lambda name: known.get(name) or load(name))
    for name in ("outer", "outer(toy)", "twice(outer)"):
        assert split_options(chain_of(name), {"recent": 3})[0] == {"recent": 3}
    with pytest.raises(ValueError, match=re.escape("outer(bare) has no option 'recent'")):
        split_options(chain_of("outer(bare)"), {"recent": 3})


@pytest.mark.parametrize("name", ["outer(toy", "outer toy)", "outer()", "(toy)", "outer(toy))", ""])
def test_a_composition_with_wrong_brackets_is_refused(outer: Registry, name: str) -> None:
    with pytest.raises((ValueError, UnknownMethod), match=r"is not understood|no method"):
        chain_of(name)


@pytest.mark.parametrize("name", ["outer(outer)", "outer(twice(outer(toy)))"])
def test_a_method_twice_is_refused(outer: Registry, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name!r} names outer twice")):
        chain_of(name)


def test_a_method_that_wraps_nothing_says_so(outer: Registry) -> None:
    with pytest.raises(ValueError, match="toy wraps no other method"):
        chain_of("toy(outer)")
