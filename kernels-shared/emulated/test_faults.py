# ruff: noqa: E501 -- a fault stands beside what it replaces
"""Planted faults, one each: the audit finds all of them, or it would find none of ours."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import mlx.core as mx
import numpy as np
import pytest
from vqx_kernels import attention, bodies, probe, selection, verify
from vqx_kernels.attention import Asked, Rule
from vqx_kernels.small import Guard
from vqx_kernels.testing import Conditions, audited

Work: TypeAlias = Callable[[str], dict[str, Any]]

N, WIDTH = 302, 36  # more than the threads of a block, and no power of two


class Fault(NamedTuple):
    """What stands in a text, and what is written in its place."""

    file: str
    right: str
    wrong: str


def drawn() -> tuple[Asked, mx.array]:
    """Two heads of 300 rows; a key repeats every seven rows, so weights are equal far apart."""
    made = np.random.Generator(np.random.Philox(2))
    keys = made.standard_normal((1, 2, N, WIDTH)).astype(np.float32)
    keys[:, :, ::7] = keys[:, :, :1]
    queries = made.standard_normal((1, 2, 2, 3, WIDTH)).astype(np.float32)
    position = made.permuted(np.tile(np.arange(N, dtype=np.int32), (1, 2, 1)), axis=2)
    mass = made.integers(0, 2, (1, 2, N)).astype(np.float32)
    sinks = mx.array([0.5, -1.0, 2.0, 0.0])
    asked = Asked(mx.array(queries), mx.array(keys), mx.array(position), N - 3, 0.3, sinks)
    return asked, mx.array(mass)


def steps(target: str) -> dict[str, Any]:
    """What a step writes and chooses, on rows that make it hard."""
    asked, mass = drawn()
    rule, guard = Rule("later"), Guard(4, 8, ((40, 60),))
    first = attention.step(target, asked, rule, probe.MASS, {"mass": mass}, guard, (0.5,))
    # queries of 0 give all rows the same: the mass alone decides, equal in many rows, NaN in some
    silent = asked._replace(queries=mx.zeros_like(asked.queries), sinks=mx.full((4,), 9.0))
    place = asked.position
    safe = (place < 4) | (place > N - 9) | ((place >= 40) & (place < 60))
    level = mx.where(safe, -1.0, mx.where(place % 5 == 1, 0.0, 1.0))
    broken = mx.where(asked.position % 11 == 3, mx.nan, level)
    ties, nans = (
        attention.step(target, silent, rule, probe.MASS, {"mass": mass}, guard, (1.0,))
        for mass in (level, broken)
    )
    return {"mass": first.written["mass"], "slot": first.slot, "tied": ties.slot, "nan": nans.slot}


def odd_rows(target: str) -> dict[str, Any]:
    """Rows of three pieces, as CUDA brings them to a block."""
    return verify.attended(
        target, next(at for at, case in enumerate(verify.CASES) if case.name == "odd rows")
    )


def choices(target: str) -> dict[str, Any]:
    """Which rows go of scores alone, equal ones far apart."""
    asked, mass = drawn()
    place = mx.broadcast_to(mx.arange(700, dtype=mx.int32), (1, 2, 700))
    return {
        "slot": selection.victim(target, mx.zeros((1, 2, 700)), place),
        # scores that differ in their last bits, and fall with age
        "stay": selection.survivors(target, 1 + (N - asked.position) * 2.0**-23, asked.position, 200),
        "equal": selection.survivors(target, mass, asked.position, 200),
    }


@functools.cache
def right(work: Work) -> dict[str, Any]:
    return {name: np.array(array) for name, array in work("host").items()}


def caught(work: Work, target: str = "metal") -> list[str]:
    """What is found wrong with the kernels as their text now stands: the cheap checks first."""
    found: list[dict[str, Any]] = []
    turns = [Conditions(order="reverse"), Conditions(order="random", seed=3), Conditions(poison=0)]
    first = audited(lambda where: found.append(work(where)), racing=False, targets=(target,), under=turns)
    wrong = list(first.found)
    for results in found:
        differ = [name for name, array in results.items() if not np.array_equal(array, right(work)[name])]
        wrong += [f"{name} is not the host's" for name in differ]
    return wrong or list(audited(work, targets=(target,)).found)


FAULTS = {
    "a block sum without its first barrier": Fault("gpu.h", "scratch[warp] = v;\n  VQX_BARRIER();\n  v = scratch[0];\n  for (int w = 1; w < VQX_WARPS; w++) v = v + scratch[w];", "scratch[warp] = v;\n  v = scratch[0];\n  for (int w = 1; w < VQX_WARPS; w++) v = v + scratch[w];"),
    "a block maximum whose scratch is used again at once": Fault("gpu.h", "v = vqx_max(v, scratch[w]);\n  VQX_BARRIER();", "v = vqx_max(v, scratch[w]);"),
    "queries read before all are there": Fault("logits.vqx", "    VQX_BARRIER();\n    VQX_EACH_KEY", "    VQX_EACH_KEY"),
    "queries overwritten while others read them": Fault("logits.vqx", "    VQX_BARRIER_ALL();\n  }", "  }"),
    "weights read before their sums are there": Fault("tops.vqx", "VQX_BARRIER_ALL();", ""),
    "the newest of equals goes": Fault("arithmetic.h", "ap < bp", "ap > bp"),
    "no rule for equals": Fault("arithmetic.h", "|| (as == bs && (ap < bp || (ap == bp && ai < bi)))", ""),
    "equals go by slot": Fault("arithmetic.h", "(ap < bp || (ap == bp && ai < bi))", "ai < bi"),
    "equals far apart: a thread keeps its last": Fault("gpu.h", "if (vqx_before(vqx_t, vqx_o, i, vqx_s, vqx_p, dst))", "if (!(vqx_t > vqx_s) && (vqx_u == 0 || i > dst))"),
    "equals of two warps: the first warp wins": Fault("gpu.h", "if (vqx_before(scores[w], int(places[w]), int(slots[w]), s, p, i))", "if (scores[w] < s)"),
    "a butterfly that stops at 8": Fault("gpu.h", "m < 32u; m <<= 1) v = v + vqx_xor(v, m);\n  if (lane == 0u) scratch[warp] = v;", "m < 16u; m <<= 1) v = v + vqx_xor(v, m);\n  if (lane == 0u) scratch[warp] = v;"),
    "a butterfly of 64 lanes": Fault("gpu.h", "m < 32u; m <<= 1) v = v + vqx_xor(v, m);\n  if (lane == 0u) scratch", "m < 64u; m <<= 1) v = v + vqx_xor(v, m);\n  if (lane == 0u) scratch"),
    "products of four lanes": Fault("gpu.h", "m < 8u", "m < 4u"),
    "one key too many": Fault("gpu.h", "int i = vqx_min(vqx_b + VQX_KEY, (last) - 1), vqx_once", "int i = vqx_b + VQX_KEY, vqx_once"),
    "one logit too many": Fault("gpu.h", "(VQX_LANE == 0 && vqx_b + VQX_KEY < (last))", "(VQX_LANE == 0)"),
    "one row too many": Fault("columns.vqx", "VQX_BY(many, first, last)", "VQX_BY(many, first, last + 1)"),
    "a barrier for one lane alone": Fault("top.vqx", "    VQX_ONCE {\n", "    VQX_ONCE {\n      VQX_BARRIER();\n"),
    "a shuffle in a loop that ends early": Fault("gpu.h", "vqx_b += VQX_KEYS) \\\n", "vqx_b += VQX_KEYS) if (vqx_b + VQX_KEY < (last)) \\\n"),
    "threads that return early": Fault("tops.vqx", "  const int start", "  if (vqx_tid == 77u) return;\n  const int start"),
    "a pointer in no space": Fault("gpu.h", "VQX_FN float vqx_block_sum(float v, VQX_TG float*", "VQX_FN float vqx_block_sum(float v, float*"),
    "a pointer in the wrong space": Fault("gpu.h", "VQX_FN float vqx_block_max(float v, VQX_TG float*", "VQX_FN float vqx_block_max(float v, VQX_DEV float*"),
    "a small array as if it were large": Fault("columns.vqx", "  VQX_BY(many", "  const VQX_DEV float* own = shares;\n  VQX_BY(many"),
    "a literal in double precision": Fault("top.vqx", "1.0f / total", "1.0 / total"),
    "scratch that nobody wrote": Fault("gpu.h", "for (int w = 1; w < VQX_WARPS; w++) v = v + scratch[w];\n  VQX_BARRIER();\n  return v;\n}\nVQX_FN float vqx_block_max", "for (int w = 1; w <= VQX_WARPS; w++) v = v + scratch[w];\n  VQX_BARRIER();\n  return v;\n}\nVQX_FN float vqx_block_max"),
    "the newest rows not protected": Fault("guard.vqx", " | (place > newest - sizes[3])", ""),
    "the first rows not protected": Fault("guard.vqx", "(place < sizes[2]) | ", ""),
    "one recent row too few": Fault("guard.vqx", "newest - sizes[3]", "newest - sizes[3] + 1"),
    "spans not protected": Fault("spans.vqx", "p < sizes[4]", "p < 0"),
    "NaN stays": Fault("guard.vqx", "score != score ? -INFINITY", "score != score ? INFINITY"),
    "the scale forgotten": Fault("logits.vqx", " * factors[0]", ""),
    "an input written to": Fault("columns.vqx", "METHOD", "((device float*)mass)[at] = 0.0f;\nMETHOD"),
    "std:: in the text": Fault("top.vqx", "1.0f / total[k]", "1.0f / std::max(total[k], 0.0f)"),
    "an attribute of Metal that was not declared": Fault("tops.vqx", "const int n = sizes[0];", "const int n = sizes[0] + 0 * int(simd_index);"),
    "a product that feeds an addition": Fault("fused.vqx", "vqx_fma(e, tops[t + 1], each)", "each + e * tops[t + 1]"),
    "later rows seen": Fault("attention.h", "> start + (s) \\\n", "> start + (s) + 1 \\\n"),
    "sinks left out of the sum": Fault("top.vqx", "if (SINKS) for (int k = 0; k < many; k++) total", "if (false) for (int k = 0; k < many; k++) total"),
    "bits of a score forgotten": Fault("survivors.vqx", "bit >= 0; bit--) {\n    const vqx_u32 wanted = (bar", "bit >= 8; bit--) {\n    const vqx_u32 wanted = (bar"),
    "a block count that starts at one": Fault("gpu.h", "vqx_u32 dst = 0u;", "vqx_u32 dst = 1u;"),
    "the oldest of equals stay": Fault("survivors.vqx", "vqx_u32(position[row + i]) >= place", "vqx_u32(position[row + i]) <= place"),
    "a token looked at before it is there": Fault("replayed.vqx", "    VQX_BARRIER_ALL();\n    const bool full", "    const bool full"),
    "a row that goes and is counted": Fault("replayed.vqx", "rows = rows + (gone < 0 ? 1 : 0);", "rows = rows + 1;"),
    "the last that goes stays": Fault("replayed.vqx", "position[own + gone] = 0x7fffffff", "position[own + gone] = 0"),
    "each token's query is the one before it": Fault("replayed.vqx", "token + 1 - S + q % S", "token - S + q % S"),
}  # fmt: skip
OF_TOKENS = {name for name, fault in FAULTS.items() if fault.file == "replayed.vqx"}

OF_CUDA = {
    "a piece of keys that is overwritten too early": Fault("staged.h", "    VQX_BARRIER();\n    if (D > 2", "    if (D > 2"),
    "a piece of keys that stands in the other half": Fault("staged.h", "stages + from / piece % 2", "stages + (from / piece + 1) % 2"),
    "the products of a neighbour's key": Fault("staged.h", "(odd ? each[3] : each[2])", "(odd ? each[2] : each[3])"),
}  # fmt: skip

OF_CHOICES = {
    "equals far apart: a thread keeps its last", "bits of a score forgotten", "the oldest of equals stay",
    "a block count that starts at one",
}  # fmt: skip


def planted(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    usual: Callable[[str], str] = bodies._text
    right, wrong = (bare(text) for text in (fault.right, fault.wrong))
    assert right in usual(fault.file)

    def text(name: str) -> str:
        return usual(name).replace(right, wrong) if name == fault.file else usual(name)

    monkeypatch.setattr(bodies, "_text", text)
    bodies.compose.cache_clear()


def bare(text: str) -> str:
    """As ``bodies`` reads a text: without indentation."""
    return "\n".join(line.strip() for line in text.split("\n"))


@pytest.fixture(autouse=True)
def _composed_anew() -> Iterator[None]:
    yield
    bodies.compose.cache_clear()


@pytest.mark.parametrize("work", [steps, choices, verify.replayed])
def test_nothing_is_found_in_the_kernels_as_they_are(work: Work) -> None:
    right(work)
    assert not caught(work)


def test_nothing_is_found_in_what_cuda_alone_does() -> None:
    right(odd_rows)
    assert not caught(odd_rows, "cuda")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = verify.replayed if name in OF_TOKENS else choices if name in OF_CHOICES else steps
    right(work)
    planted(monkeypatch, FAULTS[name])
    assert caught(work)


@pytest.mark.parametrize("name", OF_CUDA)
def test_a_fault_planted_in_what_cuda_alone_does_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right(odd_rows)
    planted(monkeypatch, OF_CUDA[name])
    assert caught(odd_rows, "cuda")
