"""What is timed did happen, pairs alternate, and what is printed is what was measured."""

import json
import time
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner
from mlx_lm.models.cache import RotatingKVCache
from vqx import Setting as Method
from vqx_bench import Contender, Subject, evicting, peers, plain, rotating
from vqx_bench.command import command
from vqx_bench.filling import fill, sizes_of, update
from vqx_bench.measuring import alternate
from vqx_bench.report import report
from vqx_bench.runs import Row, Setting, bytes_read, context, decode, graph, prompt, update_alone
from vqx_bench.witness import named, rows_kept, scoring

SHORT = Setting(steps=4, rounds=2, batch=2)
TOY = Method("toy", {})


@pytest.fixture
def contenders(tiny: Subject) -> list[Contender]:
    ours = [evicting(tiny.model, TOY, 32, {"interval": interval}) for interval in (1, 4)]
    return [plain(tiny.model), rotating(tiny.model, 32), *ours]


def test_runs_alternate_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    times = iter([100.0, 100.0, 4.0, 2.0, 6.0, 2.0, 6.0, 3.0])  # as called: a b, b a, a b, b a

    def run(name: str) -> float:
        order.append(name)
        return next(times)

    found = alternate({name: partial(run, name) for name in "ab"}, "a", rounds=3)
    assert "".join(order) == "abbaabba"
    assert found["a"][:4] == (3.0, 2.0, 6.0, 1.0)
    assert found["b"][:3] == (4.0, 2.0, 6.0)
    assert found["b"].ratio == 2.0  # of 2, 1/3 and 2


@pytest.mark.parametrize("run", [decode, graph, update_alone], ids=["decode", "graph", "update"])
def test_a_step_is_timed_with_full_caches(run: Any, tiny: Subject, contenders: list[Contender]) -> None:
    sizes = sizes_of(tiny.model)
    subject = () if run is update_alone else (tiny,)
    rows = {row.contender: row for row in run(*subject, sizes, contenders, 32, SHORT)}
    assert rows["RotatingKVCache"].measured.ratio == 1.0
    assert rows["toy:interval=1"].rows == 32
    assert rows["toy:interval=4"].rows <= 35
    assert [row.kernel != "" for row in rows.values()] == [False, False, True, True]
    assert all(row.measured.least <= row.measured.median <= row.measured.most for row in rows.values())


def test_a_prompt_is_timed_from_its_first_token_on(tiny: Subject, contenders: list[Contender]) -> None:
    ours = [one for one in contenders if one.label != "RotatingKVCache"]
    rows = [*prompt(tiny, ours, 32, 48, SHORT)]
    assert [(row.what, row.tokens) for row in rows] == [("prompt", 48)] * 3
    assert all(row.measured.peak > 0 for row in rows)


def test_a_long_context_is_set_against_what_its_bytes_allow(
    tiny: Subject, contenders: list[Contender]
) -> None:
    sizes = sizes_of(tiny.model)
    ours = [one for one in contenders if one.label != "RotatingKVCache"]
    full, *others = context(tiny, sizes, ours, 32, 64, SHORT)
    assert full.reached is None
    # 2 layers x 2 heads x (16 + 16) channels x 4 bytes: 512 bytes a row
    assert bytes_read(tiny, sizes, 2, 64) == tiny.weight_bytes + 2 * 64 * 512
    allowed = bytes_read(tiny, sizes, 2, others[0].rows) / bytes_read(tiny, sizes, 2, 64)
    assert others[0].reached == pytest.approx(allowed / others[0].measured.ratio)


def test_a_bounded_cache_that_evicted_nothing_is_no_result(tiny: Subject) -> None:
    caches = evicting(tiny.model, TOY, 32, {}).make()
    fill(caches, sizes_of(tiny.model), 1, 20)
    with pytest.raises(RuntimeError, match="no eviction: 20 rows held of 20 tokens"):
        rows_kept(caches, 32, bounded=True)


