"""``python -m vqx_kernels.verify``: whether this machine's kernels give the bits that they should.

Prints EQUAL, or what differs. On a Mac it tries Metal, on an NVIDIA machine CUDA, elsewhere the host's C
loops; the expected bits stand in the package.
"""

import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from vqx_kernels import attending, attention, keys, layered, probe, replaying, selection, tensor, turning
from vqx_kernels.attention import Asked, Rule
from vqx_kernels.bodies import Method
from vqx_kernels.small import Guard

TYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class Case(NamedTuple):
    """One call of a kernel: shapes, types, and what becomes of the weights."""

    name: str
    dtype: str
    batch: int
    heads: int
    group: int
    length: int  # queries
    rows: int
    width: int
    rule: Rule = Rule()


CASES = [
    Case("one query", "float32", 1, 8, 1, 1, 512, 128, Rule("nothing")),
    Case("half", "float16", 1, 4, 4, 1, 512, 128, Rule("nothing")),
    Case("bfloat", "bfloat16", 1, 4, 4, 1, 512, 64, Rule("nothing")),
    Case("two sequences", "float32", 2, 2, 3, 1, 301, 80, Rule("nothing")),
    Case("narrow", "bfloat16", 1, 2, 2, 1, 100, 36, Rule("itself")),
    Case("wide", "float16", 1, 2, 8, 1, 130, 256, Rule("nothing")),
    Case("many rows", "float16", 1, 2, 4, 1, 4500, 64, Rule("nothing")),
    Case("more rows", "bfloat16", 1, 1, 4, 1, 32768, 64, Rule("nothing")),
    Case("window", "float32", 1, 2, 3, 8, 200, 64, Rule("later", queries="mean")),
    Case("greatest", "float16", 1, 2, 2, 8, 200, 64, Rule("later", group="max", queries="max")),
    Case("old rows", "float32", 1, 2, 2, 8, 200, 64, Rule("newest", old=8, fuse_logits="sum")),
    Case("fading", "float32", 2, 2, 2, 5, 200, 32, Rule("later", decay=0.9)),
    Case("odd rows", "bfloat16", 1, 2, 3, 1, 1301, 80, Rule("nothing")),
]


def inputs(number: int, case: Case) -> tuple[Asked, mx.array]:
    """The arrays of a case, drawn from its number, and a mass ``[B, H, n]``."""
    made = np.random.Generator(np.random.Philox(number))
    lanes, n = (case.batch, case.heads), case.rows
    queries = made.standard_normal((*lanes, case.group, case.length, case.width)).astype(np.float32)
    keys = made.standard_normal((*lanes, n, case.width)).astype(np.float32)
    position = made.permuted(np.broadcast_to(np.arange(n, dtype=np.int32), (*lanes, n)), axis=2)
    mass = made.random((*lanes, n), np.float32)
    dtype = TYPES[case.dtype]
    asked = Asked(
        mx.array(queries).astype(dtype), mx.array(keys).astype(dtype), mx.array(position), n - case.length,
        case.width**-0.5,
    )  # fmt: skip
    return asked, mx.array(mass)


def special() -> dict[str, tuple[mx.array, mx.array]]:
    """Scores and positions in which a careless selection goes wrong, by name."""
    place = mx.array(
        np.random.Generator(np.random.Philox(1)).permuted(np.tile(np.arange(700), (1, 2, 1)), axis=2)
    )
    place = place.astype(mx.int32)
    ends = mx.where(place % 5 == 0, -mx.inf, mx.where(place % 7 == 0, mx.inf, place.astype(mx.float32)))
    return {
        "all equal": (mx.zeros((1, 2, 700)), place),
        "equal far apart": (mx.where(place % 256 == 3, -1.0, 1.0), place),
        "all protected": (mx.full((1, 2, 700), mx.inf), place),
        "zeros of both signs": (mx.where(place % 2 == 0, 0.0, -0.0), place),
        "infinities": (ends, place),
    }


LAST = Method("last", "score = gained;")


def known() -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Keys that repeat each other, their positions, and the mean and covariance of queries."""
    made = np.random.Generator(np.random.Philox(3))
    topics = made.standard_normal((9, 36))[made.integers(9, size=(2, 2, 150))]
    wide = (topics + made.standard_normal(topics.shape) / 2, made.standard_normal((2, 2, 3, 36)))
    spread = made.standard_normal((2, 2, 3, 36, 36))
    rows, mean, covariance = (mx.array((each / 8).astype(np.float32)) for each in (*wide, spread))
    position = made.permuted(np.tile(np.arange(150, dtype=np.int32), (2, 2, 1)), axis=2)
    return rows.astype(mx.bfloat16), mx.array(position), mean, covariance


def attended(target: str, number: int) -> dict[str, mx.array]:
    """A case's step, and what its rows gained."""
    asked, mass = inputs(number, case := CASES[number])
    guard = Guard(4, 8, ((40, 60),))
    step = attention.step(target, asked, case.rule, probe.MASS, {"mass": mass}, guard, (0.5,))
    gained = attention.gained(target, asked, case.rule)
    return {"mass": step.written["mass"], "slot": step.slot, "gained": gained}


