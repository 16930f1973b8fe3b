"""The papers' own code, executed from checkouts as it stands there, one attention layer at a time.

The environment variable VQX_PEERS names the folder of the checkouts (TOVA, H2O, MorphKV, keyformer-llm,
R-KV). Definitions are read from their files and run in a namespace of torch and stand-ins: projections that
return the recorded tensors, and a rotation that does nothing, since recorded queries and keys are rotated.
"""

import ast
import copy
import functools
import importlib
import math
import os
import typing
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

REPOSITORIES = Path(os.environ.get("VQX_PEERS", "."))


class Forward(NamedTuple):
    """What one layer's attention is given in one forward of S tokens; batch 1."""

    queries: torch.Tensor  # [1, Hq, S, D]
    keys: torch.Tensor  # [1, H, S, D]
    values: torch.Tensor  # [1, H, S, D]
    hidden: torch.Tensor  # [1, S, E]
    start: int
    module: Any = None  # the layer's attention in transformers, for presses that ask for weights
    noise: torch.Tensor | None = None  # [Hq, T], vqx-keyformer's frozen draws
    draws: torch.Tensor | None = None  # [H, T], vqx-cam's

    @property
    def length(self) -> int:
        return self.queries.shape[2]


Peer = Callable[[Forward], Sequence[torch.Tensor]]
"""A forward -> the keys held after it, ``[n, D]`` for each head."""


def weights(forward: Forward, keys: torch.Tensor) -> torch.Tensor:
    """Attention of the forward's queries over the rows held, ``[1, Hq, S, n]``."""
    group, before = forward.queries.shape[1] // keys.shape[1], keys.shape[2] - forward.length
    logits = forward.queries @ keys.repeat_interleave(group, 1).transpose(2, 3) * keys.shape[3] ** -0.5
    hidden = torch.ones(logits.shape[2:], dtype=torch.bool).triu(before + 1)
    return logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)


def defined(file: str, names: Iterable[str], **given: Any) -> SimpleNamespace:
    """Execute these definitions of a file of a checkout, beside torch and what is given."""
    path = REPOSITORIES / file
    found = [node for node in parsed(path).body if getattr(node, "name", None) in set(names)]
    missing = set(names) - {node.name for node in found}
    if missing:
        raise ValueError(f"{path} defines no {', '.join(sorted(missing))}: give the folder of the checkouts")
    space = {"torch": torch, "nn": nn, "F": nn.functional, "math": math, **vars(typing), **given}
    exec(compile(ast.Module(found, []), str(path), "exec"), space)
    return SimpleNamespace(**space)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def projected(layer: Any, forward: Forward) -> Any:
    """Let a layer's projections return the recorded tensors, ``[1, S, heads * D]``."""
    for name, array in zip("qkv", forward[:3], strict=True):
        flat = array.transpose(1, 2).reshape(1, forward.length, -1)
        setattr(layer, f"{name}_proj", lambda _, flat=flat: flat)
    layer.num_heads, layer.num_key_value_heads = forward.queries.shape[1], forward.keys.shape[1]
    layer.head_dim = forward.keys.shape[3]
    layer.hidden_size = layer.num_heads * layer.head_dim
    layer.num_key_value_groups = layer.num_heads // layer.num_key_value_heads
    return layer


def unturned(queries: torch.Tensor, keys: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return queries, keys


def repeated(rows: torch.Tensor, group: int) -> torch.Tensor:
    return rows.repeat_interleave(group, dim=1)


def stub(**more: Any) -> SimpleNamespace:
    """What attention classes of transformers ask of themselves."""
    config = SimpleNamespace(pretraining_tp=1, **more)
    return SimpleNamespace(
        config=config,
        training=False,
        attention_dropout=0.0,
        layer_idx=0,
        rotary_emb=lambda *_, **__: (None, None),
        o_proj=lambda output: output,
    )


def causal(forward: Forward, held: int = 0) -> torch.Tensor | None:
    """An additive mask ``[1, 1, S, held + S]``; None for one token."""
    if forward.length == 1:
        return None
    low = torch.finfo(torch.float32).min
    return torch.full((forward.length, held + forward.length), low).triu(held + 1)[None, None]


class ListCache:
    """transformers' DynamicCache of 2024: lists of keys and values, one entry a layer."""

    def __init__(self) -> None:
        self.key_cache, self.value_cache = [], []

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, _: Any = None) -> Any:
        if len(self.key_cache) <= layer:
            self.key_cache.append(keys)
            self.value_cache.append(values)
        else:
            self.key_cache[layer] = torch.cat([self.key_cache[layer], keys], dim=2)
            self.value_cache[layer] = torch.cat([self.value_cache[layer], values], dim=2)
        return self.key_cache[layer], self.value_cache[layer]


