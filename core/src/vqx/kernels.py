"""Kernels in the place of MLX operations, where a package offers them (entry points ``vqx.kernels``).

The operations beside which they stand remain the definition; what no kernel serves, they compute.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx

from vqx.scorers import Held, Method, Temperature

FLOATS = (mx.float32, mx.float16, mx.bfloat16)

Turns: TypeAlias = tuple[mx.array, mx.array, mx.array]
"""Which channels turn together ``[2, P]``, and cosine and sine of turns by t and by 256 t, ``[*, P, 2]``, or
flat."""


class Chosen(NamedTuple):
    """The row that goes for a token that comes; what a kernel found with it."""

    slot: mx.array  # [B, H, 1]
    position: mx.array | None = None
    """[B, H, n] once the token stands there; None: no kernel said."""
    columns: Mapping[str, mx.array] = {}
    """Statistics [B, H, n] that a kernel wrote: once the token stands there, if ``position`` says so."""


class Kept(NamedTuple):
    """The rows that stay, chosen by a kernel."""

    slots: mx.array  # as of ``vqx.eviction.freed``, or the rows that stay in the order in which they stood
    position: mx.array  # [B, H, keep]
    columns: Mapping[str, mx.array]  # each [B, H, keep]


@functools.cache
def offered() -> Any | None:
    """The module of kernels that is installed here, in the shape of ``vqx_kernels``; None: there is none."""
    found = sorted(entry_points(group="vqx.kernels"), key=lambda entry: entry.value)
    return found[0].load() if found else None


def target() -> str:
    """Where kernels run now: ``host``, ``metal`` or ``cuda``; ``reference`` where MLX operations do.

    Raises:
        ValueError: the environment's ``VQX_DEVICE`` names what cannot run here.
    """
    kernels = offered()
    return "reference" if kernels is None else str(kernels.choose().name)


def at_once() -> str:
    """As ``target``, for work that is waited for anyway: there the host's loops need not be asked for."""
    kernels = offered()
    return "reference" if kernels is None else str(kernels.choose_at_once().name)


def described() -> list[str]:
    """What runs here and why, in one line; then a line for each target.

    Raises:
        ValueError: as ``target``.
    """
    kernels = offered()
    if kernels is None:
        return ["none installed, MLX operations do their work (pip install vqx-kernels)"]
    return list(kernels.describe())