def layers(target: str) -> dict[str, mx.array]:
    """A token for a row in two layers at once, whose arrays have room for more rows."""
    asked, mass = inputs(50, Case("", "bfloat16", 2, 2, 4, 1, 1301, 64))
    own = [keys[None] for keys in asked.keys]
    whole = attention.Layers(
        [queries.reshape(1, 8, 1, 64) for queries in asked.queries],
        [mx.concatenate([keys, keys], axis=2) for keys in own],
        asked.position,
        1300,
        asked.scale,
    )
    rule, guard = Rule("nothing"), Guard(4, 8)
    step = attention.step(target, whole, rule, probe.MASS, {"mass": mass}, guard, (0.5,), then="exchange")
    return {"mass": step.written["mass"], "slot": step.slot, "next": cast(mx.array, step.next)}


def windows(target: str) -> dict[str, mx.array]:
    """A token for a row in three layers, whose latest five queries stand in one array."""
    asked, _ = inputs(51, Case("", "float16", 3, 2, 3, 5, 400, 48))
    queries = asked.queries.reshape(3, 6, 5, 48)
    keys = [mx.concatenate([own[None], own[None]], axis=2) for own in asked.keys]
    whole = attention.Layers([queries], keys, asked.position, 395, asked.scale)
    step = attention.step(target, whole, Rule("later"), LAST, {}, Guard(4, 5), then="exchange")
    return {"slot": step.slot, "next": cast(mx.array, step.next)}


def chosen(target: str, name: str) -> dict[str, mx.array]:
    """The row that goes of special scores, and the 500 that stay."""
    ranked, place = special()[name]
    slot = selection.victim(target, ranked, place)
    return {"slot": slot, "stay": selection.survivors(target, ranked, place, 500)}


def exchanged(target: str) -> dict[str, mx.array]:
    """One row for one that comes, and 60 of 700 rows dropped, in place and packed."""
    _, place = special()["infinities"]
    made = np.random.Generator(np.random.Philox(5))
    scores = mx.array(made.integers(0, 90, place.shape).astype(np.float32))
    column, guard = mx.array(made.random(place.shape, np.float32)), Guard(4, 8, ((40, 60),))
    one = selection.exchanged(target, scores, place, 700, guard)
    layer = selection.exchanged(target, scores / 7, place, 700, guard, LAST)
    found = {"slot": one.slot, "next": one.next, "layer's slot": layer.slot, "layer's next": layer.next}
    for in_place in (True, False):
        given = (target, scores, place, {"mass": column}, 640)
        many = selection.kept(*given, in_place=in_place, guard=guard, end=700)
        where = "in place" if in_place else "packed"
        found |= {f"{where} slots": many.slots, f"{where} position": many.position}
        found[f"{where} mass"] = many.columns["mass"]
    return found


def prompt(target: str) -> dict[str, mx.array]:
    """What a prompt's queries give to each row, from logits: two pieces, which add up in any order."""
    asked, _ = inputs(99, Case("", "float32", 2, 2, 3, 100, 300, 8))
    logits = mx.array(np.random.Generator(np.random.Philox(6)).normal(size=(2, 2, 3, 100, 300), scale=3.0))
    rules = {"mass": Rule("later", decay=0.99), "greatest": Rule("itself", group="max", queries="max")}
    logits = logits.astype(mx.float32)
    return {name: attention.mass(target, logits, asked, rule) for name, rule in rules.items()}


def of_keys(target: str) -> dict[str, mx.array]:
    """What keys say without queries."""
    rows, place, mean, covariance = known()
    logits, spared = keys.expected(target, rows, mean, covariance), keys.spared(target, rows, place, 0.5)
    return {"logits": logits, "spared": spared}


