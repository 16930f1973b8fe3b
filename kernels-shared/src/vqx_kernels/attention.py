"""Attention of a few queries over the rows of a layer: what each row gained, and the row that goes.

MLX's fused attention returns no weights. Here the keys are read once where they lie, in their own dtype,
by many blocks where there are many rows; the reference is ``vqx.state.attention.Block``.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import mlx.core as mx

from vqx_kernels.bodies import ATTENTION, GAINED, PIECE, STRIDED, Body, Method, compose
from vqx_kernels.kernel import Run, laid_out, prepared
from vqx_kernels.small import Guard, floats, shares, sizes, starts

WHOLE = 1024
"""Rows up to which a GPU does all in one launch, a block a head; above, logits come from many blocks."""
SPAN = 256
"""Keys of a block where there are many; on CUDA up to four times as many, where there are blocks enough."""
CACHE = 3 * 2**23
"""Bytes that a GPU's second-level cache surely keeps of what its blocks read."""
RESIDENT = 512
"""Blocks that run there at once."""
ENOUGH = 2048
"""Blocks that keep every multiprocessor of a GPU at work."""
TOGETHER = 2**16
"""Logits of one head that a block still sums up by itself."""
MOST = 256
"""Queries of one head in a call: more are better served by a matrix product."""
IN_A_PIECE = 64
"""Queries of a prompt that a block sums up at most."""
FLOATS = (mx.float32, mx.float16, mx.bfloat16)
AT_ONCE = 8
"""Queries that a thread holds at a time, at most."""
ASKED = 2000
"""Numbers of them that a block of CUDA has room for beside its keys (``text/staged.h``)."""


class Asked(NamedTuple):
    """S queries of one layer against its n rows."""

    queries: mx.array  # [B, H, G, S, D], G query heads share one row
    keys: mx.array  # [B, H, n, D], float32, float16 or bfloat16
    position: mx.array  # [B, H, n] int32
    start: int | mx.array  # position of the first query; [B] int32 where sequences differ
    scale: float
    sinks: mx.array | None = None  # [H * G] logits that join the softmax's denominator


class Layers(NamedTuple):
    """S queries of each of L layers that are shaped alike, against their rows: L times B sequences."""

    queries: Sequence[mx.array]  # L arrays [B, H * G, S, D], or one of all layers, [L * B, H * G, S, D]
    keys: Sequence[mx.array]  # L arrays [B, H, capacity, D], of which the first n rows are read
    position: mx.array  # [L * B, H, n] int32
    start: int  # the first query's position
    scale: float
    sinks: None = None


class Rule(NamedTuple):
    """Which rows a query sees, and how several weights of a row become one."""

    hide: Literal["nothing", "later", "itself", "newest"] = "later"
    """Rows after the query's own, its own too, or the ``old`` newest rows of all."""
    old: int = 0
    group: Literal["mean", "max"] = "mean"
    queries: Literal["sum", "mean", "max"] = "sum"
    decay: float = 1.0  # multiplies what came before at each later query, where queries are summed
    fuse_logits: Literal["sum", "max"] | None = None


class Step(NamedTuple):
    """What one token leaves: the method's statistics, and the slot of the row that goes."""

    written: Mapping[str, mx.array]  # each [B, H, n] float32
    ranked: mx.array  # [B, H, n] float32, guarded scores
    slot: mx.array  # [B, H, 1] int32; where no row is chosen, of no rows
    next: mx.array | None = None
    """[B, H, n] int32: positions once the next token stands at the slot, where ``written`` is 0 by then.
    None: not asked for, or too many rows for one block."""


HIDE = {"nothing": 0, "later": 1, "itself": 2, "newest": 3}
FUSE = {None: 0, "sum": 1, "max": 2}


def fits(asked: Asked) -> bool:
    """Whether a kernel can serve these arrays: floats, a query group a row, not too many queries."""
    batch, heads, group, length, width = asked.queries.shape
    n = asked.keys.shape[2]
    right = asked.keys.shape == (batch, heads, n, width) and n > 0
    known = asked.keys.dtype in FLOATS and asked.queries.dtype in FLOATS
    return right and known and group * length <= MOST and width <= 512


def gained(target: str, asked: Asked | Layers, rule: Rule = Rule()) -> mx.array:  # noqa: B008
    """The weights of every row, fused over the group and the queries: ``[B, H, n]`` float32."""
    return _attend(target, asked, rule, GAINED, {}, (), None)["gained_out"]


