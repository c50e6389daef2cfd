"""Settings that networks don't read from files: what they must say, by architecture."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ggplug_models.architectures.gemma import Gemma2, Gemma3
from ggplug_models.converting import rope
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


def _everywhere(config: Values) -> Collection[Any]:
    """The kinds of blocks: all attend to all positions."""
    return (["full_attention"] * config.integer("num_hidden_layers"),)


def _rotating(config: Values) -> Collection[Any]:
    """For each block whether it rotates: not the last of each four."""
    return ([int(number % 4 > 0) for number in range(1, config.integer("num_hidden_layers") + 1)],)


def _rotating_in_chunks(config: Values) -> Collection[Any]:
    """The same of Llama 4, of which all blocks rotate if all attend to all positions."""
    layers = config.values.get("layer_types")
    if isinstance(layers, list) and {*map(str, layers)} == {"full_attention"}:
        return ([1] * len(layers),)
    return ([], *_rotating(config))


def _every(config: Values) -> Collection[Any]:
    """The kinds of ModernBERT's blocks: the first of each few attends to all positions, the others have a window."""
    every = config.integer("global_attn_every_n_layers", 3)
    numbers = range(config.integer("num_hidden_layers"))
    return ([("sliding_attention" if number % every else "full_attention") for number in numbers],)


def _gated(config: Values) -> bool:
    return config.text("feed_forward_proj", "relu").startswith("gated")


def _epsilon_of_parts(config: Values) -> Collection[Any]:
    """The epsilon of the other norms, which is the only one of a file, or the published one beside its usual value."""
    usual = config.number("layer_norm_epsilon", 1e-5, at_least=0)
    return (usual, 1e-6) if math.isclose(usual, 1e-5, rel_tol=1e-3) else (usual,)


def _near_that_of_latents(config: Values) -> Collection[Any]:
    """The epsilon of norms, if it is small; that of latent vectors is 1e-6 in any case, and files have one for both."""
    found = config.number("rms_norm_eps", 1e-6, at_least=0)
    return (found if found <= 1e-5 else 1e-6,)


