"""The bodies of kernels: which fragments make one, what each reads and writes, and its text per target.

A body is written once (``text/*.vqx``). A target adds a header that says what a block, a sum or a shared
array is there, and nothing else, so there is one text to test.
"""

import functools
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple


class Method(NamedTuple):
    """A method's own lines: what becomes of a row when it gained, and by what it is ranked.

    The text stands inside the loop over rows: ``at`` is the row's place in every ``[B, H, n]`` array,
    ``gained`` its fused weight; it writes ``NAME_out[at]``, and sets ``score`` if it ranks.
    """

    name: str
    text: str  # C with `at`, `gained`, the arrays and `factors[1:]`
    reads: tuple[str, ...] = ()  # float32 arrays [B, H, n]
    writes: tuple[str, ...] = ()  # float32 arrays [B, H, n], each named as an array read, or new
    adjust: str = "(logit)"  # a logit before the softmax, in `logit` and `at`


class Fragment(NamedTuple):
    """A part of a body: a file ``text/NAME.vqx``, and the arrays that it reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


FRAGMENTS = {
    "logits": Fragment(("queries", "keys", "sizes", "factors"), ("logits",)),
    "tops": Fragment(("logits", "position", "sizes", "factors", "starts", "sinks"), ("tops",)),
    "columns": Fragment(("logits", "tops", "position", "sizes", "factors", "starts", "shares"), ()),
    "lowest": Fragment(("ranked", "position", "sizes"), ("slot",)),
    "guarded": Fragment(("scores", "position", "sizes", "starts"), ("ranked",)),
    "exchanged": Fragment(("slot", "position", "sizes", "starts"), ("next",)),
    "survivors": Fragment(("ranked", "position", "sizes"), ("stay",)),
    "moved": Fragment(("stay", "position", "sizes"), ("vacant", "slots", "kept")),
    "packed": Fragment(("stay", "position", "sizes"), ("slots", "kept")),
    "expected": Fragment(("keys", "mean", "covariance", "sizes"), ("expected",)),
    "repeats": Fragment(("keys", "position", "sizes", "factors"), ("newest", "product")),
    "turned": Fragment(("keys", "slots", "steps", "sizes", "channels", "near", "far"), ("turned",)),
    "gathered": Fragment(("sizes",), ("gathered",)),
    "picked": Fragment(("slots", "sizes"), ()),
    "nans": Fragment(("sizes",), ("nans",)),
    "spared": Fragment(("newest", "product", "sizes"), ("spared",)),
    "replayed": Fragment(
        ("products", "places", "sizes", "counts", "factors", "shares", "sinks"),
        ("logits", "tops", "ranked", "chosen", "position"),
    ),
    "bars": Fragment(("queries", "keys", "noise", "sinks", "factors", "sizes", "shares"), ("bars",)),
    "weighed": Fragment(("queries", "keys", "noise", "bars", "factors", "sizes"), ("piece",)),
    "summed": Fragment(("piece", "position", "sizes", "factors", "starts"), ()),
    "attended": Fragment(("queries", "keys", "values", "factors"), ("attended",)),
}
ATTENTION = ("logits", "tops", "columns")
TENSOR = ("bars", "weighed")
"""Fragments that multiply on tensor cores, which CUDA alone has."""
STRIDED = ("queries", "keys")
"""Arrays that a kernel reads where they lie; all others come row by row."""
SMALL = ("sizes", "factors", "starts", "shares", "sinks", "counts")
"""Arrays of a few numbers, mostly made once (``vqx_kernels.small``)."""


class Body(NamedTuple):
    """One kernel: fragments that run one after another in each block."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    text: str
    adjust: str
    inner: tuple[str, ...] = ()  # what it writes for itself alone, and the host does not hand out
    blocks: int = 0  # for tensor cores: that a multiprocessor shall have registers for at a time

    @property
    def strided(self) -> bool:
        return any(name in STRIDED for name in self.reads) or "rows_0_strides" in self.text

    @property
    def tensor(self) -> bool:
        return "bars" in (*self.reads, *self.writes)

    @property
    def bare(self) -> bool:
        """Whether it does without our loops: MLX goes through a text that no file holds at every call."""
        return self.name == "attended"

    def source(self, target: str) -> str:
        """What stands in the kernel's braces: where a block is, and the body."""
        if self.bare:
            return self.text
        return PROLOGUE["tensor" if self.tensor else target] + self.text

    def header(self, target: str) -> str:
        """What stands before the kernel."""
        if self.bare:
            return "".join(map(_text, ("cuda.h", "arithmetic.h", "copies.h", "mma.h", "attended.h")))
        adjust = f"#define VQX_ADJUST(logit, at) {self.adjust}\n"
        own: tuple[str, ...] = ("attention.h",)
        if self.tensor:
            adjust = f"#define VQX_BLOCKS {self.blocks}\n"
            own = ("copies.h", "mma.h", "tensor.h")
        elif target == "cuda" and "queries_strides" in self.text:
            own = ("copies.h", "staged.h", "attention.h")
        return "".join(map(_text, HEADERS[target])) + adjust + "".join(map(_text, own))

    def key(self, target: str, types: tuple[str, ...]) -> str:
        """Tells apart what a target compiles of bodies of one name, for arrays of these types."""
        whole = (self.header(target), self.source(target), *self.reads, *self.writes, *types)
        return hashlib.sha256("\0".join(whole).encode()).hexdigest()[:10]


