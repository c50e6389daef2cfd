"""Decoders with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ggplug_models.converting import delta_net, rope
from ggplug_models.converting.family import (
    PAIRED_K,
    PAIRED_Q,
    Array,
    Change,
    Family,
    Tensors,
    head_dim,
    in_heads,
    n_heads,
    n_kv_heads,
    part,
)
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.hunyuan import HUNYUAN_SCALINGS, LATER_HEAD_NORMS, hunyuan_positions
from ggplug_models.converting.rows import (
    AHEAD,
    ATTENTION,
    BIAS_OF_CHOICE,
    EXPERT_COUNTS,
    EXPERT_WIDTH,
    EXPERTS,
    GATING,
    GLM_SPECIAL,
    GLM_SPLITTING,
    HEAD_NORMS,
    INTEGERS,
    LAYER,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    ROUTED,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    SIGMOID,
    SPARSE_EXPERTS,
    Keys,
    decoder,
    layer,
    layers,
    llama_keys,
    of_experts,
    one_window,
    positions,
    routing,
    unusual_weights,
    windows,
)
from ggplug_models.metadata.values import Values


def _minimax(config: Values, folder: Folder) -> dict[str, Any]:
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return {
        **positions(config, folder),
        "expert_gating_func": GATING[config.text("scoring_func", "sigmoid", one_of=("sigmoid", "softmax"))],
        "expert_feed_forward_length": config.integer("intermediate_size"),
        "rope.dimension_count": config.integer("rotary_dim", int(part * head_dim(config))),
    }


def _llama4(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Llama 4; a window of 0 says that all blocks attend to all positions."""
    layers = config.values.get("layer_types")
    everywhere = isinstance(layers, list) and {*map(str, layers)} == {"full_attention"}
    return llama_keys(config, folder) | ({"attention.sliding_window": 0} if everywhere else {})


def _turned(axis: int, *, either: bool = False) -> Change:
    """The matrices of experts with rows as columns, unless the width of the model stands on another axis than ``axis``.

    ``either``: folders that transformers writes have them turned already, so square ones, which may be either, are
    refused.
    """

    def is_turned(shape: tuple[int, ...], config: Values) -> bool:
        if either and shape[-1] == shape[-2]:
            wanted = f"other than the width of experts' matrices ({shape[-1]}), whose rows may be inputs or outputs"
            raise config.refused("hidden_size", wanted)
        return shape[axis] != config.integer("hidden_size")

    def apply(values: Array, config: Values) -> Array:
        return values if is_turned(values.shape, config) else np.ascontiguousarray(values.swapaxes(-1, -2))

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        return old if is_turned(old, config) else (*old[:-2], old[-1], old[-2])

    return Change(apply, shape)


_TURNED = _turned(-1)


def turned_experts(*, either: bool = False) -> tuple[Tensors, ...]:
    """Matrices of all experts, whose rows are inputs; ``either``: or outputs."""
    both = _turned(-2, either=either)
    return (
        Tensors(LAYER + r"\w+\.experts\.gate_up_proj", r"blk.\1.ffn_gate_exps.weight", both.then(part(0))),
        Tensors(LAYER + r"\w+\.experts\.gate_up_proj", r"blk.\1.ffn_up_exps.weight", both.then(part(1))),
        Tensors(LAYER + r"\w+\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight", _turned(-1, either=either)),
    )


def _shared(module: str) -> tuple[Tensors, ...]:
    return layers({f"{module}.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")})


_LLAMA4 = Family(
    "llama4",
    decoder(
        *ATTENTION,
        *NORMS,
        *layers({f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}),
        *_shared("feed_forward.shared_expert"),
        layer("feed_forward.router", "ffn_gate_inp"),
        *turned_experts(),
    ),
    {
        **{name: key for name, key in INTEGERS.items() if name != "intermediate_size"},
        "intermediate_size_mlp": "feed_forward_length",
        "intermediate_size": "expert_feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
        **EXPERT_COUNTS,
    },
    RMS,
    _llama4,
    scalings=rope.LLAMA3,
    prefix=r"(?:language_model\.model\.|model\.language_model\.|language_model\.|model\.)?",
    unused=r"(?:.*\.)?(?:vision_model|multi_modal_projector)\..*",
    inner="text_config",
)