def r_kv(budget: int, **options: Any) -> Peer:
    """R-KV's compression of the rows held, called after each forward."""
    names = ("compute_attention_scores", "cal_similarity")
    parts = {name: getattr(defined("R-KV/rkv/utils.py", names), name) for name in names}
    method = defined("R-KV/rkv/compression/r1_kv.py", ["R1KV"], **parts).R1KV(budget=budget, **options)
    seen: list[torch.Tensor] = []

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        new = forward[:3]
        every = [torch.cat(pair, dim=2) for pair in zip(seen, new, strict=True)] if seen else list(new)
        queries = every[0][:, :, -method.window_size :]
        seen[:] = queries, *method.update_kv(every[1], queries, every[2])
        return seen[1][0]

    return peer


def tova(budget: int) -> Peer:
    """TOVA's cache and its llama attention."""
    cache = defined("TOVA/src/tova_cache.py", ["TOVACache"], DynamicCache=ListCache).TOVACache(budget)
    attend = defined(
        "TOVA/src/convert_models/llama_custom.py",
        ["tova_llama_attention_forward"],
        Cache=object,
        apply_rotary_pos_emb=unturned,
        repeat_kv=repeated,
    ).tova_llama_attention_forward
    layer = stub()

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        place = torch.tensor([[forward.start + forward.length - 1]])
        attend(projected(layer, forward), forward.hidden, causal(forward), place, cache)
        return cache.key_cache[0][0]

    return peer