def mass(target: str, logits: mx.array, asked: Asked, rule: Rule) -> mx.array:
    """The same of a prompt's many queries, whose ``logits`` ``[B, H, G, S, n]`` are there already.

    Pieces of the queries go to blocks of their own, and are added up after.
    """
    pieces = _attend(target, asked, rule, PIECE, {}, (), None, logits)["piece_out"]
    return mx.max(pieces, axis=2) if rule.queries == "max" else mx.sum(pieces, axis=2)


def step(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    method: Method,
    stats: Mapping[str, mx.array],
    guard: Guard,
    factors: Sequence[float | mx.array] = (),
    *,
    then: Literal["nothing", "choose", "exchange"] = "choose",
    whole: bool = False,
) -> Step:
    """Observe, score and choose at once: a method's own lines run where the weights are.

    Args:
        stats: what ``method.reads`` names, each ``[B, H, n]`` float32.
        factors: the method's own numbers, ``factors[1]`` on in its text.
        then: leave it at the scores, choose the row that goes, or also put the next token in its place.
        whole: position and statistics were written by kernels, so that they are known to lie row by row.
    """
    found = _attend(target, asked, rule, method, stats, factors, guard, then=then, whole=whole)
    written = {name: found[f"{name}_out"] for name in method.writes}
    slot = found["slot"] if then != "nothing" else _NONE
    return Step(written, found["ranked"], slot, found.get("next"))


def _attend(
    target: str,
    asked: Asked | Layers,
    rule: Rule,
    method: Method,
    stats: Mapping[str, mx.array],
    factors: Sequence[float | mx.array],
    guard: Guard | None,
    logits: mx.array | None = None,
    *,
    then: str = "nothing",
    whole: bool = False,
) -> dict[str, mx.array]:
    n, numbers = asked.position.shape[2], as_factors((asked.scale, *factors))
    arrays, shape, layers, place = asking(asked)
    held, length = [*arrays.values()], shape[3]
    arrays["position"] = asked.position
    arrays["starts"] = starts(asked.start, shape[0])
    arrays["sizes"] = sizes(n, rule.old, guard or _UNGUARDED, length, *place)
    arrays["factors"] = numbers
    arrays["shares"] = shares(length, rule.decay, rule.queries == "mean")
    arrays["sinks"] = numbers if asked.sinks is None else asked.sinks.astype(mx.float32)
    if logits is not None:
        arrays["logits"] = logits
    arrays.update(stats)
    kinds = held[0].dtype, held[-1].dtype
    several = len(asked.queries) if isinstance(asked, Layers) else 1
    how = (guard is not None, then, logits is not None, asked.sinks is not None, layers, several)
    for body, call in _launches(target, shape, n, kinds, rule, method, *how):
        inputs = [arrays[name] for name in body.reads] if whole else laid_out(target, body, arrays)
        arrays.update(zip(body.writes, call(inputs), strict=True))
    return arrays