def _glm4_moe(config: Values, folder: Folder) -> dict[str, Any]:
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", None, at_least=0)
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return {
        **positions(config, folder),
        **routing(config),
        **SIGMOID,
        "rope.dimension_count": int(head_dim(config) * part),
        **({} if ahead is None else {"block_count": n + ahead, "nextn_predict_layers": ahead}),
    }


def _dots1(config: Values, folder: Folder) -> dict[str, Any]:
    return {**positions(config, folder), **SIGMOID, **routing(config)}


def _exaone_moe(config: Values, folder: Folder) -> dict[str, Any]:
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", 0, at_least=0)
    shared = config.integer("num_shared_experts", at_least=0)
    found = windows(config, folder)
    if "attention.sliding_window_pattern" in found:
        found["attention.sliding_window_pattern"] += [False] * ahead
    return {
        **found,
        **routing(config),
        "vocab_size": config.integer("vocab_size"),
        "block_count": n + ahead,
        "nextn_predict_layers": ahead,
        "expert_shared_feed_forward_length": shared * config.integer("moe_intermediate_size"),
        "rope.scaling.type": "none",
    }


def _ernie45_moe(config: Values, folder: Folder) -> dict[str, Any]:
    shared = config.integer("moe_num_shared_experts", at_least=0)
    width = config.integer("intermediate_size") // config.integer("num_key_value_heads")
    return {
        **positions(config, folder),
        "leading_dense_block_count": config.integer("moe_layer_start_index", at_least=0),
        "expert_shared_count": shared,
        **({"expert_shared_feed_forward_length": width} if shared else {}),
    }


def _afmoe(config: Values, folder: Folder) -> dict[str, Any]:
    weights = {"expert_weights_norm": config.boolean("route_norm", True)}
    found = {**llama_keys(config, folder), **SIGMOID, **routing(config), **weights}
    if "sliding_window" in config:
        found["attention.sliding_window"] = config.integer("sliding_window")
    return found


def _gpt_oss(config: Values, folder: Folder) -> dict[str, Any]:
    return positions(config, folder) | {"expert_feed_forward_length": config.integer("intermediate_size")}