def turned(target: str, dtype: mx.Dtype, width: int) -> dict[str, mx.array]:
    """Rows gathered and turned, and rows turned where they lie; a quarter of the channels is not turned."""
    made = np.random.Generator(np.random.Philox(width))
    rows = made.standard_normal((2, 2, 150, width)).astype(np.float32)
    steps = made.integers(-5, 1024, (2, 2, 100)).astype(np.int32)
    slots = made.permuted(np.tile(np.arange(150, dtype=np.int32), (2, 2, 1)), axis=2)[..., :100]
    apart, pairs = width // 4, width // 2
    near, far = (made.random((count, pairs, 2), np.float32) for count in (turning.NEAR, 4))
    channels = made.permutation(width).reshape(2, pairs).astype(np.int32)
    near[:, : apart // 2], far[:, : apart // 2] = (1, 0), (1, 0)
    turns = turning.Turns(*map(mx.array, (channels, near, far)))
    given = (target, mx.array(rows).astype(dtype), mx.array(steps), turns)
    return {"gathered": turning.turned(*given, mx.array(slots)), "turned": turning.turned(*given)}


def replayed(target: str) -> dict[str, mx.array]:
    """Twenty tokens after eighty, one row for each; a method that observes, and one of a window."""
    made = np.random.Generator(np.random.Philox(7))
    place = mx.array(np.tile(np.arange(100, dtype=np.int32), (2, 2, 1)))
    mass, sinks = mx.array(made.random(place.shape, np.float32)), mx.array([0.5, -1.0, 2.0, 1.0])
    logits = mx.array(made.normal(size=(2, 2, 2, 24, 100), scale=3.0).astype(np.float32))
    guard, fading = Guard(2, 8, ((40, 50),)), [(0.9,)] * 20
    own = replaying.Tile(logits[..., 4:, :], place, {"mass": mass}, 20, 80, sinks)
    seen = replaying.replayed(target, own, Rule("nothing"), probe.MASS, guard, 84, 0, fading)
    old = Rule("newest", old=4, group="max", queries="max")
    late = replaying.Tile(logits, place, {}, 20, 80)
    window = replaying.replayed(target, late, old, LAST, guard, 84, 4, [()] * 20)
    return {"stay": seen.chosen, "mass": seen.columns["mass"], "window": window.chosen}


WORK: dict[str, Callable[[str], dict[str, mx.array]]] = {
    "small": probe.small,
    **{case.name: partial(attended, number=number) for number, case in enumerate(CASES)},
    **{name: partial(chosen, name=name) for name in special()},
    "layers": layers,
    "exchange": exchanged,
    "prompt": prompt,
    "keys alone": of_keys,
    "token by token": replayed,
    **{
        f"turned {dtype}": partial(turned, dtype=TYPES[dtype], width=width)
        for dtype, width in (("float32", 32), ("float16", 80), ("bfloat16", 256))
    },
    "layers' windows": windows,
}
"""Every case, by what it writes on a target."""


def computed(target: str, name: str) -> dict[str, Any]:
    """What a case writes, as numbers of NumPy."""
    return {key: shortened(_numbers(array)) for key, array in WORK[name](target).items()}


def _numbers(array: mx.array) -> Any:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def record(target: str, path: Path) -> None:
    """Write the bits of a target as those expected; the long rows as a sum of their bits."""
    np.savez_compressed(
        path, **{f"{name}/{key}": a for name in WORK for key, a in computed(target, name).items()}
    )


def shortened(array: Any) -> Any:
    """A long array as one number: the sum of its bits, each times its place."""
    if array.size <= 4096:
        return array
    bits = array.reshape(-1).view(f"u{array.itemsize}").astype(np.uint64)
    return np.array([(bits * (2 * np.arange(bits.size, dtype=np.uint64) + 1)).sum()])


def main(target: str) -> int:
    """Print what was found; 0 where every bit is equal."""
    wanted, different = probe.expected(), 0
    # a device's compiler takes seconds for each of many kernels, one after the other in one process
    with TemporaryDirectory() as folder, _processes(folder) as pool:
        for name, found in zip(WORK, pool.map(partial(computed, target), WORK), strict=True):
            said = probe.difference(name, found, wanted)
            different += bool(said)
            print(f"{target} {name}: {said or 'equal'}", flush=True)
    device = mx.device_info().get("device_name", "") if target != "host" else platform.processor()
    if target == "cuda":  # what only NVIDIA's GPUs have, near what it should be and not bit for bit
        near: dict[str, tuple[Callable[[str], float], float]] = {
            **{name: (partial(tensor.apart, case=case), tensor.ERROR) for name, case in tensor.CASES.items()},
            **{
                name: (partial(attending.apart, case=one), attending.ERROR)
                for name, one in attending.CASES.items()
            },
            **{name: (far, layered.ERROR) for name, far in layered.CASES.items()},
        }
        for name, (apart, allowed) in near.items():
            far = apart(target)
            different += not far <= allowed
            print(f"{target} {name}: {far:.1e} off, {allowed:.0e} allowed", flush=True)
    verdict = "DIFFERENT" if different else "EQUAL"
    print(f"{verdict}: {target}, {device}, mlx {version('mlx')}, {platform.platform()}")
    return int(different > 0)


def _processes(folder: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_apart, initargs=(folder,))


def _apart(folder: str) -> None:
    """What one process compiled for CUDA no other may read, or it might while it is written."""
    os.environ["MLX_PTX_CACHE_DIR"] = str(Path(folder, str(os.getpid())))


def here() -> str:
    """The target to try: the GPU of this machine, or the host's loops."""
    return "metal" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "host"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else here()))
