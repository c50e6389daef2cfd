"""The tables of the families, by ``model_type``: the conversion of their tensors and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from ggplug_models.architectures.bert import ACTIVATIONS
from ggplug_models.converting import delta_net, rope
from ggplug_models.converting.family import (
    PAIRED_K,
    PAIRED_Q,
    PLUS_ONE,
    TRANSPOSED,
    Array,
    Change,
    Family,
    Tensors,
    head_dim,
)
from ggplug_models.converting.folder import Folder
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.metadata.values import Values

Keys: TypeAlias = Callable[[Values, Folder], Mapping[str, Any]]

_LAYER = r"layers\.(\d+)\."
_ANY = r"(weight|bias)"


def _layer(name: str, target: str, change: Change | None = None, layer: str = _LAYER) -> Tensors:
    """The row for the weight and the bias of each layer."""
    return Tensors(rf"{layer}{re.escape(name)}\.{_ANY}", rf"blk.\1.{target}.\2", change)


def _decoder(*layers: Tensors, norm: Change | None = None) -> tuple[Tensors, ...]:
    return (
        Tensors(r"embed_tokens\.weight", "token_embd.weight"),
        Tensors(rf"norm\.{_ANY}", r"output_norm.\1", norm),
        Tensors(r"lm_head\.weight", "output.weight"),
        *layers,
    )


_ATTENTION = (
    _layer("self_attn.q_proj", "attn_q"),
    _layer("self_attn.k_proj", "attn_k"),
    _layer("self_attn.v_proj", "attn_v"),
    _layer("self_attn.o_proj", "attn_output"),
)
_PAIRED_ATTENTION = (
    _layer("self_attn.q_proj", "attn_q", PAIRED_Q),
    _layer("self_attn.k_proj", "attn_k", PAIRED_K),
    *_ATTENTION[2:],
)
_HEAD_NORMS = (_layer("self_attn.q_norm", "attn_q_norm"), _layer("self_attn.k_norm", "attn_k_norm"))
_MLP = (
    _layer("mlp.gate_proj", "ffn_gate"),
    _layer("mlp.up_proj", "ffn_up"),
    _layer("mlp.down_proj", "ffn_down"),
)
_NORMS = (_layer("input_layernorm", "attn_norm"), _layer("post_attention_layernorm", "ffn_norm"))
_GEMMA_NORMS = tuple(
    _layer(name, target, PLUS_ONE)
    for name, target in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    )
)

_INTEGERS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads?": "attention.head_count_kv",
}
_RMS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
_WIDTHS = ("attention.key_length", "attention.value_length")


def _positions(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE, and the width of heads if the settings have one."""
    widths = dict.fromkeys(_WIDTHS, head_dim(config)) if "head_dim" in config else {}
    return {**rope.keys(config), **widths}


def _llama(config: Values, folder: Folder) -> dict[str, Any]:
    vocabulary = {"vocab_size": config.integer("vocab_size")}
    return _positions(config, folder) | vocabulary | {"rope.dimension_count": head_dim(config)}


def _gemma2(config: Values, folder: Folder) -> dict[str, Any]:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    caps = {name: config.number(name, at_least=0) for name in names if name in config}
    return caps | dict.fromkeys(_WIDTHS, config.integer("head_dim"))


def _gemma3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Gemma 3; missing settings have the defaults of the class in transformers."""
    found = dict(rope.keys(config))
    found.setdefault("rope.freq_base", 1e6)
    if "rope_local_base_freq" in config:
        found.setdefault("rope.freq_base_swa", config.number("rope_local_base_freq", at_least=0))
    if "final_logit_softcapping" in config:
        found["final_logit_softcapping"] = config.number("final_logit_softcapping", at_least=0)
    if config.values.get("sliding_window_pattern") != 1:
        found["attention.sliding_window"] = config.integer("sliding_window")
    return found | {
        "context_length": config.integer("max_position_embeddings", 131072),
        "attention.head_count": config.integer("num_attention_heads", 8),
        "attention.head_count_kv": config.integer("num_key_value_heads", 4),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6, at_least=0),
        **dict.fromkeys(_WIDTHS, config.integer("head_dim", 256)),
    }


def _phi3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Phi 3; a sliding window of 0 distinguishes Phi 4."""
    settings = rope.settings(config)
    return rope.longrope_keys(config) | {
        "attention.head_count_kv": config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        "rope.scaling.original_context_length": settings.integer(
            "original_max_position_embeddings", config.integer("max_position_embeddings")
        ),
        "rope.dimension_count": rope.rotated(config),
        "rope.freq_base": settings.number("rope_theta", 10000.0, at_least=0),
        "attention.sliding_window": config.integer("sliding_window", 0),
    }


