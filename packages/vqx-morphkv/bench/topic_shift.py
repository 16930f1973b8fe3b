"""A topic shift: what the cache holds of the rows that queries begin to read halfway through the stream.

Rows of both topics come all the time and only the queries shift, so true queries are needed: they reach
``vqx.EvictingCache`` as a model's would, one eviction a token. One line more shows what keys in their place
see. Seeds are the batch.

    python packages/vqx-morphkv/bench/topic_shift.py --out docs/results
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

# before MLX: it shows MLX a fast BLAS
import vqx  # isort: split

import matplotlib.pyplot as plt
import mlx.core as mx
import numpy as np
from vqx import planted
from vqx.pictures import COLOURS, GREY
from vqx.testing import Stream, forward, remaining
from vqx_morphkv import MorphKVConfig, morphkv_update_batched
from vqx_morphkv.method import morphkv

LENGTHS, BUDGETS = (256, 512), (32, 64)
CELL = (512, 64)  # length and budget of the picture
N_SINK, WINDOW = 4, 8
SHIFT, NULL = "topic shift", "null control"
SAME_GUARDS = f"h2o, {WINDOW} recent"
CHUNK = 32  # tokens between two looks at the kept rows
BLUE, ORANGE, GREEN, PINK = COLOURS[:4]

Row = dict[str, Any]
Looks = Iterator[tuple[int, Any]]
"""(tokens seen, positions kept ``[lanes, m]``) after every chunk."""


def watch(stream: planted.Planted, method: vqx.Method) -> Looks:
    """With the stream's true queries, in token cadence."""
    cache = vqx.EvictingCache(method, vqx.Options(queries="model", cadence="token"))
    length = stream.keys.shape[1]
    for first in range(0, length, CHUNK):
        part = slice(first, first + CHUNK)
        keys = mx.array(stream.keys[:, None, part])
        forward(cache, Stream(mx.array(stream.queries[:, None, part]), keys, keys))
        if first:  # rows kept stand before the new ones
            yield first, np.array(cache.position)[:, 0, :-CHUNK]
    yield length, remaining(cache).position[:, 0]


def watch_keys(stream: planted.Planted, budget: int) -> Looks:
    """MorphKV in its adapted form: the last stored keys stand in for queries."""
    keys = values = None
    positions = np.zeros((len(stream.keys), 0), np.int64)
    for first in range(0, stream.keys.shape[1], CHUNK):
        new = mx.array(stream.keys[:, first : first + CHUNK])
        keys, values, kept = morphkv_update_batched(
            keys, values, new, new, N_SINK, budget, WINDOW, return_indices=True
        )
        fresh = np.broadcast_to(np.arange(first, first + CHUNK), new.shape[:2])
        every = np.concatenate([positions, fresh], axis=1)
        positions = np.take_along_axis(every, np.array(kept, np.int64), axis=1)
        yield first + CHUNK, positions


