"""The sizes of tiny models: a field's name says what it counts, whatever file of mlx-lm it stands in."""

from typing import Any

VOCABULARY = 96

_SLIDING = ["sliding_attention", "full_attention"]
_ATTENTION = {
    ("num_attention_heads", "num_heads", "n_heads", "n_head", "swa_num_attention_heads"): 4,
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "swa_num_key_value_heads"): 2,
    ("num_attention_groups",): 2,
    ("head_dim", "kv_channels", "hidden_size_per_head", "swa_head_dim", "swa_v_head_dim"): 16,
    ("v_head_dim", "qk_nope_head_dim", "query_pre_attn_scalar", "global_head_dim"): 16,
    ("qk_rope_head_dim", "rotary_dim"): 8,
    ("q_lora_rank",): 24,
    ("kv_lora_rank",): 32,
    ("sliding_window", "sliding_window_size", "attention_window_size", "window_size"): 8,
    ("sliding_window_pattern", "full_attention_interval", "no_rope_layer_interval"): 2,
}
_DEPTH = {
    ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_transformer_layers"): 4,
    ("first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step", "num_dense_layers"): 1,
    ("layer_group_size",): 2,
    ("mlp_only_layers",): [],
    ("layer_types",): _SLIDING * 2,
}
_WIDTH = {
    ("hidden_size", "n_embd", "model_dim", "hidden_dim", "d_model", "block_dim"): 64,
    ("intermediate_size", "n_inner", "ffn_hidden_size", "ff_intermediate_size"): 96,
    ("intermediate_size_mlp", "moe_intermediate_size", "expert_ffn_hidden_size"): 32,
    ("shared_expert_intermediate_size", "shared_intermediate_size"): 32,
    ("vocab_size", "vocab_size_per_layer_input", "num_vocab"): VOCABULARY,
    ("hidden_size_per_layer_input", "dim_model_base"): 16,
    ("max_position_embeddings", "n_positions", "n_ctx", "block_size", "model_max_length"): 512,
}
_EXPERTS = {
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"): 4,
    ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token"): 2,
    ("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "num_shared_expert"): 1,
    ("zero_expert_num",): 0,
}
_RECURRENT = {
    ("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads"): 4,
    ("linear_num_key_heads", "n_groups", "mamba_n_groups"): 2,
    ("linear_key_head_dim", "linear_value_head_dim", "mamba_head_dim", "mamba_d_head"): 16,
    ("linear_conv_kernel_dim", "conv_kernel", "conv1d_width", "mamba_d_conv", "conv_L_cache"): 4,
    ("short_conv_kernel_size",): 4,
    ("state_size", "ssm_state_size", "mamba_d_state", "group_norm_size"): 8,
    ("time_step_rank", "mamba_dt_rank"): 4,
    ("mamba_d_ssm",): 64,
    ("mamba_expand",): 2,
    ("a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "decay_low_rank_dim"): 8,
}
_NUMBERS = {
    ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"): 1e-5,
    ("rope_theta", "swa_rope_theta", "rotary_emb_base"): 10000.0,
    ("partial_rotary_factor", "rotary_pct"): 0.5,
    ("attention_multiplier",): 0.2,
    ("embedding_multiplier", "logits_scaling", "residual_multiplier", "scale_depth", "scale_emb"): 1.0,
    ("routed_scaling_factor",): 1.0,
    ("attention_bias", "mlp_bias", "use_bias", "norm_topk_prob", "use_qk_norm", "qk_norm"): False,
    ("use_conv_bias", "conv_bias", "tie_word_embeddings"): True,
}
SIZES: dict[str, Any] = {
    name: value
    for table in (_ATTENTION, _DEPTH, _WIDTH, _EXPERTS, _RECURRENT, _NUMBERS)
    for names, value in table.items()
    for name in names
}
_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256}
_LLAMA_4 = {**_YARN, "llama_4_scaling_beta": 0.1, "rope_theta": 10000.0}
_BOTH_ROPES = {kind: {"rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")}
_LINEAR = {"kda_layers": [1, 3], "full_attn_layers": [2, 4], "num_heads": 4, "head_dim": 16}
_LONGCAT = {"attention_method": "MLA", "zero_expert_type": "identity"}
_LFM = {"layer_types": ["conv", "full_attention"] * 2, "use_expert_bias": False, "block_multiple_of": 8}
FILES: dict[str, dict[str, Any]] = {
    "afm7": {"num_kv_reuse_layers": 2},
    "apertus": {"post_norm": False},
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2, "tie_word_embeddings": False},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"rope_scaling": _YARN},
    "exaone4": {"rope_scaling": None, "sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True] * 2},
    "gemma3n": {
        "num_hidden_layers": 8,
        "num_kv_shared_layers": 4,
        "layer_types": _SLIDING * 4,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0] * 8,
        "altup_num_inputs": 2,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
    },
    "gemma4": {"num_hidden_layers": 8, "num_kv_shared_layers": 4, "layer_types": _SLIDING * 4},
    "glm4_moe": {"rope_scaling": None},
    "glm_moe_dsa": {
        "index_head_dim": 16,
        "index_n_heads": 4,
        "index_topk": 8,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "rope_parameters": {"rope_theta": 10000.0},
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan": {
        "use_mixed_mlp_moe": False,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"factor": 1.0, "type": "dynamic", "alpha": 2.0},
    },
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "layers_block_type": None,
    },
    "kimi_k3": {"linear_attn_config": {**_LINEAR, "short_conv_kernel_size": 4}},
    "kimi_linear": {"linear_attn_config": {**_LINEAR, "short_conv_kernel_size": 4}},
    "lfm2": {**_LFM, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": _LFM,
    "llama4": {
        "num_hidden_layers": 8,
        "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2,
        "num_experts_per_tok": 1,
        "rope_scaling": None,
    },
    "llama4_text": {"no_rope_layers": [1, 0, 1, 0]},
    "longcat_flash": {**_LONGCAT, "mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "mamba2": {"time_step_limit": (0.001, 100.0)},
    "mellum": {"rope_parameters": _BOTH_ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    },
    "minicpm3": {"rope_scaling": {**_YARN, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}},
    "minimax_m3_vl": {"moe_layer_freq": [0, 1, 1, 1]},
    "ministral3": {"rope_parameters": _LLAMA_4},
    "mistral4": {"rope_parameters": _LLAMA_4},
    "muse_spark": {
        "post_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0},
        "layer_rope_theta": [10000.0, 0.0] * 2,
        "final_logit_softcapping": 30.0,
        "output_multiplier": 1.0,
        "moe_hidden_size": 32,
        "num_shared_experts": 0,
    },
    "nemotron": {"hidden_act": "relu2"},
    "nemotron-nas": {"block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.0}}] * 4},
    "nemotron_h": {"mamba_proj_bias": False, "layer_types": None, "hybrid_override_pattern": list("M-*M-*")},
    "olmo": {"mlp_hidden_size": 96, "embedding_size": VOCABULARY},
    "olmo_hybrid": {
        "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "openelm": {
        "num_query_heads": [4] * 4,
        "num_kv_heads": [2] * 4,
        "ffn_multipliers": [1.0] * 4,
        "ffn_dim_divisor": 8,
    },
    "phi3small": {
        "vocab_size": 100352,  # it writes to fixed places of its logits
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
    },
    "plamo": {"n_shared_head": 2},
    "prism_hadamard_qwen35": {
        "hidden_size": 128,
        "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{"path": "model.embed_tokens", "embedding": True, "dtype": "float16", "block": 0}],
    },
    "recurrent_gemma": {"logits_soft_cap": 30.0, "block_types": ["recurrent", "attention"]},
    "spark2_5": {
        "rope_parameters": _BOTH_ROPES,
        "hidden_act": "gelu",
    },
    "stablelm": {"use_qkv_bias": False},
}
"""What a file wants beyond its sizes."""
FILES |= {
    "gemma4_text": FILES["gemma4"],
    "longcat_flash_ngram": FILES["longcat_flash"],
    "lfm2-vl": FILES["lfm2"],
    # they make plain caches, whatever the kinds of layers
    "mistral3": {"layer_types": ["full_attention"] * 4},
    "pixtral": {"layer_types": ["full_attention"] * 4},
    "smollm3": {"layer_types": ["full_attention"] * 4},
}