def _gpt2(config: Values, folder: Folder) -> dict[str, Any]:
    return {"feed_forward_length": config.integer("n_inner", 4 * config.integer("n_embd"))}


def _bert(config: Values, folder: Folder) -> Mapping[str, Any]:
    config.text("position_embedding_type", "absolute", one_of=("absolute",))
    return {
        "attention.causal": False,
        "hidden_activation": config.text("hidden_act", one_of=ACTIVATIONS),
        "pooling_type": _pooling(folder),
    }


def _pooling(folder: Folder) -> Pooling:
    modes = folder.optional_json("1_Pooling/config.json")
    if modes is None or modes.boolean("pooling_mode_mean_tokens", False):
        return Pooling.MEAN
    if modes.boolean("pooling_mode_cls_token", False):
        return Pooling.CLS
    raise modes.refused(
        "pooling_mode_mean_tokens", "true, or else pooling_mode_cls_token: no other pooling is supported"
    )


def _bert_layer(name: str, target: str) -> Tensors:
    return _layer(name, target, layer=r"encoder\.layer\.(\d+)\.")


def _t5(config: Values, folder: Folder) -> dict[str, Any]:
    eps = config.number("layer_norm_epsilon", at_least=0)
    return {
        "context_length": config.integer("n_positions", 512),
        "decoder_start_token_id": config.integer("decoder_start_token_id", at_least=0),
        "attention.layer_norm_rms_epsilon": eps,
        **dict.fromkeys(_WIDTHS, config.integer("d_kv")),
    }


def _t5_layer(part: str, number: int, names: Mapping[str, str]) -> Iterator[Tensors]:
    """The rows of one of the layers in each block of the encoder or the decoder."""
    for name, target in names.items():
        block = rf"{part}oder\.block\.(\d+)\.layer\.{number}\."
        yield Tensors(rf"{block}{re.escape(name)}\.weight", rf"{part}.blk.\1.{target}.weight")


def _t5_attention(name: str, target: str) -> dict[str, str]:
    names = {f"{name}.{each}": f"{target}_{each}" for each in "qkvo"}
    return {**names, f"{name}.relative_attention_bias": f"{target}_rel_b", "layer_norm": f"{target}_norm"}