def rules(budget: int) -> dict[str, Callable[[planted.Planted], Looks]]:
    """Every rule keeps the same sinks; ``h2o`` is the core's accumulated mass."""

    def mass(recent: int) -> vqx.Method:
        return vqx.Method(vqx.accumulated(), budget, N_SINK, recent)

    config = MorphKVConfig(budget=budget, n_sink=N_SINK, window=WINDOW)
    old = MorphKVConfig(budget=budget, n_sink=N_SINK, window=WINDOW, over="old")
    return {
        "morphkv": lambda stream: watch(stream, morphkv(config, causal=True)),
        "morphkv, softmax over old rows": lambda stream: watch(stream, morphkv(old, causal=True)),
        "morphkv, keys as queries": lambda stream: watch_keys(stream, budget),
        SAME_GUARDS: lambda stream: watch(stream, mass(WINDOW)),
        "h2o, half recent": lambda stream: watch(stream, mass(budget // 2)),
        "h2o, none recent": lambda stream: watch(stream, mass(0)),
        "random eviction": lambda stream: watch(stream, planted.random_eviction(budget, N_SINK)),
    }


def sweep(lanes: int) -> list[Row]:
    """Every length and budget, with the shift and without, under each rule."""
    rows: list[Row] = []
    for length, budget, name in itertools.product(LENGTHS, BUDGETS, (SHIFT, NULL)):
        stream = planted.topic_shift(lanes, length, shift=name == SHIFT)
        asked = np.concatenate([stream.queries, stream.future], axis=1)
        # what the next queries read of the rows so far, had none gone
        ahead = {
            seen: planted.attention(asked[:, seen : seen + CHUNK], stream.keys[:, :seen])
            for seen in range(CHUNK, length + 1, CHUNK)
        }
        cell = {"stream": name, "length": length, "budget": budget}
        for rule, watched in rules(budget).items():
            looks = dict(watched(stream))
            if rule == SAME_GUARDS and "h2o" in vqx.names():
                plugin = dict(watch(stream, h2o_plugin(budget)))
                same = all(np.array_equal(looks[seen], plugin[seen]) for seen in looks)
                require(same, "accumulated mass equals the h2o plugin")
            held = {seen: planted.held(ahead[seen], kept) for seen, kept in looks.items()}
            rows.append({**cell, "rule": rule, **judged(stream, looks[length]), "next_mass": _curve(held)})
        most = {seen: planted.best(mass, budget) for seen, mass in ahead.items()}
        rows.append({**cell, "rule": "best set", "next_mass": _curve(most)})
    return rows


def h2o_plugin(budget: int) -> vqx.Method:
    """What the h2o plugin builds for the window's guards."""
    spec = vqx.load("h2o")
    config = spec.config(budget=budget, n_sink=N_SINK, recent=WINDOW, decay=1.0, grace=0, normalise=None)
    return spec.build(config, [vqx.LayerInfo(0, "model")])[0]


def judged(stream: planted.Planted, positions: Any) -> Row:
    """What the kept rows are worth, once it is certain that rows were evicted and sinks were not."""
    require(positions.shape[1] < stream.keys.shape[1], "rows were evicted")
    sinks = np.sort(positions, axis=1)[:, :N_SINK]
    require(np.array_equal(sinks, np.broadcast_to(np.arange(N_SINK), sinks.shape)), "sinks stayed")
    second = planted.held(stream.watched.astype(np.float32), positions) / positions.shape[1]
    return {"second_topic_of_kept": planted.mean_and_error(second), **planted.worth(stream, positions)}


def controls(rows: list[Row]) -> None:
    """The shift parts the rules, and without it they hold the same."""
    for length, budget in itertools.product(LENGTHS, BUDGETS):
        shift, null = (_of(rows, name, length, budget) for name in (SHIFT, NULL))
        second = {rule: shift[rule]["second_topic_of_kept"][0] for rule in rules(budget)}
        require(second["morphkv"] > 0.7, "after the shift morphkv keeps the second topic's rows")
        for rule in (SAME_GUARDS, "h2o, none recent"):
            require(second[rule] < 0.4, "after the shift h2o keeps the first topic's rows")
        blind = second["morphkv, keys as queries"]
        require(0.4 < blind < 0.6, "with keys as queries morphkv keeps both topics alike: it sees no shift")
        gain, none = (
            of["morphkv"]["future_mass"][0] - of[SAME_GUARDS]["future_mass"][0] for of in (shift, null)
        )
        require(abs(none) < gain / 10, "without a shift morphkv and h2o hold the same")


checked: dict[str, int] = {}
"""Claims, and how many times each was found true."""


def require(truth: bool, claim: str) -> None:
    if not truth:
        raise RuntimeError(f"the benchmark does not show what it says: {claim}")
    checked[claim] = checked.get(claim, 0) + 1


def draw(rows: list[Row], seeds: int, path: Path) -> None:
    plt.rcParams.update({
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
        "axes.titlelocation": "left", "lines.linewidth": 1.6, "lines.markersize": 5, "figure.dpi": 180,
        "errorbar.capsize": 2,
    })  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained", width_ratios=(1, 1, 0.85))
    length, budget = CELL
    shift, null = (_of(rows, name, *CELL) for name in (SHIFT, NULL))
    _over_time(axes[0], shift)
    axes[0].set_title(f"The topic changes halfway ({budget} of {length} rows kept)")
    axes[0].axvline(length // 2, color=GREY, lw=0.8)
    axes[0].text(length // 2 + 6, 1.02, "queries turn to\nthe second topic", color=GREY, va="top")
    axes[0].text(345, 0.315, "morphkv", color=BLUE)
    axes[0].text(390, 0.065, SAME_GUARDS, color=ORANGE)
    _over_time(axes[1], null)
    axes[1].set_title("Null control: one topic throughout")
    axes[1].text(240, 0.67, "morphkv and h2o, 8 recent\n(one upon the other)", color=ORANGE)
    axes[1].annotate("", (196, 0.59), (242, 0.68), arrowprops={"arrowstyle": "->", "color": ORANGE})
    _kept(axes[2], shift, null)
    figure.suptitle(
        "When queries change topic MorphKV turns to the new topic's rows and h2o stays with the old;"
        " without a change they hold the same", x=0.006, ha="left", weight="bold",
    )  # fmt: skip
    figure.supxlabel(
        f"{seeds} seeds, bars: 95 %. True queries except where named, one eviction a token,"
        f" {N_SINK} sinks, window {WINDOW}.", x=0.006, ha="left", fontsize=8, color=GREY,
    )  # fmt: skip
    figure.savefig(path)
    plt.close(figure)


def _over_time(axes: Any, rows: dict[str, Row]) -> None:
    looks = {
        "best set": (GREY, ":", ""), "random eviction": (GREEN, "-", "v"),
        "morphkv, keys as queries": (PINK, "--", "^"), "morphkv": (BLUE, "-", "o"),
        SAME_GUARDS: (ORANGE, "--", "s"),
    }  # fmt: skip
    for rule, (colour, line, marker) in looks.items():
        curve = rows[rule]["next_mass"]
        mean, error = np.array(list(curve.values())).T
        axes.errorbar(list(curve), mean, 1.96 * error, color=colour, ls=line, marker=marker)
    axes.text(312, 0.51, "best set", color=GREY)
    axes.text(8, 0.15, "morphkv,\nkeys as queries", color=PINK)
    axes.text(8, 0.09, "random eviction", color=GREEN)
    axes.set_ylabel(f"attention of the next {CHUNK} queries\nthat kept rows hold (share)")
    axes.set(xlabel="tokens seen", ylim=(0, 1.04), xlim=(0, CELL[0] + 12), xticks=range(0, CELL[0] + 1, 128))


def _kept(axes: Any, shift: dict[str, Row], null: dict[str, Row]) -> None:
    names = [rule for rule in shift if rule != "best set"]
    places = np.arange(len(names))[::-1]
    for rows, look in (
        (shift, {"color": BLUE, "marker": "o", "label": "after the change"}),
        (null, {"color": ORANGE, "marker": "D", "mfc": "none", "ms": 10, "label": "null control"}),
    ):
        mean, error = np.array([rows[rule]["second_topic_of_kept"] for rule in names]).T
        axes.errorbar(mean, places, xerr=1.96 * error, ls="", **look)
    axes.axvline(0.5, color=GREY, lw=0.8, ls=":", zorder=0)
    axes.legend(frameon=False, loc="upper left", borderaxespad=0, handletextpad=0.2, ncols=2, columnspacing=1)
    axes.set(yticks=places, yticklabels=names, ylim=(-0.6, len(names) + 0.1), xlim=(0, 1))
    axes.set(xlabel="second topic's share of the kept rows")
    axes.set_title("What is kept at the end")


def _curve(held: dict[int, Any]) -> dict[int, tuple[float, float]]:
    return {seen: planted.mean_and_error(values) for seen, values in held.items()}


def _of(rows: list[Row], stream: str, length: int, budget: int) -> dict[str, Row]:
    """One cell's rows by rule."""
    cell = {"stream": stream, "length": length, "budget": budget}
    return {row["rule"]: row for row in rows if cell.items() <= row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="MorphKV and h2o under a shift of topic.")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the results")
    parser.add_argument("--seeds", type=int, default=128)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = sweep(given.seeds)
    controls(rows)
    packages = ("vqx", "vqx-morphkv", "mlx", "numpy", *(["vqx-h2o"] if "h2o" in vqx.names() else []))
    record = {
        "benchmark": "topic shift",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(), "cores": os.cpu_count(), "device": str(mx.default_device()),
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time(),
        "settings": {
            "seeds": given.seeds, "queries": "model, except where a rule says keys", "cadence": "token",
            "n_sink": N_SINK, "window": WINDOW, "width": planted.WIDTH, "future_queries": planted.FUTURE,
            "shift": "at half of the length",
        },
        "checked": checked,
        "sweep": rows,
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    short = json.loads(json.dumps(record), parse_float=lambda number: round(float(number), 4))
    (given.out / "topic_shift.json").write_text(json.dumps(short, indent=1) + "\n")
    draw(rows, given.seeds, given.out / "topic_shift.png")
    print(f"{given.out}/topic_shift.json and .png: {record['seconds']:.0f} s")


if __name__ == "__main__":
    main()
