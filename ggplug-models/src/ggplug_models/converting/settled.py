"""Settings that networks don't read from files: what they must say, by architecture."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ggplug_models.architectures.gemma import Gemma2, Gemma3
from ggplug_models.metadata.values import Values

Wanted = Collection[Any] | Callable[[Values], Collection[Any]]
"""The values that a setting may have; a function returns them for the other settings."""

_ACTIVATION = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "activation_type",
    "mlp_hidden_act",
)
"""Names of the setting of the activation of feed-forward networks."""

_SILU = ("silu", "swish", "swiglu")
_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")
_SQUARED = ("relu2", "sqrelu")

_ACTIVATIONS = {
    "apertus": ("xielu",),
    **dict.fromkeys(("arcee", "jais2", "nemotron", "nemotron_h", "nemotron_h_moe", "plm", "rwkv7"), _SQUARED),
    **dict.fromkeys(("jina-bert-v2", "jina-bert-v3", "nomic-bert-moe"), _GELU),
    **dict.fromkeys(
        ("codeshell", "falcon", "grok", "spark2_5", "gpt2", "gptneox", "phi2", "starcoder", "starcoder2"), _GELU
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma-embedding"), _GELU),
}
"""Where it isn't SiLU.  Published models name one form of GELU and mean the other, so both are taken."""

_ELSEWHERE = ("bert", "modern-bert", "smallthinker", "t5", "t5encoder")
"""Whose files have a key of the activation, or whose published settings say it in another form, or not at all."""


def _windows(every: int) -> Callable[[Values], Collection[Any]]:
    """The kinds of blocks: the last of each ``every`` attends to all positions, the others have a window."""

    def wanted(config: Values) -> Collection[Any]:
        numbers = range(1, config.integer("num_hidden_layers") + 1)
        return ([("sliding_attention" if number % every else "full_attention") for number in numbers],)

    return wanted


def _rotating(config: Values) -> Collection[Any]:
    """For each block whether it rotates: not the last of each four."""
    return ([int(number % 4 > 0) for number in range(1, config.integer("num_hidden_layers") + 1)],)


