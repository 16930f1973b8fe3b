"""The late riser: how often frozen noise keeps a row that reads low until it matters, and what that costs.

Keys stand in for queries and no recent rows are safe, as in the adapted system's sweep; in these streams a
row's key is its query, so the rule is measured and not the guess. Seeds are heads: noise depends on the head
and not on the batch slot.

    python packages/vqx-keyformer/bench/late_riser.py --out docs/results
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import time
import warnings
from collections.abc import Mapping
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
from vqx.stream import advance
from vqx_keyformer import keyformer_update_batched

LENGTHS, BUDGETS = (256, 512), (32, 64)
NOISE_ALONE = 1e6  # no mass comes near: the ranking is the noise
TAUS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, NOISE_ALONE)
NULL_TAUS = (0.0, 2.0, 6.0, NOISE_ALONE)
PLACES = tuple(range(len(TAUS)))  # on the axis
DELAYS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0)  # the burst's first token, in budgets
N_SINK = 4
CHUNK = 64  # tokens given at once, which is faster than all at once
CELL = (256, 32)  # length and budget of the picture of the price
BLUE, ORANGE, GREEN, PINK = COLOURS[:4]

Row = dict[str, Any]


def streams(lanes: int, length: int, budget: int) -> Mapping[str, planted.Planted]:
    """The riser is the first row after the budget is full; its burst begins a quarter budget later."""
    return {
        "late riser": planted.late_riser(lanes, length, riser=budget, burst=budget * 5 // 4),
        "stable": planted.stable(lanes, length),
        "independent": planted.independent(lanes, length, watch=budget),
    }


def keyformer_keeps(stream: planted.Planted, budget: int, tau: float) -> tuple[Any, Any]:
    """Positions and masses ``[lanes, budget]`` that stay at a constant tau."""
    length = stream.keys.shape[1]
    keys = values = mass = noise = positions = None
    for first in range(0, length, CHUNK):
        new = mx.array(stream.keys[:, first : first + CHUNK])
        keys, values, mass, noise, positions, _ = keyformer_update_batched(
            keys, values, mass, noise, positions, new, new, N_SINK, budget, recent=0, next_pos=first,
            tau=tau, seed=length,
        )  # fmt: skip
    return np.array(positions), np.array(mass)


def method_keeps(stream: planted.Planted, method: vqx.Method) -> tuple[Any, Any]:
    """Positions and masses (without noise: zeros where a method gathers none)."""
    keys = values = positions = None
    columns: Mapping[str, mx.array] = {}
    for first in range(0, stream.keys.shape[1], CHUNK):
        new = mx.array(stream.keys[:, first : first + CHUNK])
        keys, values, positions, columns, _ = advance(
            method, keys, values, positions, columns, new, new, first
        )
    return np.array(positions), np.array(columns.get("mass", mx.zeros(())))


def h2o(budget: int, recent: int = 0) -> vqx.Method:
    """The core's accumulated mass: what the h2o plugin keeps, with or without that plugin."""
    return vqx.Method(vqx.accumulated(itself=False), budget, N_SINK, recent)


def h2o_plugin(budget: int) -> vqx.Method:
    """The same as the plugin builds it."""
    spec = vqx.load("h2o")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of recent=0, which the sweep asks for
        config = spec.config(budget=budget, n_sink=N_SINK, recent=0, decay=1.0, grace=0, normalise=None)
        return spec.build(config, [vqx.LayerInfo(0, "keys")])[0]


def sweep(lanes: int) -> list[Row]:
    """Every length, budget and stream under each tau, h2o and chance."""
    rows: list[Row] = []
    for length, budget in itertools.product(LENGTHS, BUDGETS):
        for name, stream in streams(lanes, length, budget).items():
            cell = {"stream": name, "length": length, "budget": budget}
            for tau in TAUS if name != "independent" else NULL_TAUS:
                positions, mass = keyformer_keeps(stream, budget, tau)
                rows.append({**cell, "rule": "keyformer", "tau": tau, **judged(stream, positions)})
                if tau == 0:
                    zero = positions, mass
                if tau == NOISE_ALONE and name == "independent":
                    uniform(positions, length)
            rows.append({**cell, "rule": "h2o", **cross_check(stream, budget, *zero)})
            positions, _ = method_keeps(stream, planted.random_eviction(budget, N_SINK))
            rows.append({**cell, "rule": "random eviction", **judged(stream, positions)})
    return rows


def cross_check(stream: planted.Planted, budget: int, positions: Any, mass: Any) -> Row:
    """tau 0 is h2o in rows and masses, bit for bit."""
    methods = {"the core's accumulated mass": h2o(budget)}
    if "h2o" in vqx.names():
        methods["the h2o plugin"] = h2o_plugin(budget)
    for name, method in methods.items():
        theirs, their_mass = method_keeps(stream, method)
        same = np.array_equal(positions, theirs) and np.array_equal(mass, their_mass)
        require(same, f"keyformer at tau 0 equals {name}")
    return judged(stream, theirs)