HEADERS = {
    "metal": ("metal.h", "arithmetic.h", "gpu.h"),
    "cuda": ("cuda.h", "arithmetic.h", "gpu.h"),
    "host": ("host.h", "arithmetic.h", "loops.h"),
}
# MLX declares a thread's attribute only where its name occurs in the source, so they are spelled out here.
PROLOGUE = {
    "metal": """const vqx_u32 vqx_tid = thread_index_in_threadgroup;
const vqx_u32 vqx_lane = thread_index_in_simdgroup;
const vqx_u32 vqx_warp = simdgroup_index_in_threadgroup;
const int vqx_part = int(threadgroup_position_in_grid.x);
const int vqx_row = int(threadgroup_position_in_grid.y);
VQX_SCRATCH;
""",
    "cuda": """const vqx_u32 vqx_tid = threadIdx.x;
const vqx_u32 vqx_lane = threadIdx.x & 31u;
const vqx_u32 vqx_warp = threadIdx.x >> 5;
const int vqx_part = int(blockIdx.x);
const int vqx_row = int(blockIdx.y);
VQX_SCRATCH;
""",
    "host": "",
}
# A part of all rows, then the next: blocks start in the order of their numbers, the longest parts first.
PROLOGUE["tensor"] = (
    PROLOGUE["cuda"]
    .replace("int(blockIdx.x)", "int((blockIdx.y * gridDim.x + blockIdx.x) / gridDim.y)")
    .replace("int(blockIdx.y)", "int((blockIdx.y * gridDim.x + blockIdx.x) % gridDim.y)")
)
GAINED = Method("gained", "gained_out[at] = gained;", writes=("gained",))
"""No method: the fused weights themselves."""
PIECE = Method("piece", "piece_out[(size_t(vqx_row) * PIECES + piece) * n + i] = gained;", writes=("piece",))
"""The same of each piece of many queries."""