def _scale_of_queries(largest: int = 0) -> Callable[[Values], Collection[Any]]:
    """The width of a head, or of the model's part of a head in the largest model, which has this number of blocks."""

    def wanted(config: Values) -> Collection[Any]:
        if config.integer("num_hidden_layers") == largest:
            return (config.integer("hidden_size") // config.integer("num_attention_heads"),)
        return (config.integer("head_dim", 256),)

    return wanted


_NO_WINDOW: Mapping[str, Wanted] = {"use_sliding_window": (False,)}
_UNLIMITED: Mapping[str, Wanted] = {"time_step_limit": ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])}
_NOMIC: Mapping[str, Wanted] = {
    **dict.fromkeys(("prenorm", "causal", "parallel_block", "rotary_emb_interleaved", "use_rms_norm"), (False,)),
    "rotary_emb_fraction": (1,),
    "rotary_emb_scale_base": ("null",),
    "rotary_scaling_factor": ("null",),
    "max_trained_positions": (2048,),
}
_SETTINGS: Mapping[str, Mapping[str, Wanted]] = {
    "afmoe": {"layer_types": _windows(4)},
    "bloom": {"apply_residual_connection_post_layernorm": (False,)},
    "cohere2": {"layer_types": _windows(4)},
    "cohere2moe": {
        "expert_selection_fn": lambda config: (
            ("sigmoid", "softmax") if config.boolean("norm_topk_prob", False) else ("sigmoid",)
        ),
        "prefix_dense_sliding_window_pattern": (1,),
        "shared_expert_combination_strategy": ("average",),
    },
    "deepseek2": {"rope_interleave": (True,)},
    "falcon": {"alibi": (False,), "parallel_attn": (True,)},
    "falcon-h1": {
        **_UNLIMITED,
        "mamba_norm_before_gate": lambda config: (False,) if config.boolean("mamba_rms_norm", False) else (False, True),
    },
    "gemma2": {"layer_types": _windows(2), "query_pre_attn_scalar": _scale_of_queries(Gemma2.largest)},
    "gemma3": {"query_pre_attn_scalar": _scale_of_queries(Gemma3.largest)},
    "gemma-embedding": {"query_pre_attn_scalar": _scale_of_queries()},
    "gpt2": {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    "gpt-oss": {"layer_types": _windows(2), "swiglu_limit": (7.0,)},
    "laguna": {"moe_apply_router_weight_on_input": (False,), "moe_router_logit_softcapping": (0,)},
    "lfm2moe": {"routed_scaling_factor": (1,)},
    "llada": {
        **dict.fromkeys(("alibi", "attention_layer_norm", "input_emb_norm", "scale_logits"), (False,)),
        "block_type": ("llama",),
        "clip_qkv": ("null",),
        "layer_norm_type": ("rms",),
        "rope": (True,),
    },
    "llama-embed": {"pooling": ("avg",)},
    "llama4": {
        "attention_chunk_size": (8192,),
        "attn_scale": (0.1,),
        "attn_temperature_tuning": (True, 4),
        "floor_scale": (8192,),
        "no_rope_layers": lambda config: ([], *_rotating(config)),
        "use_qk_norm": lambda config: (config.integer("num_local_experts", 16) != 128,),
    },
    "maple": {"nope_on_global_attention": (True,), "norm_topk_prob": (True,), "num_shared_experts": (0,)},
    "muse-glimmer": {"post_norm_eps": (1e-8,)},
    "spark2_5": {"gate_attn_act_mode": ("sigmoid",), "headwise_attn_output_gate": (True,)},
    "mimo2": {"norm_topk_prob": (True,), "routed_scaling_factor": (1,), "topk_method": ("noaux_tc",)},
    "nomic-bert": _NOMIC,
    "nomic-bert-moe": {**_NOMIC, "moe_normalize_expert_weights": (False,), "num_shared_experts": (0,)},
    "plamo2": {"mamba_enabled": (True,), "use_predefined_initial_state": (False,)},
    "chatglm": {
        **dict.fromkeys(("apply_residual_connection_post_layernorm",), (False,)),
        **dict.fromkeys(("post_layer_norm", "rmsnorm", "original_rope"), (True,)),
    },
    "codeshell": {"position_embedding_type": ("rope",), "scale_attn_weights": (True,)},
    "jais": {
        "position_embedding_type": ("alibi",),
        **dict.fromkeys(("scale_qk_dot_by_d", "mup_scale_qk_dot_by_d", "scale_attn_weights"), (True,)),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
    "openelm": dict.fromkeys(("ffn_with_glu", "normalize_qk_projections"), (True,)),
    "qwen": {"rotary_pct": (1,), "scale_attn_weights": (True,)},
    "refact": {"multi_query": (True,)},
    "smollm3": {"no_rope_layers": _rotating, "no_rope_layer_interval": (4,)},
    "starcoder": {"scale_attn_weights": (True,)},
    **dict.fromkeys(("granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"), _UNLIMITED),
    **dict.fromkeys(("qwen2", "qwen2moe", "qwen3", "qwen3moe", "rnd1"), _NO_WINDOW),
}


def check(config: Values, architecture: str) -> None:
    """Raises ModelError for a setting with which the network would compute something else than the file's."""
    wanted: dict[str, Wanted] = {**_SETTINGS.get(architecture, {})}
    if architecture not in _ELSEWHERE:
        wanted |= dict.fromkeys(_ACTIVATION, _ACTIVATIONS.get(architecture, _SILU))
    for setting, values in wanted.items():
        fits = values(config) if callable(values) else values
        if setting in config and config.values[setting] not in fits:
            names = " or ".join(map(str, fits))
            raise config.refused(setting, f"{names}: {architecture} models in GGUF files have nothing else")