class Slow(RotatingKVCache):
    """A cache that takes a text token by token; what its ``size`` counts are tokens."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        for _ in range(keys.shape[2]):
            time.sleep(0.01)
        return super().update_and_fetch(keys, values)

    def size(self) -> int:
        return self.offset

    @property
    def tokens_kept(self) -> int:
        return super().size()


@pytest.mark.parametrize("what", ["decode", "prompt"])
def test_a_contender_that_takes_too_long_is_left_out_and_named(what: str, tiny: Subject) -> None:
    told: list[str] = []
    how = Setting(steps=2, rounds=1, batch=1, left=told.append)
    for patience, found in ((0.05, False), (30.0, True)):
        slow = Contender("slow", lambda: [Slow(16) for _ in range(2)], patience=patience)
        if what == "decode":
            both = [rotating(tiny.model, 16), slow]
            rows = [*decode(tiny, sizes_of(tiny.model), both, 16, how)]
        else:
            rows = [*prompt(tiny, [plain(tiny.model), slow], 16, 24, how)]
        assert ("slow" in {row.contender for row in rows}) == found
    assert told == ["slow, which took more than 0.05 s to read its text"]


@pytest.mark.parametrize("there", [True, False], ids=["installed", "not installed"])
def test_what_of_veloxquant_is_not_compared_is_named(
    there: bool, tiny: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if not there:
            raise PackageNotFoundError(name)
        return "0.94.15"

    monkeypatch.setattr("vqx_bench.contenders.version", version)
    told: list[str] = []
    found = peers(tiny.model, ["h2o", "toy"], 16, 1.0, told.append)
    assert [one.label for one in found] == ["VeloxQuant-MLX 0.94.15 h2o"] * there
    assert len(told) == 1
    assert ("toy" if there else "not installed") in told[0]


def test_what_fills_the_caches_is_shown_to_the_scorer(tiny: Subject) -> None:
    (cache, _), (size, _) = evicting(tiny.model, TOY, 32, {}).make(), sizes_of(tiny.model)
    fill([cache], [size], 1, 40)
    assert cache.layer.rows.columns["mass"].sum().item() == pytest.approx(40 * size.heads, rel=1e-4)
    from vqx_bench.filling import drawn

    assert update(cache, drawn(size, 1, 1))[0].shape[2] == 33


def test_the_command_leaves_figures_tables_and_pictures(
    tmp_path: Path, monkeypatch: Any, tiny: Subject
) -> None:
    monkeypatch.setattr("vqx_bench.command.subject", lambda name, part: tiny)
    asked = ["--methods", "toy", "--rows", "16", "--steps", "4", "--rounds", "1", "--cadences", "1,4"]
    done = CliRunner().invoke(
        command, [*asked, "--what", "decode,prompt", "--tokens", "32", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "bench.json").read_text())
    assert {row["contender"] for row in told["rows"]} >= {"KVCache", "RotatingKVCache", "toy:interval=4"}
    assert str(mx.default_device()) in told["machine"]
    table = (tmp_path / "bench.md").read_text()
    for row in told["rows"]:
        assert f"{row['measured']['ratio']:.3f}" in table


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--what", "speed"], "'speed' is not known"),
        (["--steps", "10", "--cadences", "4"], "no multiple of the cadence 4"),
        (["--rows", "none"], "give whole numbers"),
        (["--plots"], "say which with --out"),
    ],
)
def test_what_cannot_be_timed_is_said(asked: list[str], said: str, monkeypatch: Any, tiny: Subject) -> None:
    monkeypatch.setattr("vqx_bench.command.subject", lambda name, part: tiny)
    done = CliRunner().invoke(command, ["--methods", "toy", *asked])
    assert done.exit_code != 0
    assert said in done.output


def test_losses_stand_beside_wins(tiny: Subject, contenders: list[Contender]) -> None:
    rows: list[Row] = [*decode(tiny, sizes_of(tiny.model), contenders, 32, SHORT)]
    text = report(rows, {"model": "tiny"})
    assert all(row.contender in text for row in rows)
    assert "MLX operations" in text


def test_the_kernels_that_serve_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vqx import kernels

    monkeypatch.setattr(kernels, "target", lambda: "cuda")
    monkeypatch.setattr(kernels, "lowest", lambda *_: mx.array(0))
    monkeypatch.setattr(kernels, "gained", lambda *_: None)
    with scoring() as served:
        kernels.gained(None)
        assert named(served) == "MLX operations"
        kernels.lowest(mx.array(0), mx.array(0))
    assert named(served) == "cuda: lowest"


def test_a_methods_cadences_differ_by_their_stroke_alone() -> None:
    from vqx_bench.plots import looks_of

    look = looks_of(["KVCache", "h2o:interval=1", "h2o:interval=32", "tova:interval=1,heads=each"])
    one, other = look["h2o:interval=1"], look["h2o:interval=32"]
    assert one[:2] == other[:2]
    assert one.linestyle != other.linestyle
    assert len({each[:2] for each in look.values()}) == 3


def test_the_processors_clock_stands_still_while_nothing_is_done() -> None:
    from vqx_bench.measuring import milliseconds

    assert milliseconds(lambda: time.sleep(0.1)) >= 100
    assert milliseconds(lambda: time.sleep(0.1), clock="processor") < 50
