"""Tiny folders made of the recorded models, and of others by their classes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import transformers

from oracles import formula
from oracles.dense import HALF_ROPE, ROPE
from oracles.experts import DEEPSEEK, GPT_OSS_ROPE
from oracles.families import FAMILIES
from oracles.folders.by_hand import LAYERS_OF_FOUR
from oracles.folders.recording import N_VOCAB, SHAPE, T5, Tiny, of_transformers, qwen_tokens, reads_json, unigrams
from oracles.folders.vocabularies import (
    deepseek_tokens,
    glm_tokens,
    laguna_tokens,
    llama_tokens,
    merged_pieces,
    pieces,
    pooled_pieces,
    sentences,
)


def recorded(name: str, n_vocab: int = N_VOCAB) -> Any:
    """The recorded model with the vocabulary of these folders; its weights are a formula's."""
    network: Any = FAMILIES[name].make(1)
    network = network.network
    config = network.config
    for each in (config, config.get_text_config()):
        each.vocab_size, each.bos_token_id, each.eos_token_id = n_vocab, 1, 2
        if hasattr(each, "vocab_size_per_layer_input"):
            each.vocab_size_per_layer_input = n_vocab - 16
    return type(network)(config)


def ahead(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The block that guesses further tokens, which has the shapes of the last one, and a head."""
    last = max(int(match[1]) for name in shapes if (match := re.match(r"model\.layers\.(\d+)\.", name)))
    old, new = f"model.layers.{last}.", f"model.layers.{last + 1}."
    table = shapes["model.embed_tokens.weight"]
    parts = {
        "embed_tokens": table,
        "shared_head.head": table,
        "eh_proj": [table[1], 2 * table[1]],
        **dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), table[1:]),
    }
    block = {name.replace(old, new): shape for name, shape in shapes.items() if name.startswith(old)}
    return block | {f"{new}{name}.weight": shape for name, shape in parts.items()}


def of(name: str, tokens: str = "qwen2", dtype: str = "BF16", **more: Any) -> Tiny:
    makers = {
        "qwen2": qwen_tokens,
        "glm4": glm_tokens,
        "default": pieces,
        "llama-bpe": llama_tokens,
        "pieces-json": merged_pieces,
        "pooled": pooled_pieces,
        "gpt-2": sentences,
    }
    n_vocab = more.pop("n_vocab", N_VOCAB)
    return Tiny(partial(recorded, name, n_vocab), makers[tokens], dtype, pre=tokens, **more)


def in_blocks(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The matrices of experts in MXFP4, which have as many rows as their biases have elements."""
    found = {}
    for name, (n_experts, n_rows) in ((n, s) for n, s in shapes.items() if re.search(r"experts\.\w+_bias$", n)):
        scales = [n_experts, n_rows, (32 if "gate_up" in name else 64) // 32]
        stem = name.removesuffix("_bias")
        found |= {stem + formula.BLOCKS: [*scales, 16], stem + formula.SCALES: scales}
    return found


def scaled(shapes: dict[str, list[int]], block: tuple[int, int] | None = None) -> dict[str, list[int]]:
    """The scales of the matrices of blocks in FP8: one for each block, or for each row."""
    matrices = {name: shape for name, shape in shapes.items() if name.endswith("_proj.weight")}
    if block is None:
        return {f"{name}_scale": [rows, 1] for name, (rows, _) in matrices.items()}
    high, wide = block
    return {f"{name}_scale_inv": [-(-rows // high), -(-columns // wide)] for name, (rows, columns) in matrices.items()}


def by_kind(kind: str, settings: dict[str, Any], **more: Any) -> Tiny:
    return Tiny(partial(of_transformers, kind, settings), qwen_tokens, "BF16", pre="qwen2", **more)


FALCON = {"num_kv_heads": 2, "parallel_attn": True, "bias": False, "alibi": False, "ffn_hidden_size": 128}


YARN_IN_FULL = {
    "full_attention": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
}


FOLDERS: dict[str, Tiny] = {
    "gemma3n": of("gemma3n", "default"),
    "llama4": of("llama4"),
    "glm4moe": of("glm4moe", "glm4", more=ahead),
    "nemotron_h": of(
        "nemotron_h",
        changes={
            "hybrid_override_pattern": "M-*",
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-5,
            **dict.fromkeys(("layers_block_type", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")),
        },
    ),
    "nemotron_h_moe": of("nemotron_h_moe", changes={"rms_norm_eps": 1e-5}),
    "granitemoe": of("granitemoe-shared"),
    "granitehybrid": of("granitehybrid", changes={"layer_types": ["mamba", "attention"]}),
    "granitehybrid-dense": of(
        "granitehybrid",
        changes={"layer_types": ["mamba", "attention"], "num_local_experts": 0, "num_experts_per_tok": 0},
        renamed={"block_sparse_moe": None},
    ),
    "granitehybrid-attention": of(
        "granitehybrid",
        changes={
            "position_embedding_type": "rope",
            "layer_types": ["attention"] * 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
        },
        renamed={"block_sparse_moe": None, r"layers\.0\.mamba": None},
        more=lambda shapes: {k.replace("rs.1", "rs.0"): v for k, v in shapes.items() if "rs.1.self_attn" in k},
    ),
    "lfm2": of("lfm2"),
    "lfm2moe": of("lfm2moe"),
    "jamba": of("jamba", "default"),
    "falcon-h1": of(
        "falcon-h1",
        changes={
            "attention_in_multiplier": 0.75,
            "attention_out_multiplier": 1.3,
            "embedding_multiplier": 1.7,
            "key_multiplier": 0.4,
            "lm_head_multiplier": 0.3,
            "mlp_multipliers": [0.9, 0.6],
            "ssm_in_multiplier": 1.1,
            "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.36],
            "ssm_out_multiplier": 0.23,
        },
    ),
    "mamba": of("mamba"),
    "falcon_mamba": by_kind("FalconMamba", {"intermediate_size": 64, "state_size": 8, "time_step_rank": 4}),
    "mamba2": of("mamba2"),
    "minicpm3": of("minicpm3", "default", changes={"rope_parameters": {**ROPE, "rope_theta": 10000.0}}),
    "hunyuan-dense": of("hunyuan-dense"),
    "hunyuan-moe": of(
        "hunyuan-moe",
        mends=partial(reads_json, "hunyuan.HunYuanMoEModel"),
        changes={
            "moe_intermediate_size": [16] * 2,
            "moe_topk": [2] * 2,
            "num_shared_expert": [1] * 2,
            "architectures": ["HunYuanMoEV1ForCausalLM"],
        },
    ),
    "deepseek2": of("deepseek2"),
    "deepseek3": of("deepseek3", changes={"scoring_func": "sigmoid"}),
    "cohere2": of("cohere2", changes={"rotary_pct": 1.0}),
    "arcee": of("arcee"),
    "apertus": of("apertus"),
    "dots1": of("dots1", changes={"scoring_func": "sigmoid"}),
    "afmoe": of("afmoe", changes={"route_norm": True, "score_func": "sigmoid"}),
    "bloom": of("bloom"),
    "command-r": of("command-r"),
    "ernie4_5-moe": of("ernie4_5-moe", "default"),
    "exaone-moe": of("exaone-moe"),
    "falcon": by_kind("Falcon", {**FALCON, "multi_query": True}, changes={"num_kv_heads": None}),
    "falcon-large": by_kind("Falcon", {**FALCON, "new_decoder_architecture": True}),
    "gemma": of("gemma", "default"),
    "glm-dsa": of("glm-dsa", "glm4"),
    "glm4": of("glm4", "glm4"),
    "gpt-oss": of("gpt-oss"),
    "gpt-oss-mxfp4": by_kind(
        "GptOss",
        {
            "head_dim": 16,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 12,
            "rope_parameters": GPT_OSS_ROPE,
        },
        changes={"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
        renamed={r"experts\.\w+_proj$": None},
        more=in_blocks,
    ),
    "qwen3-fp8": by_kind(
        "Qwen3",
        {"head_dim": 16},
        changes={"quantization_config": {"quant_method": "fp8", "weight_block_size": [20, 12]}},
        more=partial(scaled, block=(20, 12)),
    ),
    "qwen3-fp8-rows": by_kind(
        "Qwen3",
        {"head_dim": 16},
        changes={
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}}
                },
            }
        },
        more=scaled,
    ),
    "gptneox": of("gptneox", changes={"rotary_pct": 0.5, "rope_parameters": None}),
    "jais2": of("jais2"),
    "ministral3": of("mistral3", "default"),
    "nemotron": of("nemotron", "default"),
    "olmo": of("olmo"),
    "olmoe": of("olmoe"),
    "phi2": of("phi2", changes={"rope_parameters": {**HALF_ROPE, "rope_theta": 10000.0}}),
    "stablelm": of("stablelm", changes={"rope_parameters": {**HALF_ROPE, "rope_theta": 10000.0}}),
    "mpt": by_kind(
        "Mpt",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 64,
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "clip_qkv": 1.5},
        },
        changes={"architectures": ["MPTForCausalLM"]},
    ),
    "starcoder": by_kind("GPTBigCode", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 128, "n_positions": 64}),
    "starcoder2": of("starcoder2"),
    "kimi-linear": of(
        "kimi-linear",
        changes={
            **dict.fromkeys(
                ("layer_types", "mlp_layer_types", "linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads")
            ),
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1],
                "head_dim": 8,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "architectures": ["KimiLinearForCausalLM"],
            "first_k_dense_replace": 1,
            "moe_router_activation_func": "sigmoid",
        },
        renamed={r"layers\.0\.block_sparse_moe": "layers.0.mlp"},
    ),
    "gemma4": of("gemma4", "pieces-json", n_vocab=323),
    "gemma4-experts": of("gemma4-experts", "pieces-json", n_vocab=323),
    "hunyuan-dense-dynamic": of(
        "hunyuan-dense",
        changes={
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "rope_theta": 10000.0, "factor": 1.0},
        },
    ),
    "gemma-embedding": of("gemma-embedding", "pooled"),
    "modern-bert": of("modern-bert", "gpt-2", changes={"global_attn_every_n_layers": 3, "pad_token_id": None}),
    "eurobert": of("eurobert", "llama-bpe", changes={"classifier_pooling": None}),
    "t5encoder": Tiny(
        lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)),
        unigrams,
        "F32",
        changes={"architectures": ["T5EncoderModel"]},
    ),
    "mistral4": of("mistral4", changes={"architectures": ["Mistral3ForConditionalGeneration"]}),
    "deepseek32": Tiny(
        partial(
            of_transformers,
            "DeepseekV32",
            {
                **DEEPSEEK,
                "vocab_size": N_VOCAB,
                "n_routed_experts": 8,
                "n_group": 2,
                "topk_group": 1,
                "q_lora_rank": 16,
                "index_n_heads": 2,
                "index_head_dim": 8,
                "index_topk": 64,
            },
        ),
        deepseek_tokens,
        "BF16",
        pre="llama-bpe",
        mends=partial(reads_json, "deepseek.DeepseekV32Model"),
        changes={"head_dim": None, "scoring_func": "sigmoid", "num_nextn_predict_layers": 1},
        more=ahead,
    ),
    "hrm_text": by_kind(
        "HrmText", {"H_cycles": 2, "L_cycles": 2, "head_dim": 8, "embedding_scale": 1.5, "num_key_value_heads": 4}
    ),
    "cohere2moe": by_kind(
        "Cohere2Moe",
        {
            "num_hidden_layers": 5,
            "head_dim": 8,
            "num_experts": 4,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
            "prefix_dense_intermediate_size": 40,
            "first_k_dense_replace": 1,
            "sliding_window": 12,
        },
    ),
    "hy_v3": by_kind(
        "HYV3",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "mlp_layer_types": ["dense", "sparse"],
        },
        changes={"num_nextn_predict_layers": 1},
        more=lambda shapes: {
            name.replace("shared_head.norm", "final_layernorm"): shape
            for name, shape in ahead(shapes).items()
            if not re.search(r"embed_tokens|shared_head\.head", name)
        },
    ),
    "laguna": Tiny(
        partial(
            of_transformers,
            "Laguna",
            {
                "num_hidden_layers": 4,
                "head_dim": 8,
                "num_attention_heads_per_layer": [4, 6, 6, 6],
                "layer_types": LAYERS_OF_FOUR,
                "sliding_window": 12,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 16,
                "moe_routed_scaling_factor": 1.5,
                "rope_parameters": YARN_IN_FULL,
                "gating": "per-head",
                "eos_token_id": [2, 299],
                "bos_token_id": 2,
            },
        ),
        laguna_tokens,
        "BF16",
        pre="qwen2",
    ),
    "mellum": by_kind(
        "Mellum",
        {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "layer_types": [*LAYERS_OF_FOUR[1:], LAYERS_OF_FOUR[0]],
            "sliding_window": 12,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "rope_parameters": {
                "full_attention": {**YARN_IN_FULL["full_attention"], "partial_rotary_factor": 1.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "granite_swa": by_kind(
        "GraniteSWA",
        {
            "num_hidden_layers": 4,
            "sliding_window": 12,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        changes={"no_rope_layers": [0, 1, 1, 1], "layer_rope_theta": [0.0, 100.0, 100.0, 100.0]},
    ),
    "glm": of(
        "chatglm",
        "glm4",
        changes={
            "seq_length": 64,
            "layernorm_epsilon": 1.5625e-07,
            "rope_parameters": {**HALF_ROPE, "rope_theta": 10000.0},
        },
    ),
    "muse-glimmer": Tiny(
        lambda: transformers.MuseGlimmerForConditionalGeneration(
            transformers.MuseGlimmerConfig(
                text_config={
                    **SHAPE,
                    "num_hidden_layers": 4,
                    "head_dim": 8,
                    "layer_types": [*LAYERS_OF_FOUR[1:], LAYERS_OF_FOUR[0]],
                    "sliding_window": 12,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
                },
                vision_config={
                    "hidden_size": 32,
                    "intermediate_size": 32,
                    "num_attention_heads": 2,
                    "num_hidden_layers": 1,
                    "pos_emb_height": 2,
                    "pos_emb_width": 2,
                },
                out_hidden_size=128,
                projector_hidden_size=32,
            )
        ),
        qwen_tokens,
        "BF16",
        pre="qwen2",
    ),
}