def attended(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array | None:
    """Attention of one query of each head, ``[B, H * G, 1, D]``, over all rows ``[B, H, n, *]``.

    Its sums are in an order of its own. None: no kernel serves these arrays here.
    """
    kernels = offered()
    if kernels is None or target() != "cuda":
        return None
    found: mx.array | None = kernels.attended("cuda", queries, keys, values, scale)
    return found


def gained(
    block: Any, *, itself: bool = True, old: int = 0, causal: bool = True, **fused: Any
) -> mx.array | None:
    """The weights of a ``vqx.state.attention.Block`` fused into one number a row, ``[B, H, n]`` float32.

    None where no kernel serves it: a host's own mask, logits that came from elsewhere, too many queries.
    """
    kernels, where = offered(), target()
    if kernels is None or where == "reference":
        return None
    asked = _asked(kernels, block)
    if asked is None or not kernels.fits(asked):
        return None
    asked, rule = _ruled(kernels, block, asked, itself=itself, old=old, causal=causal, **fused)
    found: mx.array = kernels.gained(where, asked, rule)
    return found


def mass(
    block: Any,
    logits: mx.array,
    first: int,
    last: int,
    *,
    itself: bool = True,
    decay: float = 1.0,
    **fused: Any,
) -> mx.array | None:
    """What queries ``first`` to ``last`` of a prompt give to each row, ``[B, H, n]``, from their logits.

    ``logits`` ``[B, H, G, s, n]`` come from a matrix product. None: no kernel of a GPU serves it.
    """
    kernels, where = offered(), target()
    asked = None if kernels is None or where not in ("metal", "cuda") else _asked(kernels, block)
    if kernels is None or asked is None:
        return None
    asked = asked._replace(queries=block.queries[..., first:last, :], start=asked.start + first)
    asked, rule = _ruled(kernels, block, asked, itself=itself, decay=decay, **fused)
    found: mx.array = kernels.mass(where, logits, asked, rule)
    return found * decay ** (block.length - last) if decay != 1.0 else found


def prompt_mass(
    block: Any,
    *,
    itself: bool = True,
    decay: float = 1.0,
    temperature: Temperature | None = None,
    noise: mx.array | None = None,
) -> mx.array | None:
    """As ``mass`` of a whole block's queries, and no logits anywhere; None: no tensor cores serve it."""
    kernels, where = offered(), target()
    if kernels is None or where != "cuda" or not block.ordered:
        return None
    divisor = 1.0 if temperature is None else block.divisor(temperature)
    if divisor is None:
        return None
    asked = _asked(kernels, block)
    if asked is None or not kernels.serves(where, asked):
        return None
    asked, rule = _ruled(kernels, block, asked, itself=itself, decay=decay)
    found: mx.array = kernels.prompt_mass(where, asked, rule, noise=noise, temperature=divisor)
    return found


def observed(
    method: Method, stats: Mapping[str, mx.array], block: Any
) -> tuple[Mapping[str, mx.array], mx.array] | None:
    """Observe a prompt's queries by tensor cores, and score the rows: (statistics, scores ``[B, H, n]``).

    None: they do not serve it, or the method has no lines of its own for them.
    """
    kernels = _own_lines(method, block.generated) if block.ordered and block.length > 1 else None
    asked = None if kernels is None or target() != "cuda" else _asked(kernels, block)
    if kernels is None or asked is None or not kernels.serves("cuda", asked):
        return None
    found = _observed(kernels, method, stats, block, asked, block.generated)
    return {**stats, **found.written}, found.score


def _own_lines(method: Method, generated: Any) -> Any | None:
    """The kernels, if they have the method's own lines for several queries at once."""
    scorer, kernel = method.scorer, method.scorer.kernel
    if kernel is None or kernel.layer or kernel.lines.adjust != "(logit)" or not isinstance(generated, int):
        return None
    own = kernel.stands_for == (scorer.score, scorer.observe) and scorer.observe is not None
    return offered() if own else None


def _observed(
    kernels: Any, method: Method, stats: Mapping[str, mx.array], block: Any, asked: Any, generated: int
) -> Any:
    kernel: Any = method.scorer.kernel
    asked, rule = _ruled(kernels, block, asked, **kernel.rule)
    factors = kernel.factors(block.start + block.length - 1, generated, block.length)
    return kernels.observed("cuda", asked, rule, kernel.lines, stats, factors)


def averaged(block: Any, **how: Any) -> mx.array | None:
    """As ``vqx.scorers.Attention.fused`` of a prompt's latest queries; None: no tensor cores serve it."""
    kernels = offered()
    asked = None if kernels is None or target() != "cuda" else _asked(kernels, block)
    if kernels is None or asked is None or not _averages(kernels, block, asked, **how):
        return None
    return _averaged(kernels, block, asked)


def _averages(
    kernels: Any,
    block: Any,
    asked: Any,
    *,
    group: str,
    queries: str,
    old: int = 0,
    fuse_logits: str | None = None,
    causal: bool = True,
) -> bool:
    means = group == queries == "mean" and not old and not fuse_logits and causal
    several = means and block.ordered and block.length > 1 and target() == "cuda"
    return several and bool(kernels.serves("cuda", asked))


def _averaged(kernels: Any, block: Any, asked: Any) -> mx.array:
    asked, rule = _ruled(kernels, block, asked)
    found: mx.array = kernels.prompt_mass("cuda", asked, rule) / block.length
    return found


def step(method: Method, stats: Mapping[str, Any], block: Any, *, whole: bool = False) -> Chosen | None:
    """Observe the queries of a block, score its rows, choose the one that goes, and put the next token there.

    ``whole``: kernels wrote the positions and statistics. None: no kernel serves the method or the block.
    """
    done = _stepped(method, stats, block, then="exchange", whole=whole)
    return None if done is None else Chosen(done.slot, done.next, done.written)


class Layers(NamedTuple):
    """S queries of each of L layers of one method, against their rows: L times B sequences of one layer."""

    queries: Sequence[mx.array]
    """L arrays [B, H * G, S, D], or one of all, [L * B, H * G, S, D]; none where nobody asks."""
    keys: Sequence[mx.array]  # L arrays [B, H, capacity, D], of which the first n rows are filled
    position: mx.array  # [L * B, H, n] int32
    start: int | tuple[int, ...]  # the first query's position, of each of B sequences where they differ
    scale: float
    generated: int | tuple[int, ...]  # tokens generated before it
    ordered: bool = False  # the queries' own rows are the last ones, in their order
    padded: bool = False  # some rows are nobody's: they stand at a position that no query sees

    @property
    def length(self) -> int:
        return self.queries[0].shape[2] if self.queries else 1

    @property
    def first(self) -> Any:
        """``start`` as kernels take it: ``[L * B]`` int32 where sequences differ."""
        return self.start if isinstance(self.start, int) else _each(self.start, len(self.keys), 0)

    @property
    def end(self) -> Any:
        """The position behind the last query's, so."""
        start, length = self.start, self.length
        return start + length if isinstance(start, int) else _each(start, len(self.keys), length)

    @property
    def asked(self) -> tuple[Any, ...]:
        """What the kernels' own ``Layers`` are made of."""
        return self.queries, self.keys, self.position, self.first, self.scale


@functools.lru_cache(maxsize=4)
def _each(numbers: tuple[int, ...], layers: int, more: int) -> mx.array:
    """Numbers of B sequences in each of L layers, and so many more: ``[L * B]`` int32."""
    return mx.array([number + more for number in numbers] * layers, mx.int32)


def _stands(number: Any) -> Any:
    """A number of each sequence as it stands beside rows: ``[L * B, 1, 1]``."""
    return number.reshape(-1, 1, 1) if isinstance(number, mx.array) else number


def together(method: Method, stats: Mapping[str, mx.array], layers: Layers) -> Chosen | None:
    """As ``step`` for the next token of several layers, in one launch or two: ``slot`` is [L * B, H, 1, 1].

    None: no kernel serves the method so. Metal hands a launch 31 arrays at most, so it serves no layers.
    """
    end = layers.end
    chosen = _over_heads(method, stats, layers, end)
    found = _together(method, stats, layers, "exchange") if chosen is None else None
    if isinstance(found, mx.array):
        chosen = exchange(method, found, layers.position, end)
    if chosen is not None:
        return chosen._replace(slot=chosen.slot[..., None])
    return None if found is None else Chosen(found.slot, found.next, found.written)


def kept_together(method: Method, stats: Mapping[str, mx.array], layers: Layers, keep: int) -> Kept | None:
    """As ``kept`` in place for several layers, whose queries are observed before; None as of ``together``."""
    end = layers.end
    if multiplied(method, layers, layers.length):
        return _multiplied(method, stats, layers, keep)
    found = seen_together(method, stats, layers)
    if found is None:
        return None
    guard = None if found.guarded else method
    return kept(guard, found.score, layers.position, found.columns, keep, end=end, in_place=True)


class Judged(NamedTuple):
    """The rows of several layers once their queries were observed."""

    columns: Mapping[str, mx.array]  # statistics, each [L * B, H, n]
    score: mx.array  # [L * B, H, n] float32
    guarded: bool  # whether what no score can evict stands above all scores


def seen_together(method: Method, stats: Mapping[str, mx.array], layers: Layers) -> Judged | None:
    """Observe the queries of several layers, and score their rows; None as of ``together``."""
    found = _together(method, stats, layers, "nothing")
    if found is None or isinstance(found, mx.array):
        return None if found is None else Judged(stats, found, False)
    return Judged({**stats, **found.written}, found.ranked, True)


def settled(
    method: Method, stats: Mapping[str, mx.array], layers: Layers, keep: int, most: int
) -> Kept | None:
    """As ``kept`` for several layers, whose scores look at these queries; None as of ``together``.

    No more than ``most`` logits are held at once, but for those of two layers, or three.
    """
    scorer, sight, end = method.scorer, _Sight(layers, most), layers.end
    if target() not in ("cuda", "host") or (layers.queries and not _fits(layers)):
        return None
    try:
        held = Held(stats, layers.position, end - 1, sight.read, last=sight if layers.queries else None)
        score = mx.broadcast_to(mx.array(scorer.score(held)), layers.position.shape)
    except Apart:
        return None
    return kept(method, score, layers.position, stats, keep, end=end, in_place=False)


def _fits(layers: Layers) -> bool:
    """Whether kernels take the arrays of each of these layers."""
    kernels, queries, keys = offered(), layers.queries[0], layers.keys[0]
    batch, heads, *_ = keys.shape
    grouped = _Shaped((batch, heads, queries.shape[1] // heads, *queries.shape[2:]), queries.dtype)
    asked = (grouped, keys, layers.position, layers.start, layers.scale)
    return kernels is not None and bool(kernels.fits(kernels.Asked(*asked)))


class _Shaped(NamedTuple):
    """How an array would lie that nobody makes."""

    shape: tuple[int, ...]
    dtype: mx.Dtype


def multiplied(method: Method, layers: Layers, count: int) -> bool:
    """Whether tensor cores sum up what ``count`` queries of each layer give to rows, and no logits are there.

    Their hardware adds in an order of its own, so scores have not the bits of other targets.
    """
    kernels = offered()
    return kernels is not None and _multiplied_at(kernels, method, kernels.Layers(*layers.asked), count)


def _multiplied_at(kernels: Any, method: Method, asked: Any, count: int) -> bool:
    where, sums = target(), method.scorer.observe is not None
    return where == "cuda" and sums and count > 1 and bool(kernels.serves(where, asked))


def _multiplied(method: Method, stats: Mapping[str, mx.array], layers: Layers, keep: int) -> Kept | None:
    """As ``kept_together`` by tensor cores and operations; None: the method asks for more than a mass."""
    scorer, sight, end = method.scorer, _Sight(layers), layers.end
    if scorer.observe is None or scorer.window:
        return None
    own = _own_lines(method, layers.generated)
    if own is not None and isinstance(layers.generated, int):
        asked = own.Layers(*layers.asked)
        found = _observed(own, method, stats, sight, asked, layers.generated)
        stats = {**stats, **found.written}
        return kept(method, found.score, layers.position, stats, keep, end=end, in_place=True)
    try:
        stats = scorer.observe(stats, sight)
        score = scorer.score(Held(stats, layers.position, end - 1, sight.read))
    except Apart:
        return None
    score = mx.broadcast_to(mx.array(score), layers.position.shape)
    return kept(method, score, layers.position, stats, keep, end=end, in_place=True)


def _together(method: Method, stats: Mapping[str, mx.array], layers: Layers, then: str) -> Any | None:
    """What a method's own lines give for several layers, or scores ``[L * B, H, n]``; None: neither."""
    scorer, kernels, where = method.scorer, offered(), target()
    if kernels is None or where not in ("cuda", "host"):
        return None
    kernel, sight = scorer.kernel, _Sight(layers)
    own = kernel is not None and not kernel.layer and kernel.stands_for == (scorer.score, scorer.observe)
    if kernel is not None and own:
        if layers.length > 1 and kernel.lines.adjust != "(logit)":
            return None  # it changes logits by numbers that differ from token to token
        asked = kernels.Layers(*layers.asked)
        asked, rule = _ruled(kernels, sight, asked, padded=layers.padded, **kernel.rule)
        factors = _numbers(kernel.factors, layers)
        if factors is None:
            return None
        guard = _guard(kernels, method)
        return kernels.step(where, asked, rule, kernel.lines, stats, guard, factors, then=then, whole=True)
    if stats or scorer.observe is not None:
        return None
    try:
        held = Held({}, layers.position, _stands(layers.end) - 1, sight.read, last=sight)
        score = mx.broadcast_to(mx.array(scorer.score(held)), layers.position.shape)
    except Apart:
        return None
    return score.astype(mx.float32)


def _numbers(factors: Callable[..., tuple[Any, ...]], layers: Layers) -> tuple[Any, ...] | None:
    """The numbers of a method's lines; None where those of one sequence are not the others'."""
    start, generated, length = layers.start, layers.generated, layers.length
    if isinstance(start, int) or isinstance(generated, int):
        return factors(layers.end - 1, generated, length)
    return _agreed([factors(at + length - 1, n, length) for at, n in zip(start, generated, strict=True)])


def _agreed(found: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    known = mx.array not in map(type, found[0])
    return found[0] if known and all(each == found[0] for each in found) else None


def agree(method: Method, seen: Sequence[int], generated: Sequence[int], count: int) -> bool:
    """Whether the numbers of a method's lines are now the same for every sequence of a batch.

    ``seen`` and ``generated`` are tokens of each, the latest ``count`` among them, which are looked at.
    """
    kernel = method.scorer.kernel
    if kernel is None:
        return True
    each = [kernel.factors(at - 1, max(n - count, 0), count) for at, n in zip(seen, generated, strict=True)]
    return _agreed(each) is not None


def _over_heads(method: Method, stats: Mapping[str, Any], layers: Layers, end: int) -> Chosen | None:
    """The row that goes where all heads of a layer rank together, by the mean of what they gave to a row."""
    scorer, kernel = method.scorer, method.scorer.kernel
    if kernel is None or not kernel.layer:
        return None
    kernels, where = offered(), target()
    if kernels is None or where not in ("cuda", "host"):
        return None
    if stats or kernel.lines.reads or kernel.stands_for != (scorer.score, scorer.observe):
        return None
    asked, rule = _ruled(kernels, _Sight(layers), kernels.Layers(*layers.asked), **kernel.rule)
    each, guard = kernels.gained(where, asked, rule), _guard(kernels, method)
    return Chosen(*kernels.exchanged(where, each, layers.position, end, guard, method=kernel.lines))


def sightings(position: mx.array, start: Any, length: int, *, itself: bool) -> mx.array:
    """As of ``vqx.scorers.Attention``, of so many queries one after another from ``start`` on."""
    first = position if itself else mx.where(position == 0, 0, position + 1)
    return mx.minimum(start + length - first, length).astype(mx.float32)


class Apart(Exception):
    """A score asked for what layers have not together."""


class _Sight:
    """What kernels know of the attention of several layers' latest queries: ``vqx.scorers.Attention``."""

    def __init__(self, layers: Layers, most: int | None = None) -> None:
        self.most = most  # logits that are held at once, if it is bounded
        self.layers, self.position, self.start = layers, layers.position, _stands(layers.first)
        self.length, self.mask, self.ordered = layers.length, "causal", layers.ordered

    def fused(self, *, group: Any = "mean", queries: Any = "mean", old: int = 0, **how: Any) -> Any:
        kernels = offered()
        if kernels is None or not self.layers.queries:
            raise Apart
        asked = kernels.Layers(*self.layers.asked)
        if _averages(kernels, self, asked, old=old, group=group, queries=queries, **how):
            return _averaged(kernels, self, asked)
        how |= {"old": old, "group": group, "queries": queries, "padded": self.layers.padded}
        asked, rule = _ruled(kernels, self, asked, **how)
        count, found = len(asked.keys), list[mx.array]()
        each = asked.queries[0].size // asked.queries[0].shape[-1] * self.position.shape[2]
        some = count if self.most is None else max(self.most // each, 2)
        lanes = self.position.shape[0] // count
        ends = [*range(some, count - 1, some), count]
        for first, last in zip([0, *ends], ends, strict=False):
            own = [*asked.queries[first:last]]
            if found:  # one after another
                own[0] = mx.depends([own[0]], [found[-1]])[0]
            position = self.position[first * lanes : last * lanes] if len(ends) > 1 else self.position
            part = asked._replace(queries=own, keys=asked.keys[first:last], position=position)
            found.append(kernels.gained(target(), part, rule))
        return found[0] if len(found) == 1 else mx.concatenate(found)

    def mass(
        self, *, decay: float = 1.0, itself: bool = True, temperature: Any = None, noise: Any = None
    ) -> Any:
        kernels = offered()
        if kernels is None or temperature is not None or noise is not None:
            raise Apart
        asked, rule = _ruled(kernels, self, kernels.Layers(*self.layers.asked), itself=itself, decay=decay)
        return kernels.prompt_mass(target(), asked, rule)

    def sightings(self, *, itself: bool = True) -> mx.array:
        return sightings(self.position, self.start, self.length, itself=itself)

    def read(self, *_: Any, **__: Any) -> Any:
        raise Apart

    weights = read


def ranked(
    method: Method, stats: Mapping[str, Any], block: Any
) -> tuple[Mapping[str, mx.array], mx.array] | None:
    """Observe a block's queries and score its rows: (statistics, guarded scores); None as of ``step``."""
    done = _stepped(method, stats, block, then="nothing")
    return None if done is None else ({**stats, **done.written}, done.ranked)


def _stepped(method: Method, stats: Mapping[str, Any], block: Any, **how: Any) -> Any | None:
    scorer, kernels, where = method.scorer, offered(), target()
    kernel = scorer.kernel
    if kernels is None or where == "reference" or kernel is None or block is None:
        return None
    asked, length = _asked(kernels, block), block.length
    if kernel.stands_for != (scorer.score, scorer.observe) or asked is None or not kernels.fits(asked):
        return None
    if kernel.layer:
        return None  # a block has one head's rows, and not the mean over all heads
    if not isinstance(block.generated, int):
        return None  # the sequences of a batch differ
    if length > 1 and kernel.lines.adjust != "(logit)":
        return None  # it changes logits by numbers that differ from token to token
    if block.ordered and _multiplied_at(kernels, method, asked, length):
        return None
    asked, rule = _ruled(kernels, block, asked, **kernel.rule)
    factors = kernel.factors(block.start + length - 1, block.generated, length)
    if mx.array in map(type, factors) and any(isinstance(f, mx.array) and f.size > 1 for f in factors):
        return None
    return kernels.step(where, asked, rule, kernel.lines, stats, _guard(kernels, method), factors, **how)


def replayed(
    method: Method,
    logits: Callable[[], mx.array],
    position: mx.array,
    columns: Mapping[str, mx.array],
    *,
    new: int,
    earlier: int,
    start: int,
    sinks: mx.array | None,
) -> tuple[mx.array, Mapping[str, mx.array]] | None:
    """Token cadence over a tile: (the candidates that stay, oldest first ``[B, H, m]``, their columns).

    Args:
        logits: makes the scaled ones of ``earlier`` queries and the ``new`` tokens', ``[B, H, G, Q, M]``.
        position: of the M candidates, the new tokens' rows last: ``[B, H, M]``.
        start: the first new token's position.

    None: no kernel serves the method here, or too few queries are known where the first row goes.
    """
    scorer, kernels, kernel = method.scorer, offered(), method.scorer.kernel
    if kernels is None or kernel is None or kernel.stands_for != (scorer.score, scorer.observe):
        return None
    where, held, window = at_once(), position.shape[2] - new, scorer.window
    seen = earlier + max(method.budget - held, 0) + 1  # queries known where the first row goes
    if where == "reference" or held > method.budget or seen < window or (kernel.layer and columns):
        return None
    if any(column.dtype != mx.float32 for column in columns.values()):
        return None
    rule = dict(kernel.rule)
    old, causal = rule.pop("old", 0), rule.pop("causal", True) and window > 1
    hide = "newest" if old else "itself" if not rule.pop("itself", True) else "later" if causal else "nothing"
    rule.pop("decay", None)  # a factor of the method's own lines, where one query is seen at a time
    given, heads = logits(), position.shape[1]
    if kernel.layer:
        given = given.reshape(given.shape[0], 1, -1, *given.shape[3:])
        position = position[:, :1]
    tile = kernels.Tile(given, position, columns, new, start, None if old else sinks)
    factors = _factors(kernel.factors, start, new)
    guard = _guard(kernels, method)
    ruled = kernels.Rule(hide=hide, old=old, **rule)
    found = kernels.replayed(where, tile, ruled, kernel.lines, guard, method.budget, window, factors)
    stay = mx.broadcast_to(found.chosen, (found.chosen.shape[0], heads, found.chosen.shape[2]))
    return stay, found.columns


@functools.lru_cache(maxsize=64)
def _factors(each: Callable[..., tuple[float, ...]], start: int, new: int) -> tuple[tuple[float, ...], ...]:
    """The numbers of a method's lines at each token of a prompt."""
    return tuple([each(start + token, 0, 1) for token in range(new)])


def exchange(method: Method, score: mx.array, position: mx.array, end: int) -> Chosen | None:
    """As ``step`` for scores ``[B, H, n]``, before the token at ``end``; None: no kernel here."""
    kernels, where = offered(), target()
    if kernels is None or where == "reference":
        return None
    found = kernels.exchanged(where, score.astype(mx.float32), position, end, _guard(kernels, method))
    return Chosen(found.slot, found.next)


def kept(
    method: Method | None,
    score: mx.array,
    position: mx.array,
    columns: Mapping[str, mx.array],
    keep: int,
    *,
    end: int | mx.array = 0,
    in_place: bool,
) -> Kept | None:
    """The ``keep`` rows that stay and what goes with them; None: no kernel here.

    Args:
        method: whose guard stands above the scores, before the token at ``end``; None: they are guarded.
        score: ``[B, H, n]``.
        in_place: whether they stay where they are, as of ``eviction.freed``.
        end: ``[B]`` int32 where sequences differ.
    """
    kernels, where = offered(), target()
    right = all(column.dtype == mx.float32 for column in columns.values())
    if kernels is None or where == "reference" or not right or not 0 < keep < position.shape[2]:
        return None
    guard = None if method is None else _guard(kernels, method)
    score = score.astype(mx.float32)
    found = kernels.kept(where, score, position, columns, keep, in_place=in_place, guard=guard, end=end)
    return Kept(*found)


@functools.cache
def _made(kernels: Any, n_sink: int, recent: int, spans: tuple[tuple[int, int], ...]) -> Any:
    return kernels.Guard(n_sink, recent, spans)


def _guard(kernels: Any, method: Method) -> Any:
    return _made(kernels, method.n_sink, method.recent, method.spans)


def lowest(score: mx.array, position: mx.array) -> mx.array | None:
    """The slot of the lowest score, of the oldest row among equals: ``[B, H, 1]``; None: no kernel here."""
    kernels, where = offered(), target()
    if kernels is None or where == "reference":
        return None
    found: mx.array = kernels.victim(where, score, position)
    return found


def highest(score: mx.array, position: mx.array, keep: int) -> mx.array | None:
    """As ``vqx.ranking.top`` for guarded scores ``[B, H, n]``; None: no kernel here."""
    kernels, where = offered(), target()
    if kernels is None or where == "reference" or not 0 < keep < score.shape[2]:
        return None
    found: mx.array = kernels.survivors(where, score, position, keep)
    return found


def gathered(arrays: Sequence[mx.array], each: int, first: int, count: int) -> list[mx.array] | None:
    """Rows ``first`` to ``first + count`` of arrays ``[B, H, N, D]``, those of ``each`` put together.

    One array ``[B, H, each * count, D]`` for ``each`` of them. None: no kernel does it here, or for so many.
    """
    kernels = offered()
    if kernels is None or target() != "cuda" or each > kernels.ARRAYS:
        return None
    found: list[mx.array] = kernels.gathered("cuda", arrays, each, first, count)
    return found


def joined(arrays: Sequence[mx.array]) -> mx.array:
    """Arrays ``[B, H, ...]`` of layers made alike, side by side: ``[L * B, H, ...]``."""
    kernels = offered()
    if kernels is None or target() != "cuda" or len(arrays) > kernels.ARRAYS:
        return mx.concatenate([*arrays])
    found: mx.array = kernels.joined("cuda", arrays)
    return found


def picked(
    keys: Sequence[mx.array], values: Sequence[mx.array], slots: mx.array, capacity: int
) -> tuple[list[mx.array], list[mx.array]] | None:
    """The rows of L layers, ``[B, H, N, D]`` and ``[B, H, N, Dv]`` each, at ``slots`` ``[L * B, H, m]``.

    They stand first in arrays ``[B, H, capacity, *]``, and zeros behind them: attention may multiply what it
    masks. None: no kernel does it here, or for so many.
    """
    kernels, number = offered(), len(keys)
    if kernels is None or target() != "cuda" or 4 * number > kernels.ARRAYS:
        return None
    slots = slots.astype(mx.int32)
    alike = (keys[0].shape, keys[0].dtype) == (values[0].shape, values[0].dtype)
    found: list[mx.array] = []
    for arrays in [[*keys, *values]] if alike else [keys, values]:
        found += kernels.picked("cuda", arrays, slots, capacity)
    return found[:number], found[number:]


def nans(arrays: Sequence[mx.array], first: int, count: int) -> list[mx.array]:
    """Whether rows ``first`` to ``first + count`` of arrays made alike, ``[B, H, N, D]``, hold NaN.

    ``[1]`` booleans of each; of all in one launch, where ``looks`` says that there is one.
    """
    kernels = offered()
    if kernels is None or not looks(arrays[0]):
        return [mx.any(mx.isnan(array[:, :, first : first + count])).reshape(1) for array in arrays]
    found: list[mx.array] = kernels.nans("cuda", arrays, first, count)
    return found


def looks(array: mx.array) -> bool:
    """Whether one launch would look for NaN in many arrays of this one's type."""
    return target() == "cuda" and array.dtype in FLOATS


def turned(
    keys: mx.array, steps: mx.array, turns: Callable[[], Turns], *, whole: bool = False
) -> mx.array | None:
    """Keys ``[B, H, n, D]`` turned back by ``steps`` ``[B, H, n]``, none of which ``turns`` lacks.

    ``whole``: the steps are known to lie row by row. None: no kernel that serves it runs here.
    """
    where = target()
    kernels = _of_keys(keys, where)
    if kernels is None:
        return None
    found: mx.array = kernels.turned(where, keys, steps, kernels.Turns(*turns()), whole=whole)
    return found


def turned_together(
    keys: Sequence[mx.array], steps: mx.array, turns: Callable[[], Turns]
) -> list[mx.array] | None:
    """The same for layers made alike, L arrays ``[B, H, capacity, D]`` and steps ``[L * B, H, n]``."""
    where = target()
    kernels = _of_keys(keys[0], where)
    if kernels is None:
        return None
    found: list[mx.array] = kernels.turned_together(where, keys, steps, kernels.Turns(*turns()))
    return found


def expected(keys: mx.array, mean: mx.array, covariance: mx.array) -> mx.array | None:
    """As ``vqx.expectation.expected_logits``; None: the host's loops, which serve it, do not run here."""
    if target() != "host":  # on an H200, in groups of 4: 1.4 to 1.0 times at D = 64, 0.7 at D = 128
        return None
    kernels = _of_keys(keys, "host")
    found: mx.array | None = None if kernels is None else kernels.expected("host", keys, mean, covariance)
    return found


def spared(rows: Any, position: Any, threshold: float) -> mx.array | None:
    """The cosines that each row ``[B, H, n, D]`` of norm 1 is not held to account for: ``[B, H, n]`` float32.

    They are those with rows of which it is the newest that they repeat (a cosine above ``threshold``). None:
    no kernel that serves it runs here.
    """
    where = target()
    kernels = _of_keys(rows, where)
    found: mx.array | None = None if kernels is None else kernels.spared(where, rows, position, threshold)
    return found


def _of_keys(keys: Any, where: str) -> Any | None:
    """The kernels of keys alone, where they were timed: as loops, and on CUDA."""
    if where not in ("host", "cuda") or not isinstance(keys, mx.array) or keys.dtype not in FLOATS:
        return None
    *_, n, width = keys.shape
    return offered() if n and 0 < width <= 512 else None


def _ruled(
    kernels: Any,
    block: Any,
    asked: Any,
    *,
    itself: bool = True,
    old: int = 0,
    causal: bool = True,
    padded: bool = False,
    **fused: Any,
) -> tuple[Any, Any]:
    """The arrays, and which rows each query sees."""
    hide = "newest" if old else "itself" if not itself else "later"
    if hide == "later" and not padded and (block.length == 1 or not causal or block.mask is None):
        hide = "nothing"
    if old:
        asked = asked._replace(sinks=None)  # a learned sink is no row, and takes no share
    return asked, kernels.Rule(hide=hide, old=old, **fused)


def _asked(kernels: Any, block: Any) -> Any | None:
    """The arrays of a block as a kernel takes them."""
    plain = block.mask is None or isinstance(block.mask, str)
    if block.keys is None or block.elsewhere or block.later or not plain:
        return None
    start = block.start if isinstance(block.start, int) else block.start.reshape(-1)
    return kernels.Asked(block.queries, block.keys, block.position, start, block.scale, block.sinks)
