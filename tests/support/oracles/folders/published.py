"""Tiny folders of decoders with one network, of settings and shapes."""

from __future__ import annotations

import re
from functools import partial

from oracles.folders.by_hand import (
    DEEP,
    GPT,
    LAYERS_OF_FOUR,
    LLAMA,
    LLAMA_NORMS,
    NO_SHAPE,
    SEEING,
    WHOLE,
    both,
    by_hand,
    of_blocks,
)
from oracles.folders.mends import names_baichuan, plamo_of_any_width, reads_ranks, reads_slopes
from oracles.folders.recording import N_VOCAB, SHAPE, Tiny, qwen_tokens, reads_json, reads_pieces
from oracles.folders.vocabularies import (
    glm_tokens,
    internlm_tokens,
    llama_tokens,
    merged_pieces,
    plamo_lines,
    qwen_ranks,
    world_tokens,
)

PLAMO: dict[str, list[int]] = {
    "model.embed_tokens.weight": [64, 32],
    "lm_head.weight": [64, 32],
    "model.norm.weight": [32],
    "mlp.gate_up_proj.weight": [96, 32],
    "mlp.down_proj.weight": [32, 48],
    **{f"{when}_{name}_norm.weight": [32] for when in ("pre", "post") for name in ("mixer", "mlp")},
}


PLAMO_ATTENTION = {"mixer.qkv_proj.weight": [64, 32], "mixer.o_proj.weight": [32, 32]}