def delays(lanes: int) -> list[Row]:
    """The late riser against the time its burst begins, beside recent rows without noise."""
    length, budget = LENGTHS[-1], BUDGETS[-1]
    rows = []
    for burst in (int(delay * budget) for delay in DELAYS):
        stream = planted.late_riser(lanes, length, riser=budget, burst=burst)
        cell = {"stream": "late riser", "length": length, "budget": budget, "burst": burst}
        for tau in (2.0, 6.0):
            positions, _ = keyformer_keeps(stream, budget, tau)
            rows.append({**cell, "rule": "keyformer", "tau": tau, **judged(stream, positions)})
        positions, _ = method_keeps(stream, h2o(budget, recent=budget // 2))
        rows.append({**cell, "rule": "h2o, half of the budget recent", **judged(stream, positions)})
    return rows


def judged(stream: planted.Planted, positions: Any) -> Row:
    """What the kept rows are worth, once it is certain that rows were evicted and sinks were not."""
    require(positions.shape[-1] < stream.keys.shape[-2], "rows were evicted")
    sinks = np.sort(positions, axis=-1)[:, :N_SINK]
    require(np.array_equal(sinks, np.broadcast_to(np.arange(N_SINK), sinks.shape)), "sinks stayed")
    return planted.worth(stream, positions)


def uniform(positions: Any, length: int) -> None:
    """Under noise alone every position but the sinks' is as likely to stay: eight parts of the stream."""
    lanes, budget = positions.shape
    part = np.arange(length - N_SINK) * 8 // (length - N_SINK)
    counts = np.bincount(part[positions[positions >= N_SINK] - N_SINK], minlength=8)
    share = (budget - N_SINK) / (length - N_SINK)
    expected = lanes * share * np.bincount(part)
    # drawn without replacement: the variance is smaller by 1 - share; 24.3 is the 99.9 % point of 7 degrees
    chi_square = ((counts - expected) ** 2 / expected).sum() / (1 - share)
    require(chi_square < 24.3, "noise alone keeps positions uniformly")


def controls(rows: list[Row]) -> None:
    """The streams are what they say, before anything is concluded from them."""
    for length, budget in itertools.product(LENGTHS, BUDGETS):
        late, steady, null = (
            _of(rows, name, length, budget) for name in ("late riser", "stable", "independent")
        )
        require(late[0]["survival"] == 0, "the late riser never survives at tau 0")
        require(max(r["survival"] for r in late) > 0.5, "some tau saves more than half of the late risers")
        require(steady[0]["survival"] == 1, "every stable heavy hitter survives at tau 0")
        mean, error = steady[0]["future_mass"]
        gain = max(r["future_mass"][0] for r in steady) - mean
        require(gain <= 3 * error, "no tau helps the stable stream")
        without, riser = null[NULL_TAUS.index(6.0)], late[TAUS.index(6.0)]
        apart = without["survival_interval_95"][1] < riser["survival_interval_95"][0]
        require(apart, "at tau 6 a row without a burst survives less")


checked: dict[str, int] = {}
"""Claims, and how many times each was found true."""


def require(truth: bool, claim: str) -> None:
    if not truth:
        raise RuntimeError(f"the benchmark does not show what it says: {claim}")
    checked[claim] = checked.get(claim, 0) + 1


def draw(rows: list[Row], late: list[Row], path: Path) -> None:
    plt.rcParams.update({
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
        "axes.titlelocation": "left", "lines.linewidth": 1.6, "lines.markersize": 5, "figure.dpi": 180,
        "errorbar.capsize": 2,
    })  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    _by_tau(axes[0], rows)
    _price(axes[1], rows)
    _by_delay(axes[2], late)
    figure.suptitle(
        "Frozen noise keeps a late riser that plain h2o always loses, as a lottery does: only if its time"
        " comes soon, and at a price", x=0.006, ha="left", weight="bold",
    )  # fmt: skip
    seeds = late[0]["planted"]
    figure.supxlabel(
        f"{seeds} seeds, bars: 95 %. Keys stand in for queries, no recent rows except where named,"
        f" {N_SINK} sinks.", x=0.006, ha="left", fontsize=8, color=GREY,
    )  # fmt: skip
    figure.savefig(path)
    plt.close(figure)


def _by_tau(axes: Any, rows: list[Row]) -> None:
    colours, markers = {256: BLUE, 512: ORANGE}, {32: ("o", "-"), 64: ("s", "--")}
    for length, budget in itertools.product(LENGTHS, BUDGETS):
        some = _of(rows, "late riser", length, budget)
        marker, line = markers[budget]
        survival = [r["survival"] for r in some]
        axes.errorbar(
            PLACES, survival, _bars(some), color=colours[length], marker=marker, ls=line,
            markerfacecolor=colours[length] if length == LENGTHS[0] else "white",
            label=f"{budget} of {length} rows kept",
        )  # fmt: skip
    null = [r["survival"] for r in _of(rows, "independent", *CELL)]
    axes.plot([TAUS.index(tau) for tau in NULL_TAUS], null, color=GREY, marker=".", ls=":")
    axes.text(2.1, 0.13, f"a row without a burst\n({CELL[1]} of {CELL[0]})", color=GREY, va="top", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="upper right", handlelength=3, borderaxespad=0)
    axes.set(ylabel="late risers that survive (share of seeds)", ylim=(-0.03, 1.08))
    axes.set_title("None at tau 0, most at a middle tau")
    _tau_axis(axes)


def _price(axes: Any, rows: list[Row]) -> None:
    places = {"late riser": (3, 0.372, BLUE, "o"), "stable": (3.0, 0.15, GREEN, "s")}
    for stream, (x, y, colour, marker) in places.items():
        some = _of(rows, stream, *CELL)
        mean, error = zip(*(r["future_mass"] for r in some), strict=True)
        axes.errorbar(PLACES, mean, 1.96 * np.array(error), color=colour, marker=marker)
        axes.text(x, y, "late riser" if stream == "late riser" else "stable (control)", color=colour)
        most = some[0]["best_future_mass"][0]
        axes.axhline(most, color=colour, ls=":", lw=1.2)
        axes.text(7.2, most + 0.006, f"best {CELL[1]} rows", color=colour, fontsize=8)
    axes.set(ylabel="future attention that kept rows hold (share)", ylim=(0, 0.52))
    axes.set_title(f"Price: the control gains nothing ({CELL[1]} of {CELL[0]})")
    _tau_axis(axes)


def _by_delay(axes: Any, rows: list[Row]) -> None:
    budget, length = rows[0]["budget"], rows[0]["length"]
    for colour, marker, some in (
        (BLUE, "o", [r for r in rows if r.get("tau") == 6]),
        (PINK, "s", [r for r in rows if "recent" in r["rule"]]),
    ):
        axes.errorbar(DELAYS, [r["survival"] for r in some], _bars(some), color=colour, marker=marker)
    delay = np.linspace(1, 6, 100)
    # noise alone keeps budget - sinks of the rows before the burst that are no sinks
    axes.plot(delay, (budget - N_SINK) / (delay * budget - N_SINK), color=GREY, ls=":")
    axes.text(1.35, 0.97, "h2o, half the budget recent", color=PINK)
    axes.text(2.1, 0.5, "chance that a random row\nis still there when it begins", color=GREY)
    axes.text(1.65, 0.12, "keyformer, tau 6", color=BLUE)
    axes.set(xlabel="tokens before the burst, in budgets", ylim=(-0.03, 1.08))
    axes.set_ylabel("late risers that survive (share of seeds)")
    axes.set_title(f"The later its burst, the fewer are left ({budget} of {length})")


def _of(rows: list[Row], stream: str, length: int, budget: int) -> list[Row]:
    """Keyformer's rows of one cell, one for each tau."""
    cell = {"stream": stream, "length": length, "budget": budget, "rule": "keyformer"}
    return [r for r in rows if cell.items() <= r.items()]


def _bars(rows: list[Row]) -> Any:
    """Distances from each survival to the ends of its interval: ``[2, n]``."""
    ends = np.array([r["survival_interval_95"] for r in rows]).T
    survival = np.array([r["survival"] for r in rows])
    return np.maximum([survival - ends[0], ends[1] - survival], 0)


def _tau_axis(axes: Any) -> None:
    names = ["0\n= h2o", *(f"{tau:g}" for tau in TAUS[1:-1]), "noise\nalone"]
    axes.set_xticks(PLACES, names)
    axes.set_xlabel("tau (weight of the noise in the ranking)")


def main() -> None:
    parser = argparse.ArgumentParser(description="The late riser under keyformer's frozen noise.")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the results")
    parser.add_argument("--seeds", type=int, default=128)
    given = parser.parse_args()
    began = time.perf_counter()
    rows, late = sweep(given.seeds), delays(given.seeds)
    controls(rows)
    packages = ("vqx", "vqx-keyformer", "mlx", "numpy", *(["vqx-h2o"] if "h2o" in vqx.names() else []))
    record = {
        "benchmark": "late riser",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "platform": platform.platform(), "cores": os.cpu_count(), "device": str(mx.default_device()),
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time(),
        "settings": {
            "seeds": given.seeds, "queries": "keys", "cadence": "token", "noise": "rank", "recent": 0,
            "n_sink": N_SINK, "width": planted.WIDTH, "future_queries": planted.FUTURE,
            "riser": "position = budget", "burst": "24 tokens from 5/4 budget on", "heavy": 8,
            "noise_alone": NOISE_ALONE,
        },
        "checked": checked,
        "sweep": rows,
        "delays": late,
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    short = json.loads(json.dumps(record), parse_float=lambda number: round(float(number), 4))
    (given.out / "late_riser.json").write_text(json.dumps(short, indent=1) + "\n")
    draw(rows, late, given.out / "late_riser.png")
    print(f"{given.out}/late_riser.json and .png: {record['seconds']:.0f} s")


if __name__ == "__main__":
    main()