@functools.cache
def compose(
    names: tuple[str, ...],
    method: Method = GAINED,
    *,
    ranks: bool = False,
    columns: tuple[str, ...] = (),
    layers: int = 1,
    asked: int = 0,
    blocks: int = 0,
) -> Body:
    """The body of several fragments.

    Args:
        ranks: have a method's score guarded and written to ``ranked``.
        columns: names of statistics that go with the rows that stay.
        layers: whose queries and keys come in arrays of their own, ``queries_0``, ``keys_0`` and so on.
        asked: arrays of queries: one for each layer, or 1 for all of them.
        blocks: as ``Body`` has them.
    """
    reads: list[str] = []
    writes: list[str] = []
    texts = []
    guard = _text("guard.vqx") + ("next[at] = place;\n" if "exchanged" in names else "")
    for name in names:
        asks, gives = FRAGMENTS[name]
        text = _text(f"{name}.vqx")
        if name in ("logits", *TENSOR) and layers > 1:
            several = [f"queries_{i}" for i in range(asked or layers)] + [f"keys_{i}" for i in range(layers)]
            asks, text = (*several, *asks[2:]), _of_layers(text, layers, asked=asked)
        text = text.replace("TOP\n", _text("top.vqx")).replace("FUSED\n", _text("fused.vqx"))
        if name == "turned" and layers > 1:
            asks = (*(f"keys_{i}" for i in range(layers)), *asks[1:])
            gives = tuple(f"turned_{i}" for i in range(layers))
            text = _of_layers(text, layers, ("keys", "turned"))
        if name in ("gathered", "nans"):
            asks = (*(f"rows_{i}" for i in range(layers)), *asks)
            lies = "for (int k = 0; k < 4; k++) step[k] = rows_{0}_strides[k]; " if name == "nans" else ""
            cases = [f"case {i}: from = rows_{i}; {lies.format(i)}break;\n" for i in range(layers)]
            text = text.replace("FROM\n", "".join(cases))
        if name == "picked":
            asks = (*(f"rows_{i}" for i in range(layers)), *asks)
            gives = tuple(f"picked_{i}" for i in range(layers))
            each = "".join(f"case {i}: from = rows_{i}; to = picked_{i}; break;\n" for i in range(layers))
            text = text.replace("EACH\n", each)
        if name in ("tops", "columns"):
            asks += tuple(read for read in method.reads if read in method.adjust)
        if name == "replayed":
            method = _over_time(method)
            asks += tuple(f"{column}_held" for column in columns)
            gives += tuple(f"{column}_out" for column in columns)
            own = f"float score = gained;\n{method.text}\n" + _text("guard.vqx")
            arrives = "".join(f"{c}_out[at] = {c}_held[candidate];\n" for c in columns)
            text = text.replace("ARRIVES\n", arrives).replace("METHOD\n", own)
            text = text.replace("SPANS\n", _text("spans.vqx"))
        if name == "columns":
            asks += method.reads
            gives += tuple(f"{write}_out" for write in method.writes) + (("ranked",) if ranks else ())
            own = f"float score = gained;\n{method.text}\n{guard}"
            text = _read_ahead(text.replace("METHOD\n", own if ranks else method.text + "\n"), method.reads)
            text = text.replace("SPANS\n", _text("spans.vqx") if ranks else "")
        if name == "summed":
            asks += method.reads
            gives += (*(f"{write}_out" for write in method.writes), "score_out")
            text = _read_ahead(text.replace("METHOD\n", method.text + "\n"), method.reads)
        if name == "guarded":
            own = "" if method is GAINED else method.text + "\n"
            text = _read_ahead(text.replace("METHOD\n", own).replace("GUARD\n", guard))
            text = text.replace("SPANS\n", _text("spans.vqx"))
        if name == "exchanged":
            text = text.replace("COLUMNS\n", "".join(f"{w}_out[at] = 0.0f;\n" for w in columns))
        if name in ("moved", "packed"):
            asks += tuple(f"{column}_held" for column in columns)
            gives += tuple(f"{column}_kept" for column in columns)
            text = text.replace("COLUMNS\n", "".join(f"{c}_kept[to] = {c}_held[at];\n" for c in columns))
        reads += [ask for ask in dict.fromkeys(asks) if ask not in (*reads, *writes)]
        writes += gives
        texts.append(text)
    attends = "columns" in names or "replayed" in names
    name = "_".join((method.name, *names)) if attends or "summed" in names else "_".join(names)
    name = name if layers == 1 else f"{name}_{layers}"
    hidden = ("logits", "tops") if attends else ()
    if names[-1] in ("replayed", "exchanged", "moved", "packed"):  # which leave no score to be ranked by
        hidden = (*hidden, "ranked")
    inner = tuple(write for write in writes if write in hidden)
    return Body(name, tuple(reads), tuple(writes), "".join(texts), method.adjust, inner, blocks)