def mamba_of_plamo(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The first of two blocks, whose mixer is Mamba's."""
    mixer = {
        "in_proj.weight": [128, 32],
        "conv1d.weight": [64, 1, 4],
        "bcdt_proj.weight": [96, 64],
        "dt_proj.weight": [4, 64],
        **{key: [4] for key in ("dt_bias", "A_log", "D")},
        "out_proj.weight": [32, 64],
        "dt_norm_weight": [64],
        **{key: [16] for key in ("B_norm_weight", "C_norm_weight")},
    }
    return {f"model.layers.layers.0.mixer.{name}": shape for name, shape in mixer.items()}


NAS_WIDE: dict[str, list[int]] = {
    f"mlp.{name}_proj.weight": [32, 256] if name == "down" else [256, 32] for name in ("gate", "up", "down")
}


OF_GPT = {**NO_SHAPE, "rms_norm_eps": None, "rope_theta": None, "layer_norm_epsilon": 1e-5}


OF_GPT |= {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}


FOLDERS: dict[str, Tiny] = {
    "minicpm": by_hand("minicpm", LLAMA, {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}),
    "internlm2": by_hand(
        "internlm2",
        {
            "model.tok_embeddings.weight": [320, 32],
            "output.weight": [320, 32],
            "model.norm.weight": [32],
            **{f"attention.{name}.weight": shape for name, shape in (("wqkv", [64, 32]), ("wo", [32, 32]))},
            **{f"{name}.weight": [32] for name in ("attention_norm", "ffn_norm")},
            **{f"feed_forward.w{n}.weight": [32, 48] if n == 2 else [48, 32] for n in (1, 2, 3)},
        },
        {"vocab_size": 320},
        tokens=internlm_tokens,
    ),
    "exaone": by_hand(
        "exaone",
        {
            "transformer.wte.weight": [N_VOCAB, 32],
            "transformer.ln_f.weight": [32],
            "lm_head.weight": [N_VOCAB, 32],
            **{f"attn.attention.{name}_proj.weight": [16 if name in "kv" else 32, 32] for name in "qkv"},
            "attn.attention.out_proj.weight": [32, 32],
            **{f"mlp.c_fc_{n}.weight": [48, 32] for n in (0, 1)},
            "mlp.c_proj.weight": [32, 48],
            **{f"ln_{n}.weight": [32] for n in (1, 2)},
        },
        {
            "activation_function": "silu",
            "layer_norm_epsilon": 1e-5,
            "num_layers": 2,
            "rms_norm_eps": None,
            "num_hidden_layers": None,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
    ),
    "orion": by_hand(
        "orion",
        {
            **LLAMA,
            **{f"{name}.bias": [32] for name in LLAMA_NORMS},
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
        },
        {"num_key_value_heads": 4},
    ),
    "plm": by_hand(
        "plm",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("proj", name)},
            "self_attn.q_proj.weight": [48, 32],
            "self_attn.kv_a_proj_with_mqa.weight": [20, 32],
            "self_attn.kv_a_layernorm.weight": [16],
            "self_attn.kv_b_proj.weight": [64, 16],
            "self_attn.o_proj.weight": [32, 32],
            "mlp.up_proj.weight": [48, 32],
            "mlp.down_proj.weight": [32, 48],
        },
        {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 4},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "maincoder": by_hand(
        "maincoder",
        {**LLAMA, "self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8]},
        {"head_dim": 8},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "qwen2_vl": by_hand(
        "qwen2_vl",
        {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkv"}, **SEEING},
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "qwen3_vl": by_hand(
        "qwen3_vl",
        {**LLAMA, "self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8], **SEEING},
        {"head_dim": 8, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}, "vision_config": DEEP},
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={r"^model\.(layers|norm|embed_tokens)": r"model.language_model.\1"},
    ),
    "Dream": by_hand(
        "Dream",
        {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkv"}},
        {"mask_token_id": 300},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "mistral3": by_hand(
        "mistral3",
        LLAMA,
        {
            "text_config": {
                "model_type": "mistral",
                "head_dim": 8,
                "rope_theta": 100.0,
                "rms_norm_eps": 1e-5,
                "sliding_window": None,
                **SHAPE,
            }
        },
        renamed={
            r"^model\.(layers|norm|embed_tokens)": r"language_model.model.\1",
            "^lm_head": "language_model.lm_head",
        },
    ),
    "rwkv6": by_hand(
        "rwkv6",
        {
            "rwkv.embeddings.weight": [64, 64],
            "rwkv.blocks.0.pre_ln.weight": [64],
            "rwkv.blocks.0.pre_ln.bias": [64],
            "rwkv.ln_out.weight": [64],
            "rwkv.ln_out.bias": [64],
            "head.weight": [64, 64],
            **{f"{name}.{end}": [64] for name in ("ln1", "ln2", "attention.ln_x") for end in ("weight", "bias")},
            **{f"attention.time_maa_{name}": [1, 1, 64] for name in "xwkvrg"},
            "attention.time_maa_w1": [64, 160],
            "attention.time_maa_w2": [5, 32, 64],
            "attention.time_decay": [1, 1, 64],
            "attention.time_decay_w1": [64, 64],
            "attention.time_decay_w2": [64, 64],
            "attention.time_faaaa": [1, 64],
            **{f"attention.{name}.weight": [64, 64] for name in ("receptance", "key", "value", "gate", "output")},
            **{f"feed_forward.time_maa_{name}": [1, 1, 64] for name in "kr"},
            "feed_forward.key.weight": [224, 64],
            "feed_forward.receptance.weight": [64, 64],
            "feed_forward.value.weight": [64, 224],
        },
        {
            "vocab_size": 64,
            "hidden_size": 64,
            "head_size": 64,
            "layer_norm_epsilon": 1e-5,
            "rescale_every": 1,
            "intermediate_size": 224,
            "rms_norm_eps": None,
        },
        tokens=world_tokens,
        layers="rwkv.blocks",
    ),
    "pangu_embedded": by_hand(
        "pangu_embedded", {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkvo"}}
    ),
    "baichuan": by_hand(
        "baichuan",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[qkv]_proj", name)},
            "self_attn.W_pack.weight": [96, 32],
            "self_attn.rotary_emb.inv_freq": [4],
        },
        {"num_key_value_heads": None, "max_position_embeddings": None, "model_max_length": 128, "rope_theta": None},
        mends=names_baichuan,
    ),
    "xverse": by_hand(
        "xverse",
        {
            **LLAMA,
            **{key: [323, 32] for key in ("model.embed_tokens.weight", "lm_head.weight")},
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
        },
        {"num_key_value_heads": None, "rope_theta": None, "vocab_size": 323},
        tokens=merged_pieces,
    ),
    "llada": by_hand(
        "llada",
        {
            "model.transformer.wte.weight": [N_VOCAB, 32],
            "model.transformer.ff_out.weight": [N_VOCAB, 32],
            "model.transformer.ln_f.weight": [32],
            **{f"{name}_proj.weight": [16 if name in "kv" else 32, 32] for name in "qkv"},
            "attn_out.weight": [32, 32],
            **{f"{name}_proj.weight": [48, 32] for name in ("ff", "up")},
            "ff_out.weight": [32, 48],
            **{f"{name}_norm.weight": [32] for name in ("attn", "ff")},
        },
        {
            **NO_SHAPE,
            "tie_word_embeddings": None,
            "activation_type": "silu",
            "alibi": False,
            "block_type": "llama",
            "d_model": 32,
            "mask_token_id": 300,
            "max_sequence_length": 128,
            "mlp_hidden_size": 48,
            "n_heads": 4,
            "n_kv_heads": 2,
            "n_layers": 2,
            "weight_tying": False,
        },
        tokens=llama_tokens,
        pre="llama-bpe",
        layers="model.transformer.blocks",
    ),
    "plamo2": by_hand(
        "plamo2",
        PLAMO,
        {
            "vocab_size": 64,
            "hidden_size_per_head": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_enabled": True,
            "mamba_num_heads": 4,
            "mamba_step": 2,
            "use_predefined_initial_state": False,
        },
        tokens=plamo_lines,
        layers="model.layers.layers",
        more=lambda shapes: (
            mamba_of_plamo(shapes)
            | {
                f"model.layers.layers.1.{name}": shape
                for name, shape in {**PLAMO_ATTENTION, "mixer.q_weight": [2, 16], "mixer.k_weight": [1, 16]}.items()
            }
        ),
    ),
    "plamo3": by_hand(
        "plamo3",
        {**PLAMO, **PLAMO_ATTENTION, "mixer.q_norm.weight": [8], "mixer.k_norm.weight": [8]},
        {
            "vocab_size": 64,
            "head_dim": 8,
            "window_size": 12,
            "sliding_window_pattern": 2,
            "rope_local_theta": 10.0,
            "rope_scaling_factor": 4,
            "initial_context_length": 32,
        },
        tokens=plamo_lines,
        layers="model.layers.layers",
    ),
    "hrm_text-joined": by_hand(
        "hrm_text",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.z_L_init": [32],
            **{
                f"model.{stack}_module.layers.{n}.{name}.weight": shape
                for stack in "LH"
                for n in range(2)
                for name, shape in (
                    ("attn.gqkv_proj", [128, 32]),
                    ("attn.o_proj", [32, 32]),
                    ("mlp.gate_up_proj", [96, 32]),
                    ("mlp.down_proj", [32, 48]),
                )
            },
        },
        {"num_key_value_heads": None, "head_dim": 8, "H_cycles": 2, "L_cycles": 1, "embedding_scale": 1.5},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "nanbeige": by_hand("nanbeige", LLAMA, {"num_loops": 2, "skip_loop_final_norm": True}),
    "talkie": by_hand(
        "talkie",
        {
            "model.embed.weight": [N_VOCAB, 32],
            "lm_head": [N_VOCAB, 32],
            "lm_head_gain.w_g": [1],
            **{f"attn.attn_{name}.weight": [32, 32] for name in ("query", "key", "value", "resid")},
            "attn.head_gain.head_g": [4],
            **{f"mlp.mlp_{name}.weight": [48, 32] for name in ("gate", "linear")},
            "mlp.mlp_resid.weight": [32, 48],
            **{f"{name}.a_g": [1] for name in ("attn_gain", "mlp_gain", "embed_skip")},
        },
        {"head_dim": 8, "num_key_value_heads": 4, "rms_norm_eps": None},
        tokens=qwen_tokens,
        pre="qwen2",
        layers="model.blocks",
    ),
    "qwen": by_hand(
        "qwen",
        {
            **{name: [480, 32] for name in GPT},
            "transformer.ln_f.weight": [32],
            "ln_1.weight": [32],
            "ln_2.weight": [32],
            **both("attn.c_attn", [96, 32]),
            "attn.c_proj.weight": [32, 32],
            **{f"mlp.w{n}.weight": [24, 32] for n in (1, 2)},
            "mlp.c_proj.weight": [32, 24],
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "layer_norm_epsilon": 1e-6,
            "num_key_value_heads": None,
            "rotary_emb_base": 10000,
            "rotary_pct": 1.0,
            "vocab_size": 480,
        },
        tokens=qwen_ranks,
        pre="qwen2",
        mends=reads_ranks,
        layers="transformer.h",
    ),
    "refact": by_hand(
        "gpt_refact",
        {
            **GPT,
            "transformer.ln_f.weight": [32],
            "ln_1.weight": [32],
            "ln_2.weight": [32],
            "attn.q.weight": [32, 32],
            "attn.kv.weight": [16, 32],
            "attn.c_proj.weight": [32, 32],
            "mlp.gate_up_proj.weight": [512, 32],
            "mlp.c_proj.weight": [32, 256],
        },
        {**OF_GPT, "multi_query": True},
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
    ),
    "jais": by_hand(
        "jais",
        {
            **GPT,
            "model.transformer.relative_pe.slopes": [4],
            **both("transformer.ln_f", [32]),
            **both("ln_1", [32]),
            **both("ln_2", [32]),
            "attn.c_attn.weight": [32, 96],
            "attn.c_attn.bias": [96],
            **both("attn.c_proj", [32, 32]),
            "mlp.c_fc.weight": [32, 48],
            "mlp.c_fc.bias": [48],
            "mlp.c_fc2.weight": [32, 48],
            "mlp.c_fc2.bias": [48],
            "mlp.c_proj.weight": [48, 32],
            "mlp.c_proj.bias": [32],
        },
        {
            **OF_GPT,
            "activation_function": "swiglu",
            "mup_embeddings_scale": 14.6,
            "mup_output_alpha": 2.22,
            "mup_scale_qk_dot_by_d": True,
            "mup_width_scale": 0.125,
            "n_inner": 48,
            "position_embedding_type": "alibi",
        },
        tokens=qwen_tokens,
        mends=reads_slopes,
        pre="qwen2",
        layers="transformer.h",
    ),
    "codeshell": by_hand(
        "codeshell",
        {
            **GPT,
            **both("transformer.ln_f", [32]),
            **both("ln_1", [32]),
            **both("ln_2", [32]),
            **both("attn.c_attn", [64, 32]),
            **both("attn.c_proj", [32, 32]),
            **both("mlp.c_fc", [128, 32]),
            **both("mlp.c_proj", [32, 128]),
        },
        {
            **OF_GPT,
            "activation_function": "gelu_pytorch_tanh",
            "num_query_groups": 2,
            "position_embedding_type": "rope",
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
    ),
    "chatglm": by_hand(
        "chatglm",
        {
            "transformer.embedding.word_embeddings.weight": [N_VOCAB, 32],
            "transformer.output_layer.weight": [N_VOCAB, 32],
            "transformer.encoder.final_layernorm.weight": [32],
            "transformer.rotary_pos_emb.inv_freq": [2],
            "input_layernorm.weight": [32],
            "post_attention_layernorm.weight": [32],
            **both("self_attention.query_key_value", [64, 32]),
            "self_attention.dense.weight": [32, 32],
            "mlp.dense_h_to_4h.weight": [96, 32],
            "mlp.dense_4h_to_h.weight": [32, 48],
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "ffn_hidden_size": 48,
            "hidden_size": 32,
            "kv_channels": 8,
            "layernorm_epsilon": 1.5e-7,
            "multi_query_group_num": 2,
            "num_attention_heads": 4,
            "num_layers": 2,
            "padded_vocab_size": N_VOCAB,
            "rmsnorm": True,
            "rope_ratio": 50,
            "seq_length": 128,
        },
        tokens=glm_tokens,
        pre="chatglm-bpe",
        layers="transformer.encoder.layers",
    ),
    "openelm": by_hand(
        "openelm",
        {
            "transformer.token_embeddings.weight": [N_VOCAB, 32],
            "transformer.norm.weight": [32],
            **of_blocks(
                "transformer.layers",
                *(
                    {
                        "attn.qkv_proj.weight": [8 * (heads + 2 * kv), 32],
                        "attn.out_proj.weight": [32, 8 * heads],
                        **{f"attn.{name}_norm.weight": [8] for name in "qk"},
                        **{f"{name}_norm.weight": [32] for name in ("attn", "ffn")},
                        "ffn.proj_1.weight": [2 * width, 32],
                        "ffn.proj_2.weight": [32, width],
                    }
                    for heads, kv, width in ((4, 2, 24), (6, 3, 56))
                ),
            ),
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "tie_word_embeddings": None,
            "activation_fn_name": "swish",
            "ffn_dim_divisor": 8,
            "ffn_multipliers": [0.7, 1.8],
            "ffn_with_glu": True,
            "head_dim": 8,
            "max_context_length": 128,
            "model_dim": 32,
            "normalize_qk_projections": True,
            "num_kv_heads": [2, 3],
            "num_query_heads": [4, 6],
            "num_transformer_layers": 2,
            "rope_freq_constant": 10000,
            "share_input_output_layers": True,
        },
    ),
    "deci": by_hand(
        "deci",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[kv]_proj", name)},
            **of_blocks(
                "model.layers", *({f"self_attn.{name}_proj.weight": [8 * n, 32] for name in "kv"} for n in (1, 2))
            ),
        },
        {"num_key_value_heads_per_layer": [1, 2], "num_key_value_heads": None},
        mends=partial(reads_pieces, "deci.DeciModel"),
    ),
    "nemotron-nas": by_hand(
        "nemotron-nas",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.norm.weight": [32],
            **of_blocks(
                "model.layers",
                {
                    name: shape if "mlp" not in name else NAS_WIDE[name]
                    for name, shape in LLAMA.items()
                    if not name.startswith(WHOLE)
                },
                {
                    "input_layernorm.weight": [32],
                    "post_attention_layernorm.weight": [32],
                    "self_attn.linear_attn.weight": [32, 32],
                    **NAS_WIDE,
                },
                {"post_attention_layernorm.weight": [32], **NAS_WIDE},
                {},
            ),
        },
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": None,
            "intermediate_size": None,
            "block_configs": [
                {"attention": attention, "ffn": {"ffn_mult": multiplier}}
                for attention, multiplier in (
                    ({"n_heads_in_group": 2, "replace_with_linear": False}, 2.0),
                    ({"n_heads_in_group": None, "replace_with_linear": True}, 1.0),
                    ({"n_heads_in_group": None, "replace_with_linear": False}, 0.5),
                    ({"n_heads_in_group": None, "replace_with_linear": False}, None),
                )
            ],
        },
        tokens=llama_tokens,
        pre="llama-bpe",
        mends=partial(reads_json, "deci.DeciModel"),
    ),
    "plamo": by_hand(
        "plamo",
        {
            "model.embed_tokens.weight": [N_VOCAB, 80],
            "lm_head.weight": [N_VOCAB, 80],
            "model.norm.weight": [80],
            "norm.weight": [80],
            **{f"self_attn.{name}_proj.weight": [80 if name in "qo" else 10, 80] for name in "qkvo"},
            **{f"mlp.{name}_proj.weight": [96, 80] for name in ("gate", "up")},
            "mlp.down_proj.weight": [80, 96],
            "self_attn.rotary_emb.inv_freq": [1],
        },
        {
            "rope_theta": None,
            "hidden_size": 80,
            "intermediate_size": 96,
            "max_position_embeddings": None,
            "n_shared_head": 8,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
        },
        mends=plamo_of_any_width,
        layers="model.layers.layers",
    ),
    "bitnet": by_hand(
        "llama",
        {
            **{name: shape for name, shape in LLAMA.items() if "lm_head" not in name},
            "self_attn.inner_attn_ln.weight": [32],
            "mlp.ffn_layernorm.weight": [48],
        },
        {"hidden_act": "silu", "tie_word_embeddings": True},
    ),
    "paddleocr": by_hand(
        "paddleocr_vl",
        {**LLAMA, **SEEING, "mlp_AR.linear_1.weight": [32, 32]},
        {"head_dim": 8, "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 1, 1]}},
        renamed={"^model\\.visual": "visual", r"^model\.layers\.\d+\.mlp_AR": "mlp_AR"},
    ),
    "hunyuan_vl": by_hand(
        "hunyuan_vl",
        {
            **LLAMA,
            "self_attn.query_layernorm.weight": [8],
            "self_attn.key_layernorm.weight": [8],
            **SEEING,
        },
        {
            "head_dim": 8,
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [1, 1, 1, 1], "factor": 1.0},
            "rope_theta": 10000.0,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={"^model\\.visual": "vit"},
    ),
    "rwkv7": by_hand(
        "rwkv7",
        {
            "model.embeddings.weight": [64, 64],
            "lm_head.weight": [64, 64],
            **both("model.norm", [64]),
            **both("model.layers.0.pre_norm", [64]),
            **both("attn_norm", [64]),
            **both("ffn_norm", [64]),
            **both("attn.g_norm", [64]),
            **{f"attn.x_{name}": [1, 1, 64] for name in "rwkvag"},
            "attn.k_k": [64],
            "attn.k_a": [64],
            "attn.r_k": [1, 64],
            **{f"attn.{name}_proj.weight": [64, 64] for name in "rkvo"},
            **{f"attn.{name}_lora.lora.0.weight": [8, 64] for name in "wvag"},
            **{f"attn.{name}_lora.lora.2.weight": [64, 8] for name in "wvag"},
            **{f"attn.{name}_lora.lora.2.bias": [64] for name in "wva"},
            "ffn.x_k": [64],
            "ffn.key.weight": [128, 64],
            "ffn.value.weight": [64, 128],
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "a_low_rank_dim": 8,
            "decay_low_rank_dim": 8,
            "gate_low_rank_dim": 8,
            "hidden_act": "sqrelu",
            "v_low_rank_dim": 8,
            "head_dim": 64,
            "hidden_size": 64,
            "intermediate_size": 128,
            "norm_eps": 1e-5,
            "vocab_size": 64,
        },
        tokens=world_tokens,
    ),
    "spark2_5": by_hand(
        "spark2_5",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[qkv]_proj", name)},
            "self_attn.q_k_v_proj.weight": [64, 32],
            "self_attn.g_proj.weight": [4, 32],
        },
        {
            "rope_theta": None,
            "gate_attn_act_mode": "sigmoid",
            "head_dim": 8,
            "headwise_attn_output_gate": True,
            "hidden_act": "gelu",
            "layer_types": LAYERS_OF_FOUR[:2],
            "rope_parameters": {
                f"{kind}_attention": {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.5}
                for kind, base in (("full", 500.0), ("sliding", 100.0))
            },
            "sliding_window": 12,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
}