_T5_NETWORK = {
    "DenseReluDense.wi": "ffn_up",
    "DenseReluDense.wi_0": "ffn_gate",
    "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
    "layer_norm": "ffn_norm",
}
_T5 = Family(
    "t5",
    (
        Tensors(r"shared\.weight", "token_embd.weight"),
        Tensors(r"lm_head\.weight", "output.weight"),
        Tensors(r"(enc|dec)oder\.final_layer_norm\.weight", r"\1.output_norm.weight"),
        *_t5_layer("enc", 0, _t5_attention("SelfAttention", "attn")),
        *_t5_layer("enc", 1, _T5_NETWORK),
        *_t5_layer("dec", 0, _t5_attention("SelfAttention", "attn")),
        *_t5_layer("dec", 1, _t5_attention("EncDecAttention", "cross_attn")),
        *_t5_layer("dec", 2, _T5_NETWORK),
    ),
    {
        "d_model": "embedding_length",
        "d_ff": "feed_forward_length",
        "num_layers": "block_count",
        "num_decoder_layers?": "decoder_block_count",
        "num_heads": "attention.head_count",
        "relative_attention_num_buckets": "attention.relative_buckets_count",
    },
    {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
    _t5,
    unused=r"(?:en|de)coder\.embed_tokens\.weight",
    prefix="",
    vocabularies=("Unigram",),
)
_GEMMA3 = Family(
    "gemma3",
    _decoder(*_ATTENTION, *_MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
    {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
    },
    more=_gemma3,
    prefix=r"(?:language_model\.model\.|model\.language_model\.|language_model\.|model\.)?",
    unused=r"(?:.*\.)?(?:vision_tower|multi_modal_projector)\..*",
    inner="text_config",
)

_ATTENTION_AFTER = (
    _layer("post_attention_layernorm", "post_attention_norm"),
    _layer("post_feedforward_layernorm", "post_ffw_norm"),
)
_EXPERT_COUNTS = {"num_experts|num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_EXPERT_WIDTH = {"moe_intermediate_size": "expert_feed_forward_length"}
_SHARED_EXPERT = (
    _layer("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    _layer("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    _layer("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    _layer("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
)


def _of_experts(module: str, gate: str, up: str, down: str) -> tuple[Tensors, ...]:
    """The rows of experts, and of the matrix that chooses among them."""
    names = {gate: "ffn_gate_exps", up: "ffn_up_exps", down: "ffn_down_exps"}
    experts = (
        Tensors(rf"{_LAYER}{module}\.experts\.(\d+)\.{name}\.weight", rf"blk.\1.{target}.weight", of_experts=True)
        for name, target in names.items()
    )
    return (_layer(f"{module}.gate", "ffn_gate_inp"), *experts)


_EXPERTS = _of_experts("mlp", "gate_proj", "up_proj", "down_proj")
_SPARSE_EXPERTS = _of_experts("block_sparse_moe", "w1", "w3", "w2")


def _windows(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE, and of the sliding window with the blocks that have one."""
    found = _positions(config, folder)
    if config.values.get("sliding_window") is None:
        return found
    layers = config.values.get("layer_types")
    if not isinstance(layers, list) or not {"sliding_attention", "full_attention"} >= {*map(str, layers)}:
        raise config.refused("layer_types", "an array of 'sliding_attention' and 'full_attention'")
    return found | {
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": [each == "sliding_attention" for each in layers],
    }


def _exaone4(config: Values, folder: Folder) -> dict[str, Any]:
    return _windows(config, folder) | {"vocab_size": config.integer("vocab_size")}


def _minimax(config: Values, folder: Folder) -> dict[str, Any]:
    kinds = ("sigmoid", "softmax")
    gating = {"expert_gating_func": 2 - kinds.index(config.text("scoring_func", one_of=kinds))}
    return {
        **_positions(config, folder),
        **(gating if "scoring_func" in config else {}),
        "expert_feed_forward_length": config.integer("intermediate_size"),
        "rope.dimension_count": config.integer("rotary_dim"),
    }


def _half(number: int) -> Change:
    """One of the halves of the rows of each expert's matrix."""

    def apply(values: Array, config: Values) -> Array:
        return np.split(values, 2, axis=-2)[number]

    return Change(apply, lambda shape, config: (*shape[:-2], shape[-2] // 2, shape[-1]))


_JOINED_EXPERTS = (
    Tensors(_LAYER + r"mlp\.experts\.gate_up_proj", r"blk.\1.ffn_gate_exps.weight", _half(0)),
    Tensors(_LAYER + r"mlp\.experts\.gate_up_proj", r"blk.\1.ffn_up_exps.weight", _half(1)),
    Tensors(_LAYER + r"mlp\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight"),
)
_DELTA_NORMS = tuple(
    _layer(name, target, PLUS_ONE)
    for name, target in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("enorm", "nextn.enorm"),
        ("hnorm", "nextn.hnorm"),
        ("shared_head.norm", "nextn.shared_head_norm"),
    )
)
_DELTA = (*_ATTENTION, *_DELTA_NORMS, _layer("linear_attn.norm", "ssm_norm"), _layer("eh_proj", "nextn.eh_proj"))
_DELTA_35 = (
    *_DELTA,
    _layer("linear_attn.in_proj_qkv", "attn_qkv", delta_net.QKV),
    _layer("linear_attn.in_proj_z", "attn_gate", delta_net.VALUES),
    _layer("linear_attn.in_proj_a", "ssm_alpha", delta_net.RATES),
    _layer("linear_attn.in_proj_b", "ssm_beta", delta_net.RATES),
    _layer("linear_attn.conv1d", "ssm_conv1d", delta_net.KERNEL),
    _layer("linear_attn.out_proj", "ssm_out", delta_net.OUT),
    Tensors(_LAYER + r"linear_attn\.A_log", r"blk.\1.ssm_a", delta_net.DECAY),
    Tensors(_LAYER + r"linear_attn\.dt_bias", r"blk.\1.ssm_dt.bias", delta_net.RATES),
)
_DELTA_NEXT = (
    *_DELTA,
    _layer("linear_attn.in_proj_qkvz", "attn_qkv", delta_net.JOINED_QKV),
    _layer("linear_attn.in_proj_qkvz", "attn_gate", delta_net.JOINED_GATE),
    _layer("linear_attn.in_proj_ba", "ssm_ba"),
    _layer("linear_attn.conv1d", "ssm_conv1d", delta_net.PLAIN_KERNEL),
    _layer("linear_attn.out_proj", "ssm_out"),
    Tensors(_LAYER + r"linear_attn\.A_log", r"blk.\1.ssm_a", delta_net.PLAIN_DECAY),
    Tensors(_LAYER + r"linear_attn\.dt_bias", r"blk.\1.ssm_dt.bias"),
)
_DELTA_INTEGERS = {
    **_INTEGERS,
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_DELTA_EXPERTS = {
    **{name: key for name, key in _DELTA_INTEGERS.items() if name != "intermediate_size"},
    "intermediate_size?": "feed_forward_length",
    **_EXPERT_COUNTS,
    **_EXPERT_WIDTH,
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}


def _qwen3_next(config: Values, folder: Folder) -> dict[str, Any]:
    return _positions(config, folder) | delta_net.keys(config)


def _qwen35(config: Values, folder: Folder) -> dict[str, Any]:
    return _qwen3_next(config, folder) | delta_net.sections(config)


def _delta(architecture: str, layers: tuple[Tensors, ...], integers: Mapping[str, str], more: Keys) -> Family:
    return Family(
        architecture,
        _decoder(*layers, norm=PLUS_ONE),
        integers,
        _RMS,
        more,
        prefix=r"(?:model\.language_model\.|language_model\.model\.|model\.)?",
        unused=r"(?:model\.)?visual\..*",
        inner="text_config",
        names=delta_net.names,
    )


_QWEN35 = _delta("qwen35", (*_DELTA_35, *_MLP), _DELTA_INTEGERS, _qwen35)
_EXPERT_LAYERS = (*_EXPERTS, *_JOINED_EXPERTS, *_SHARED_EXPERT)
_QWEN35_MOE = _delta("qwen35moe", (*_DELTA_35, *_EXPERT_LAYERS), _DELTA_EXPERTS, _qwen35)

_GRANITE_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        "llama",
        _decoder(*_PAIRED_ATTENTION, *_MLP, *_NORMS),
        _INTEGERS,
        _RMS,
        _llama,
        rope.llama3_factors,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "qwen2": Family("qwen2", _decoder(*_ATTENTION, *_MLP, *_NORMS), _INTEGERS, _RMS, _positions),
    "qwen3": Family("qwen3", _decoder(*_ATTENTION, *_HEAD_NORMS, *_MLP, *_NORMS), _INTEGERS, _RMS, _positions),
    "gemma2": Family(
        "gemma2",
        _decoder(*_ATTENTION, *_MLP, *_GEMMA_NORMS, norm=PLUS_ONE),
        {**_INTEGERS, "sliding_window": "attention.sliding_window"},
        _RMS,
        _gemma2,
    ),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": Family(
        "phi3",
        _decoder(
            _layer("self_attn.qkv_proj", "attn_qkv"),
            _layer("self_attn.o_proj", "attn_output"),
            _layer("mlp.gate_up_proj", "ffn_up"),
            _layer("mlp.down_proj", "ffn_down"),
            *_NORMS,
        ),
        _INTEGERS,
        _RMS,
        _phi3,
        rope.longrope_factors,
    ),
    "gpt2": Family(
        "gpt2",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(r"wpe\.weight", "position_embd.weight"),
            Tensors(rf"ln_f\.{_ANY}", r"output_norm.\1"),
            Tensors(r"lm_head\.weight", "output.weight"),
            *(
                Tensors(rf"h\.(\d+)\.{name}\.{end}", rf"blk.\1.{target}.{end}", TRANSPOSED if end == "weight" else None)
                for name, target in (
                    (r"attn\.c_attn", "attn_qkv"),
                    (r"attn\.c_proj", "attn_output"),
                    (r"mlp\.c_fc", "ffn_up"),
                    (r"mlp\.c_proj", "ffn_down"),
                )
                for end in ("weight", "bias")
            ),
            _layer("ln_1", "attn_norm", layer=r"h\.(\d+)\."),
            _layer("ln_2", "ffn_norm", layer=r"h\.(\d+)\."),
        ),
        {
            "n_ctx|n_positions": "context_length",
            "n_embd": "embedding_length",
            "n_layer": "block_count",
            "n_head": "attention.head_count",
        },
        {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        _gpt2,
        prefix=r"(?:transformer\.)?",
        unused=r"h\.\d+\.attn\.(masked_)?bias",
    ),
    "bert": Family(
        "bert",
        (
            Tensors(r"embeddings\.word_embeddings\.weight", "token_embd.weight"),
            Tensors(r"embeddings\.token_type_embeddings\.weight", "token_types.weight"),
            Tensors(r"embeddings\.position_embeddings\.weight", "position_embd.weight"),
            Tensors(rf"embeddings\.LayerNorm\.{_ANY}", r"token_embd_norm.\1"),
            _bert_layer("attention.self.query", "attn_q"),
            _bert_layer("attention.self.key", "attn_k"),
            _bert_layer("attention.self.value", "attn_v"),
            _bert_layer("attention.output.dense", "attn_output"),
            _bert_layer("attention.output.LayerNorm", "attn_output_norm"),
            _bert_layer("intermediate.dense", "ffn_up"),
            _bert_layer("output.dense", "ffn_down"),
            _bert_layer("output.LayerNorm", "layer_output_norm"),
        ),
        {
            "max_position_embeddings": "context_length",
            "hidden_size": "embedding_length",
            "num_hidden_layers": "block_count",
            "intermediate_size": "feed_forward_length",
            "num_attention_heads": "attention.head_count",
        },
        {"layer_norm_eps": "attention.layer_norm_epsilon"},
        _bert,
        prefix=r"(?:bert\.)?",
        unused=r"embeddings\.position_ids|pooler\..*|cls\..*",
        vocabularies=("WordPiece",),
        head=None,
    ),
}
FAMILIES |= {
    "mistral": FAMILIES["llama"],
    "mixtral": Family(
        "llama",
        _decoder(*_PAIRED_ATTENTION, *_SPARSE_EXPERTS, *_NORMS),
        {**_INTEGERS, **_EXPERT_COUNTS},
        _RMS,
        _llama,
    ),
    "smollm3": Family("smollm3", FAMILIES["llama"].tensors, _INTEGERS, _RMS, _llama, rope.llama3_factors),
    "granite": Family("granite", FAMILIES["llama"].tensors, _INTEGERS, {**_RMS, **_GRANITE_SCALES}, _llama),
    "ernie4_5": Family("ernie4_5", _decoder(*_ATTENTION, *_MLP, *_NORMS), _INTEGERS, _RMS, _positions),
    "seed_oss": Family(
        "seed_oss", _decoder(*_ATTENTION, *_MLP, _NORMS[0], _ATTENTION_AFTER[0]), _INTEGERS, _RMS, _positions
    ),
    "exaone4": Family(
        "exaone4",
        _decoder(*_ATTENTION, *_HEAD_NORMS, *_MLP, *_ATTENTION_AFTER),
        _INTEGERS,
        _RMS,
        _exaone4,
        rope.llama3_factors,
    ),
    "olmo2": Family("olmo2", _decoder(*_ATTENTION, *_HEAD_NORMS, *_MLP, *_ATTENTION_AFTER), _INTEGERS, _RMS, _windows),
    "qwen2_moe": Family(
        "qwen2moe",
        _decoder(*_ATTENTION, *_EXPERTS, *_SHARED_EXPERT, *_NORMS),
        {
            **_INTEGERS,
            **_EXPERT_COUNTS,
            **_EXPERT_WIDTH,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        _RMS,
        _positions,
    ),
    "qwen3_moe": Family(
        "qwen3moe",
        _decoder(*_ATTENTION, *_HEAD_NORMS, *_EXPERTS, *_NORMS),
        {**_INTEGERS, **_EXPERT_COUNTS, **_EXPERT_WIDTH},
        _RMS,
        _positions,
    ),
    "minimax_m2": Family(
        "minimax-m2",
        _decoder(
            *_ATTENTION,
            *_HEAD_NORMS,
            *_SPARSE_EXPERTS,
            Tensors(_LAYER + r"block_sparse_moe\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
            *_NORMS,
        ),
        {**_INTEGERS, **_EXPERT_COUNTS},
        _RMS,
        _minimax,
    ),
}
FAMILIES |= {
    "olmo3": FAMILIES["olmo2"],
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35_MOE,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _delta("qwen3next", (*_DELTA_NEXT, *_EXPERT_LAYERS), _DELTA_EXPERTS, _qwen3_next),
}
FAMILIES |= dict.fromkeys(("t5", "mt5", "umt5"), _T5)
"""By ``model_type`` of ``config.json``."""


def family_of(config: Values) -> tuple[Family, Values]:
    """The family of a model, and the settings of its language model.  Raises ModelError for an unknown family."""
    kind = config.text("model_type")
    if kind not in FAMILIES:
        raise config.refused("model_type", f"one of {', '.join(sorted(FAMILIES))}: no other family is supported")
    family = FAMILIES[kind]
    return family, config.inner(family.inner, config) if family.inner else config