def _alternate(number: int) -> Change:
    """Every second column of each expert's matrix, or of its bias: the rows of the gate, or those of the other."""

    def apply(values: Array, config: Values) -> Array:
        taken = values[..., number::2]
        return np.ascontiguousarray(taken.swapaxes(-1, -2)) if taken.ndim == 3 else taken

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        return (old[0], old[2] // 2, old[1]) if len(old) == 3 else (old[0], old[1] // 2)

    return Change(apply, shape)


def _alternate_rows(number: int) -> Change:
    """The same of matrices whose rows are stored one after another, as those of blocks are."""
    return Change(
        lambda values, config: values[:, number::2], lambda shape, config: (shape[0], shape[1] // 2, shape[2])
    )


def _hunyuan_moe(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Hunyuan's mixtures, whose settings have a number for each block, all the same."""
    found = {
        key: _common(config, setting)
        for setting, key in (
            ("moe_intermediate_size", "expert_feed_forward_length"),
            ("moe_topk", "expert_used_count"),
            ("num_shared_expert", "expert_shared_count"),
        )
    }
    width = config.integer("intermediate_size")
    return {**hunyuan_positions(config, folder), **found, "expert_shared_feed_forward_length": width}


def _common(config: Values, setting: str) -> int:
    values = config.values.get(setting)
    if not isinstance(values, list):
        return config.integer(setting)
    if not values or type(values[0]) is not int or values[0] < 0 or any(each != values[0] for each in values):
        raise config.refused(setting, "an integer, or an array of equal integers")
    return values[0]


def _deepseek(config: Values, folder: Folder) -> dict[str, Any]:
    found = {**llama_keys(config, folder), **routing(config)}
    found.pop("expert_gating_func", None)
    found.pop("expert_weights_norm", None)
    weights = {**unusual_weights(config, usual=False), "expert_weights_scale": 1.0}
    return {**found, **weights, "rope.scaling.type": "none"}


_OCR_TEMPLATE = "{% for m in messages %}{{m['content']}}{% endfor %}"
"""DeepSeek-OCR reads the messages as they are; its folders have no template."""


def _deepseek_ocr(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of attention without a latent vector; published settings leave out the epsilon."""
    if config.boolean("use_mla", False):
        raise config.refused("use_mla", "false: of this model type, only models without latent attention are supported")
    found = routing(config)
    if not found.get("expert_weights_norm", True):
        del found["expert_weights_norm"]
    return {
        **rope.keys(config),
        **found,
        "vocab_size": config.integer("vocab_size"),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6, at_least=0),
        "rope.dimension_count": config.integer("qk_rope_head_dim", 0, at_least=0),
    }


def _ocr_template(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    return {"tokenizer.chat_template": found.get("tokenizer.chat_template", _OCR_TEMPLATE)}


def _bailing(config: Values, folder: Folder) -> dict[str, Any]:
    return {**llama_keys(config, folder), **routing(config), "expert_weights_scale": 1.0}


def _bailing2(config: Values, folder: Folder) -> dict[str, Any]:
    n, ahead = config.integer("num_hidden_layers"), config.integer("num_nextn_predict_layers", None, at_least=0)
    part = rope.settings(config).number("partial_rotary_factor", 0.5, at_least=0)
    width = config.integer("moe_intermediate_size") * config.integer("num_shared_experts")
    return {
        **positions(config, folder),
        **routing(config),
        "vocab_size": config.integer("vocab_size"),
        "rope.dimension_count": int(head_dim(config) * part),
        "expert_shared_feed_forward_length": config.integer("moe_shared_expert_intermediate_size", width),
        **({} if ahead is None else {"block_count": n + ahead, "nextn_predict_layers": ahead}),
    }


def _rows_of(part: str) -> Change:
    """The queries, the keys or the values of a matrix that has all of them, one after the other."""

    def bounds(config: Values) -> tuple[int, int, int]:
        heads, groups = n_heads(config), n_kv_heads(config)
        last = heads + 2 * groups
        first, end = {"q": (0, heads), "k": (heads, heads + groups), "v": (heads + groups, last)}[part]
        return first, end, last

    def apply(values: Array, config: Values) -> Array:
        first, end, n = bounds(config)
        rows = in_heads(values, n)[first:end].reshape(-1, *values.shape[1:])
        return rows if part == "v" else {"q": PAIRED_Q, "k": PAIRED_K}[part].apply(rows, config)

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        first, end, n = bounds(config)
        return (old[0] // n * (end - first), *old[1:])

    return Change(apply, shape)


def _normalised(values: Array, config: Values) -> Array:
    """The output matrix; ``norm_head``: with columns of length 1."""
    if not config.boolean("norm_head", False):
        return values
    values = np.asarray(values, np.float32)
    lengths = np.sqrt(np.square(values).sum(0, keepdims=True, dtype=np.float32))
    return np.asarray(values / (lengths + np.float32(1e-7)))


_BAILING = (
    Tensors(r"word_embeddings\.weight", "token_embd.weight"),
    Tensors(r"norm\.weight", "output_norm.weight"),
    layer("attention.dense", "attn_output"),
    *MLP,
    *NORMS,
    *EXPERTS,
    *SHARED_EXPERTS,
)


def _smallthinker(config: Values, folder: Folder) -> dict[str, Any]:
    width, layout = config.integer("moe_ffn_hidden_size"), config.values.get("sliding_window_layout")
    found = {**positions(config, folder), "feed_forward_length": width, "expert_feed_forward_length": width}
    found["expert_gating_func"] = GATING[
        "softmax" if config.boolean("moe_primary_router_apply_softmax", False) else "sigmoid"
    ]
    if isinstance(layout, list) and any(layout) and "sliding_window_size" in config:
        found["attention.sliding_window"] = config.integer("sliding_window_size")
    return found


def _normalising(*, usual: bool) -> Keys:
    """The keys of positions, and of how expert weights are normalised if that is not ``usual``."""
    return lambda config, folder: {**positions(config, folder), **unusual_weights(config, usual=usual)}


FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        "llama",
        decoder(*PAIRED_ATTENTION, *SPARSE_EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        lambda config, folder: llama_keys(config, folder) | one_window(config),
        scalings=rope.LLAMA3,
    ),
    "qwen2_moe": Family(
        "qwen2moe",
        decoder(*ATTENTION, *EXPERTS, *SHARED_EXPERT, *NORMS),
        {
            **INTEGERS,
            **EXPERT_COUNTS,
            **EXPERT_WIDTH,
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        RMS,
        _normalising(usual=False),
    ),
    "qwen3_moe": Family(
        "qwen3moe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS, **EXPERT_WIDTH},
        RMS,
        _normalising(usual=True),
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "glm4_moe": Family(
        "glm4moe",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP,
            NORMS[0],
            layer("post_attention_layernorm", "post_attention_norm"),
            *EXPERTS,
            *SHARED_EXPERTS,
            *BIAS_OF_CHOICE,
            *AHEAD,
        ),
        {**INTEGERS, **ROUTED},
        RMS,
        _glm4_moe,
        special=GLM_SPECIAL,
        splitting=GLM_SPLITTING,
    ),
    "dots1": Family(
        "dots1",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS, *BIAS_OF_CHOICE),
        {**INTEGERS, **ROUTED},
        RMS,
        _dots1,
    ),
    "exaone_moe": Family(
        "exaone-moe",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS, *BIAS_OF_CHOICE, *AHEAD),
        {**INTEGERS, **ROUTED},
        RMS,
        _exaone_moe,
        scalings=("llama3",),
        names=delta_net.names,
    ),
    "ernie4_5_moe": Family(
        "ernie4_5-moe",
        decoder(
            *ATTENTION,
            *MLP,
            *NORMS,
            *EXPERTS,
            *SHARED_EXPERTS,
            Tensors(LAYER + r"mlp\.moe_statics\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
        ),
        {
            **INTEGERS,
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_intermediate_size?": "expert_feed_forward_length",
        },
        RMS,
        _ernie45_moe,
        unused=r"mtp_.*",
        prefix=r"(?:ernie\.|model\.)?",
    ),
    "afmoe": Family(
        "afmoe",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP,
            *EXPERTS,
            *SHARED_EXPERTS,
            *BIAS_OF_CHOICE,
            *layers(
                {
                    "input_layernorm": "attn_norm",
                    "post_attention_layernorm": "post_attention_norm",
                    "pre_mlp_layernorm": "ffn_norm",
                    "post_mlp_layernorm": "post_ffw_norm",
                    "self_attn.gate_proj": "attn_gate",
                    "mlp.router.gate": "ffn_gate_inp",
                }
            ),
        ),
        {**INTEGERS, **ROUTED},
        {**RMS, "route_scale": "expert_weights_scale"},
        _afmoe,
    ),
    "gpt_oss": Family(
        "gpt-oss",
        decoder(
            *ATTENTION,
            NORMS[0],
            layer("post_attention_layernorm", "post_attention_norm"),
            layer("mlp.router", "ffn_gate_inp"),
            Tensors(LAYER + r"self_attn\.sinks", r"blk.\1.attn_sinks.weight"),
            *(
                Tensors(rf"{LAYER}mlp\.experts\.gate_up_proj{old}", rf"blk.\1.{target}.{end}", _alternate(number))
                for number, target in enumerate(("ffn_gate_exps", "ffn_up_exps"))
                for old, end in (("", "weight"), ("_bias", "bias"))
            ),
            *(
                Tensors(
                    LAYER + r"mlp\.experts\.gate_up_proj_blocks", rf"blk.\1.{target}.weight", _alternate_rows(number)
                )
                for number, target in enumerate(("ffn_gate_exps", "ffn_up_exps"))
            ),
            Tensors(LAYER + r"mlp\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight", _TURNED),
            Tensors(LAYER + r"mlp\.experts\.down_proj_blocks", r"blk.\1.ffn_down_exps.weight"),
            Tensors(LAYER + r"mlp\.experts\.down_proj_bias", r"blk.\1.ffn_down_exps.bias"),
        ),
        {**INTEGERS, **EXPERT_COUNTS, "sliding_window": "attention.sliding_window"},
        RMS,
        _gpt_oss,
    ),
    "hunyuan_v1_moe": Family(
        "hunyuan-moe",
        decoder(
            *ATTENTION,
            *LATER_HEAD_NORMS,
            *NORMS,
            *EXPERTS,
            *_shared("mlp.shared_mlp"),
            layer("mlp.gate.wg", "ffn_gate_inp"),
        ),
        {**INTEGERS, "num_local_experts|num_experts": "expert_count"},
        RMS,
        _hunyuan_moe,
        scalings=HUNYUAN_SCALINGS,
    ),
    "deepseek": Family(
        "deepseek",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS),
        {**INTEGERS, **ROUTED},
        RMS,
        _deepseek,
        scalings=(),
    ),
    "deepseek_vl_v2": Family(
        "deepseek2-ocr",
        decoder(*ATTENTION, *MLP, *NORMS, *EXPERTS, *SHARED_EXPERTS),
        {**INTEGERS, **ROUTED},
        more=_deepseek_ocr,
        unused=r"(?:sam_model|vision_model|qwen2_model|projector)\..*|image_newline|view_seperator",
        inner="language_config",
        vocabulary=_ocr_template,
        scalings=(),
    ),
    "bailing_moe": Family(
        "bailingmoe",
        (
            *_BAILING,
            Tensors(r"lm_head\.weight", "output.weight", Change(_normalised)),
            *(layer("attention.query_key_value", f"attn_{part}", _rows_of(part)) for part in "qkv"),
        ),
        {**INTEGERS, **ROUTED},
        RMS,
        _bailing,
    ),
    "bailing_moe_v2": Family(
        "bailingmoe2",
        (
            *_BAILING,
            Tensors(r"lm_head\.weight", "output.weight"),
            *BIAS_OF_CHOICE,
            *AHEAD,
            *layers(
                {
                    "attention.query_key_value": "attn_qkv",
                    "attention.query_layernorm": "attn_q_norm",
                    "attention.key_layernorm": "attn_k_norm",
                    "final_layernorm": "nextn.shared_head_norm",
                }
            ),
        ),
        {**INTEGERS, **ROUTED},
        RMS,
        _bailing2,
    ),
    "smallthinker": Family(
        "smallthinker",
        decoder(
            *ATTENTION,
            *NORMS,
            *of_experts("block_sparse_moe", "gate", "up", "down"),
            layer("block_sparse_moe.primary_router", "ffn_gate_inp"),
        ),
        {
            **{key: to for key, to in INTEGERS.items() if key != "intermediate_size"},
            "moe_num_primary_experts": "expert_count",
            "moe_num_active_primary_experts": "expert_used_count",
        },
        RMS,
        _smallthinker,
    ),
    "olmoe": Family(
        "olmoe",
        decoder(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        _normalising(usual=False),
    ),
    "minimax_m2": Family(
        "minimax-m2",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *SPARSE_EXPERTS,
            Tensors(LAYER + r"block_sparse_moe\.e_score_correction_bias", r"blk.\1.exp_probs_b.bias"),
            *NORMS,
        ),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        _minimax,
    ),
}