def _scale_of_queries(largest: int = 0) -> Callable[[Values], Collection[Any]]:
    """The width of a head, or of the model's part of a head in the largest model, which has this number of blocks."""

    def wanted(config: Values) -> Collection[Any]:
        if config.integer("num_hidden_layers") == largest:
            return (config.integer("hidden_size") // config.integer("num_attention_heads"),)
        return (config.integer("head_dim", 256),)

    return wanted


_ENCODER: Mapping[str, Wanted] = {"is_decoder": (False,)}
_LATENT: Mapping[str, Wanted] = {"rms_norm_eps": _near_that_of_latents}
_NO_WINDOW: Mapping[str, Wanted] = {"use_sliding_window": (False,)}
_UNLIMITED: Mapping[str, Wanted] = {"time_step_limit": ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])}
_NEMOTRON_H: Mapping[str, Wanted] = {
    **_UNLIMITED,
    "mamba_hidden_act": _SILU,
    "time_step_min": (0.001,),
    "rms_norm_eps": lambda config: (config.number("layer_norm_epsilon", 1e-5, at_least=0),),
}
_T5: Mapping[str, Wanted] = {
    "feed_forward_proj": ("relu", "gated-gelu"),
    "is_gated_act": lambda config: (_gated(config),),
    "dense_act_fn": lambda config: _GELU if _gated(config) else ("relu",),
    "relative_attention_max_distance": (128,),
}
_NOMIC: Mapping[str, Wanted] = {
    **dict.fromkeys(("prenorm", "causal", "parallel_block", "rotary_emb_interleaved", "use_rms_norm"), (False,)),
    "rotary_emb_fraction": (1,),
    "rotary_emb_scale_base": ("null",),
    "rotary_scaling_factor": ("null",),
    "max_trained_positions": (2048,),
}
_SETTINGS: Mapping[str, Mapping[str, Wanted]] = {
    "afmoe": {"layer_types": _windows(4), "global_attn_every_n_layers": (4,), "mup_enabled": (True,)},
    **dict.fromkeys(("bert", "jina-bert-v2", "jina-bert-v3"), _ENCODER),
    "bloom": {"apply_residual_connection_post_layernorm": (False,)},
    "cohere2": {"layer_types": _windows(4), "sliding_window_pattern": (4,), "rotary_pct": (1,)},
    "cohere2moe": {
        "expert_selection_fn": lambda config: (
            ("sigmoid", "softmax") if config.boolean("norm_topk_prob", False) else ("sigmoid",)
        ),
        "prefix_dense_sliding_window_pattern": (1,),
        "shared_expert_combination_strategy": ("average",),
    },
    "deepseek2": {
        **_LATENT,
        "partial_rotary_factor": (1,),
        "rope_interleave": (True,),
        "n_group": lambda config: (1 if config.values.get("topk_method") == "greedy" else config.values["n_group"],),
    },
    "dots1": {"layer_types": _everywhere},
    "ernie4_5-moe": {"moe_norm_min": (1e-12,)},
    "falcon": {"alibi": (False,), "parallel_attn": (True,)},
    "falcon-h1": {
        **_UNLIMITED,
        "mamba_norm_before_gate": lambda config: (False,) if config.boolean("mamba_rms_norm", False) else (False, True),
    },
    "gemma2": {"layer_types": _windows(2), "query_pre_attn_scalar": _scale_of_queries(Gemma2.largest)},
    "gemma3": {"query_pre_attn_scalar": _scale_of_queries(Gemma3.largest), "use_bidirectional_attention": (False,)},
    "gemma4": {"use_bidirectional_attention": (False, "vision")},
    "gemma-embedding": {"query_pre_attn_scalar": _scale_of_queries()},
    "gpt2": {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    "gpt-oss": {"layer_types": _windows(2), "swiglu_alpha": (1.702,), "swiglu_limit": (7.0,)},
    "kimi-linear": {**_LATENT, "moe_renormalize": (True,), "num_expert_group": (1,)},
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
        "no_rope_layers": _rotating_in_chunks,
        "no_rope_layer_interval": (4,),
        "use_qk_norm": lambda config: (config.integer("num_local_experts", 16) != 128,),
    },
    "maple": {"nope_on_global_attention": (True,), "norm_topk_prob": (True,), "num_shared_experts": (0,)},
    "mamba": {"mixer_rms_eps": _epsilon_of_parts},
    "minicpm3": {**_LATENT, "scale_emb": (12,), "scale_depth": (1.4,), "dim_model_base": (256,)},
    "mistral4": {**_LATENT, "rope_interleave": (True,)},
    "modern-bert": {"layer_types": _every},
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
    "olmoe": {"clip_qkv": ("null",)},
    "openelm": dict.fromkeys(("ffn_with_glu", "normalize_qk_projections"), (True,)),
    "qwen": {"rotary_pct": (1,), "scale_attn_weights": (True,)},
    "refact": {"multi_query": (True,)},
    "smollm3": {**_NO_WINDOW, "layer_types": _everywhere, "no_rope_layers": _rotating, "no_rope_layer_interval": (4,)},
    "starcoder": {"scale_attn_weights": (True,)},
    **dict.fromkeys(("granitehybrid", "mamba2"), _UNLIMITED),
    **dict.fromkeys(("deepseek32", "glm-dsa"), _LATENT),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _NEMOTRON_H),
    **dict.fromkeys(("t5", "t5encoder"), _T5),
    **dict.fromkeys(("qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "rnd1"), _NO_WINDOW),
}


def check(config: Values, architecture: str) -> None:
    """Raises ModelError for a setting with which the network would compute something else than the file's."""
    wanted: dict[str, Wanted] = {**_SETTINGS.get(architecture, {})}
    if architecture not in _ELSEWHERE:
        wanted |= dict.fromkeys(_ACTIVATION, _ACTIVATIONS.get(architecture, _SILU))
    for setting, values in wanted.items():
        fits = values(config) if callable(values) else values
        holder = config if setting in config else rope.settings(config)
        if setting in holder and holder.values[setting] not in fits:
            names = " or ".join(map(str, fits))
            raise holder.refused(setting, f"{names}: {architecture} models in GGUF files have nothing else")