def _read_ahead(text: str, columns: tuple[str, ...] = ()) -> str:
    """What is read at `at`, read of several rows before any is written, as no compiler may do by itself.

    Small arrays' numbers too are read before.
    """
    before, _, text = text.partition("HOLDS\n")
    held = [name for name in (*columns, "position") if re.search(rf"\b{name}\[at\]", text)]
    small = sorted(set(re.findall(r"\b(sizes|factors)\[(\d+)\]", text)))
    for name in held:
        text = re.sub(rf"\b{name}\[at\]", f"vqx_{name}[u]", text)
    text = re.sub(r"\b(sizes|factors)\[(\d+)\]", r"vqx_\1_\2", text)
    kinds = {"position": "int", "sizes": "int"}
    room = "".join(f"{kinds.get(name, 'float')} vqx_{name}[many];\n" for name in held)
    room += "".join(f"const {kinds.get(a, 'float')} vqx_{a}_{k} = {a}[{k}];\n" for a, k in small)
    return before + room + text.replace("HELD\n", "".join(f"vqx_{c}[u] = {c}[at];\n" for c in held))


def _of_layers(text: str, layers: int, arrays: tuple[str, ...] = STRIDED, *, asked: int = 0) -> str:
    """A text for several layers, whose arrays lie row by row; sizes[6]: rows of one layer."""

    def own(array: str) -> str:
        if array == "queries" and asked == 1:
            before = "vqx_i64(vqx_layer) * sizes[6] * G * sizes[5] * D"
            return f"const VQX_DEV auto* queries = queries_0 + {before};\n"
        last = f"{array}_{layers - 1}"
        each = "".join(f"vqx_layer == {i} ? {array}_{i} : " for i in range(layers - 1))
        return f"{'' if array == 'turned' else 'const '}VQX_DEV auto* {array} = {each}{last};\n"

    strides = {
        "queries": "const vqx_i64 vqx_each = sizes[5] * D;\n"
        "const vqx_i64 queries_strides[5] = {H * G * vqx_each, G * vqx_each, vqx_each, D, 1};\n",
        "keys": "const vqx_i64 keys_strides[4] = {vqx_i64(H) * sizes[7] * D, vqx_i64(sizes[7]) * D, D, 1};\n",
        "turned": "",
    }
    found = "const int vqx_layer = vqx_row / sizes[6];\n"
    text = text.replace("batch = vqx_row / H;", "batch = vqx_row % sizes[6] / H;")
    text = text.replace("head = vqx_row - batch * H;", "head = vqx_row % H;")
    text = text.replace("to = row;", "to = size_t(vqx_row % sizes[6]) * n;")
    return found + "".join(map(own, arrays)) + "".join(strides[array] for array in arrays) + text


def _over_time(method: Method) -> Method:
    """A method's lines where statistics stay in place from token to token, each with numbers of its own."""

    def there(text: str) -> str:
        for name in method.reads:
            text = re.sub(rf"\b{name}\b", f"{name}_out", text)
        return re.sub(r"factors\[(\d+)\]", r"factors[token * FACTORS + \1 - 1]", text)

    return method._replace(text=there(method.text), adjust=there(method.adjust))


@functools.cache
def _text(name: str) -> str:
    """A file less its comments and indentation: MLX goes through a kernel's text at every call."""
    lines = (files("vqx_kernels") / "text" / name).read_text().splitlines()
    stripped = (line.strip() for line in lines)
    return "".join(f"{line}\n" for line in stripped if line and not line.startswith("//"))