def h2o(budget: int) -> Peer:
    """H2O's cache that really drops rows, and its llama attention; half heavy, half recent."""
    code = defined(
        "H2O/h2o_hf/utils_real_drop/modify_llama.py",
        ["H2OKVCache_LayerWise", "H2OLlamaAttention", "repeat_kv", "_make_causal_mask"],
        LlamaConfig=object,
        apply_rotary_pos_emb_single=lambda rows, *_: rows,
        print=lambda *_: None,
    )
    layer, held = stub(), None
    layer.kv_cache = code.H2OKVCache_LayerWise(hh_size=budget - budget // 2, recent_size=budget // 2)

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        nonlocal held
        place = torch.arange(forward.start, forward.start + forward.length)[None]
        run = code.H2OLlamaAttention.forward
        _, _, held = run(projected(layer, forward), forward.hidden, None, place, held, use_cache=True)
        return held[0][0]

    return peer


def h2o_by_mask(budget: int) -> Peer:
    """H2O's llama attention that hides rows behind a mask; the rows that the next token sees."""
    attend = defined(
        "H2O/h2o_hf/utils_hh/modify_llama.py",
        ["LlamaAttention_heavy_hitter"],
        LlamaConfig=object,
        apply_rotary_pos_emb=unturned,
    ).LlamaAttention_heavy_hitter
    layer, held = stub(), None
    attend._reset_masks(layer)
    layer.input_length, layer.cache_budget_records = [], []

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        nonlocal held
        if held is None:
            layer.heavy_budget_ratio = (budget - budget // 2 + 0.5) / forward.length
            layer.recent_budget_ratio = (budget // 2 + 0.5) / forward.length
        length = 0 if held is None else held[0].shape[2]
        mask = causal(forward)
        if mask is None:
            mask = torch.zeros(1, 1, 1, length + 1)
        _, _, held = attend.forward(
            projected(layer, forward), forward.hidden, mask, None, held, use_cache=True
        )
        seen = layer.attention_masks_next[0, :, 0, :-1].bool()
        keys = held[0][0]
        return [rows[mine] for rows, mine in zip(keys, seen, strict=True)]

    return peer


def late(make: Callable[..., Peer]) -> Callable[..., Peer]:
    """Mark code that evicts inside the forward after: its rows are read one forward later."""
    make.late = True  # type: ignore[attr-defined]
    return make


def _morphkv(file: str, classes: list[str], budget: int, window: int, fuse: str, repair: bool) -> Peer:
    """MorphKV's cache and attention: prompts by the flash class (without flash), tokens by the eager one."""
    held = defined("MorphKV/morphkv/morph_cache.py", ["DynamicCache"], Cache=object).DynamicCache(1)
    held.cleaned = [False]
    if repair:
        held.update_win_queries = _one_query_more(window)
    code = defined(
        f"MorphKV/morphkv/models/{file}",
        [*classes, "repeat_kv"] if file == "patch_llama.py" else classes,
        **dict.fromkeys(("Cache", "LlamaConfig", "MistralConfig"), object),
        StaticCache=type("StaticCache", (), {}),
        logger=SimpleNamespace(warning_once=lambda _: None),
        apply_rotary_pos_emb=unturned,
        **({} if file == "patch_llama.py" else {"repeat_kv": repeated}),
        _flash_attention_forward=lambda queries, *_, **__: torch.zeros_like(queries),
    )
    eager, flash = (getattr(code, name) for name in classes)
    layer = flash.__new__(flash)
    nn.Module.__init__(layer)
    options = {"window_size": window, "max_capacity": budget, "morph_type": f"{fuse}_fused", "evict_after": 1}
    for name, value in vars(
        stub(morphkv=options, sliding_window=None, _pre_quantization_dtype=torch.float32)
    ).items():
        setattr(layer, name, value)
    layer.WIN_SIZE, layer.MAX_CAPACITY, layer.evict_after = window, budget, 1
    layer.morph_type, layer.garbage, layer.is_causal = options["morph_type"], [True], True
    layer._flash_attn_uses_top_left_mask = False
    layer.q_proj = SimpleNamespace()

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        run = flash if forward.length > 1 else eager
        own = projected(layer, forward)
        place = torch.arange(forward.start, forward.start + forward.length)
        run.forward(own, forward.hidden, None, place[None], held, False, True, place)
        return held.key_cache[0][0]

    return peer


def _one_query_more(window: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Hold the query of the token under way beside ``window`` earlier ones, as the file for llama does."""
    queries: list[torch.Tensor] = []

    def update(new: torch.Tensor, _: int) -> torch.Tensor:
        queries.append(new)
        queries[:] = [torch.cat(queries, dim=2)[:, :, -(window + 1) :]]
        return queries[0]

    return update


@late
def morphkv_llama(budget: int, window: int, fuse: str = "sum") -> Peer:
    names = ["LlamaAttentionMorph", "LlamaFlashAttention2Morph"]
    return _morphkv("patch_llama.py", names, budget, window, fuse, False)


@late
def morphkv_mistral(budget: int, window: int, fuse: str = "sum", repair: bool = False) -> Peer:
    """With ``repair`` all ``window`` earlier queries are fused, not one less."""
    names = ["MistralAttentionMorph", "MistralFlashAttention2Morph"]
    return _morphkv("patch_mistral.py", names, budget, window, fuse, repair)


def _keyformer(file: str, noise: torch.Tensor) -> Callable[..., Any]:
    """Keyformer's attention with frozen noise in the place of a draw at every call."""

    def gumbel_softmax(logits: torch.Tensor, tau: float, hard: bool, dim: int) -> torch.Tensor:
        return ((logits + noise[:, None, : logits.shape[-1]]) / tau).softmax(dim)

    functional = SimpleNamespace(**{**vars(nn.functional), "gumbel_softmax": gumbel_softmax})
    return defined(
        f"keyformer-llm/models/mpt-keyformer-lib/{file}",
        ["scaled_multihead_dot_product_attention"],
        nn=SimpleNamespace(functional=functional),
        rearrange=importlib.import_module("einops").rearrange,
        copy=copy,
        warnings=warnings,
    ).scaled_multihead_dot_product_attention


def keyformer(budget: int, recent: int, file: str = "attention.py") -> Peer:
    """Keyformer's MPT attention, no bias, temperature 1; the rows that its mask lets the next token see."""
    held: dict[str, Any] = {"past_key_value": ()}

    def peer(forward: Forward) -> Sequence[torch.Tensor]:
        if not held["past_key_value"]:
            share = 100 * (budget + 0.5) / forward.length
            held.update(kv_cache=share, recent=100 * (recent + 0.5) / budget, tau_delta=0.0)
        flat = [array.transpose(1, 2).reshape(1, forward.length, -1) for array in forward[:3]]
        heads, before = forward.keys.shape[1], held["past_key_value"]
        rows = (before[0].shape[3] if before else 0) + forward.length
        found = _keyformer(file, forward.noise)(
            *flat, heads, attn_bias=torch.zeros(1, 1, 1, rows), is_causal=True, keyformer=True, **held
        )
        names = ("past_key_value", "score_fn", "token_discard_mask", "token_discard_idx", "req_tokens")
        held.update(zip((*names, "itr_count"), found[3:], strict=True))
        keys = held["past_key_value"][0][0].transpose(1, 2)
        if held["token_discard_mask"] is None:
            return keys
        seen = held["token_discard_mask"][0, :, 0, :-1].bool()
        return [rows[mine] for rows, mine in zip(keys, seen, strict=True)]

    return peer


def keyformer_that_drops(forwards: list[Forward], budget: int, recent: int) -> dict[str, str]:
    """What becomes of Keyformer's two files that drop rows for good: the forward and the error."""
    found = {}
    for file in ("attention_keyformer_new_bias.py", "attention_keyformer_old_bias.py"):
        peer = keyformer(budget, recent, file)
        for number, forward in enumerate(forwards):
            try:
                peer(forward)
            except Exception as error:
                found[file] = f"token {number} after the prompt: {type(error).__name__}: {error}"
                break
    return found


@functools.cache
def commit(repository: str) -> str:
    """The commit of a checkout."""
    head = (REPOSITORIES / repository / ".git" / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    return (REPOSITORIES / repository / ".git" / head.removeprefix("ref: ")).read_text().strip()