def asking(
    asked: Asked | Layers,
) -> tuple[dict[str, mx.array], tuple[int, int, int, int, int], int, tuple[int, int]]:
    """Queries, then keys, by the names that a body has for them, and how they lie.

    Also the shape ``[B, H, G, S, D]``, how many layers there are, and of several a layer's lanes and room.
    """
    if not isinstance(asked, Layers):
        batch, heads, group, length, width = asked.queries.shape
        return {"queries": asked.queries, "keys": asked.keys}, (batch, heads, group, length, width), 1, (0, 0)
    one, heads, capacity, width = asked.keys[0].shape
    _, count, length, _ = asked.queries[0].shape
    layers = len(asked.keys)
    arrays = dict(zip(_names(len(asked.queries), layers), (*asked.queries, *asked.keys), strict=True))
    return arrays, (layers * one, heads, count // heads, length, width), layers, (one * heads, capacity)


@functools.cache
def _names(queries: int, keys: int) -> list[str]:
    return [f"{name}_{i}" for name, count in (("queries", queries), ("keys", keys)) for i in range(count)]


@functools.lru_cache(maxsize=1024)
def _launches(
    target: str,
    shape: tuple[int, ...],
    n: int,
    kinds: tuple[mx.Dtype, mx.Dtype],
    rule: Rule,
    method: Method,
    ranks: bool,
    then: str,
    given: bool,
    sinks: bool,
    layers: int,
    asked: int,
) -> list[tuple[Body, Run]]:
    """The launches for queries of a shape; a decode step asks for the same ones again and again."""
    batch, heads, group, length, width = shape
    queries = group * length
    count = length if rule.fuse_logits else queries
    turns = -(-queries // (max(min(AT_ONCE, ASKED // width), 1) if target == "cuda" else AT_ONCE))
    constants = {
        "D": width, "H": heads, "G": group, "QB": -(-queries // turns),
        "FUSE": FUSE[rule.fuse_logits], "HIDE": HIDE[rule.hide], "MAXG": int(rule.group == "max"),
        "MAXS": int(rule.queries == "max"), "SINKS": int(sinks), "ONE": int(length == 1),
        "PIECES": -(-length // IN_A_PIECE) if given else 1, "TOPS": 1,
    }  # fmt: skip
    if target != "host" and not rule.fuse_logits:
        # read twice, the second time from the cache: of as few queries as that takes, of as many as it allows
        room = CACHE // (4 * n * min(batch * heads, RESIDENT))
        constants["TOPS"] = min(group, 4 if room >= 4 else max(room // 2 * 2, 1))
    types = dict.fromkeys(("position", "starts", "sizes", "slot"), mx.int32)
    for name, kind in zip(STRIDED, kinds, strict=True):
        types.update(dict.fromkeys((name, *[f"{name}_{i}" for i in range(layers)]), kind))
    shapes: dict[str, tuple[tuple[int, ...], mx.Dtype]] = {
        "logits": ((batch, heads, group * length, n), mx.float32),
        "tops": ((batch, heads, count, 2), mx.float32),
        "ranked": ((batch, heads, n), mx.float32),
        "slot": ((batch, heads, 1) if layers == 1 else (batch, heads, 1, 1), mx.int32),
        "next": ((batch, heads, n), mx.int32),
        **{f"{name}_out": ((batch, heads, n), mx.float32) for name in method.writes},
        "piece_out": ((batch, heads, constants["PIECES"], n), mx.float32),
    }
    found = []
    for names, span, parts in _parts(
        target, batch * heads, n, queries, count, then, given, constants["PIECES"]
    ):
        body = compose(names, method, ranks=ranks, columns=method.writes, layers=layers, asked=asked)
        outputs = tuple(shapes[name] for name in body.writes)
        each = tuple(types.get(name, mx.float32) for name in body.reads)
        numbers = (*constants.items(), ("SPAN", span))
        call = prepared(target, body, each, numbers, rows=batch * heads, parts=parts, outputs=outputs)
        found.append((body, call))
    return found


_NONE = mx.zeros((0,), mx.int32)
_UNGUARDED = Guard()
CHOSEN = {"nothing": (), "choose": ("lowest",), "exchange": ("lowest", "exchanged")}


def _parts(
    target: str, rows: int, n: int, queries: int, count: int, then: str, given: bool, pieces: int
) -> list[tuple[tuple[str, ...], int, int]]:
    """(fragments, span, blocks a row) of each launch; how they are cut changes no bit."""
    chosen = CHOSEN[then]
    spans = -(-n // SPAN)
    if given:
        return [(("tops",), 1, count), (("columns",), SPAN, spans * pieces)]
    if target == "host" or n <= WHOLE:
        return [((*ATTENTION, *chosen), 0, 1)]
    wide = SPAN
    while target == "cuda" and wide < 4 * SPAN and rows * spans * SPAN >= 2 * wide * ENOUGH:
        wide *= 2  # what a block does once, it does for more keys
    first = [(("logits",), wide, -(-n // wide))]
    if n * queries <= TOGETHER:
        return [*first, (("tops", "columns", *chosen), 0, 1)]
    last = [(chosen[:1], 0, 1)] if chosen else []
    return [*first, (("tops",), 1, count), (("columns",), SPAN, spans), *last]


def as_factors(numbers: tuple[float | mx.array, ...]) -> mx.array:
    """Numbers as one array; one that the device alone knows, an array of one, stays there."""
    if mx.array not in map(type, numbers):
        return floats(numbers)
    return mx.concatenate([mx.array(number).astype(mx.float32).reshape(1) for number in numbers])
