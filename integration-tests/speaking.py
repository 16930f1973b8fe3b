"""A small model whose answer is a fixed text, so that what a server makes of an answer can be tried.

Its layers attend, and their caches evict, but what they find is multiplied by zero: the next token follows
from the last one alone. The embedded model's tokenizer is given a template with tools, and pieces of the
answer as tokens of their own.
"""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

CALL: dict[str, Any] = {"name": "weather", "arguments": {"city": "Rome"}}
SAID = ["Wait", "<tool_call>", '{"name":"weather",', '"arguments":{"city":"Rome"}}', "</tool_call>"]
"""The answer, token by token; each of them once, since each says what follows."""

TEMPLATE = """{% if tools %}<|im_start|>system
Call{% for tool in tools %} {{ tool.function.name }}{% endfor %} in <tool_call></tool_call>.<|im_end|>
{% endif %}{% if tone is defined %}Be {{ tone }}.
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}
<tool_call>{{ tool_call.name }} {{ tool_call.arguments.city }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def speaking_model(folder: Path, tokenizer: Any, make_llama: Any) -> Path:
    """The model in a folder, as ``mlx_lm.load`` finds it."""
    own = copy.deepcopy(tokenizer._tokenizer)
    own.add_tokens(SAID[1:])
    own.chat_template = TEMPLATE
    own.save_pretrained(folder, save_jinja_files=False)
    (start,), *said = (own.encode(piece, add_special_tokens=False) for piece in ["\n", *SAID])
    chain = [start, *(token for (token,) in said), own.eos_token_id]

    model = make_llama(vocab_size=len(own), num_hidden_layers=2, tie_word_embeddings=False)
    known = model.model.embed_tokens.weight
    follows = mx.zeros_like(known)
    follows[mx.array(chain[1:])] = known[mx.array(chain[:-1])] / mx.linalg.norm(known, axis=1).max() ** 2
    model.lm_head.weight = 100 * follows
    for layer in model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            linear.weight = mx.zeros_like(linear.weight)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {name: value for name, value in asdict(model.args).items() if value is not None}
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": own.eos_token_id}))
    return folder
