"""The large mixtures of 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggplug.errors import ModelError
from ggplug_models.checks.arguments import natural
from ggplug_models.converting import rope
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.family import Family, Tensors, apart, first_integer, head_dim
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import (
    ATTENTION,
    EXPERT_COUNTS,
    INTEGERS,
    MLP,
    PAIRED_ATTENTION,
    RMS,
    SPARSE_EXPERTS,
    decoder,
    layers,
    llama_keys,
    positions,
)
from ggplug_models.converting.tokens.token_table import UNKNOWN, USER_DEFINED
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.encoders import CONTROL
from ggplug_models.tokenizers.vocabulary import SCORES, TOKEN_TYPE, TOKENS


def _dbrx(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys, of settings of which some stand in objects for attention and network."""
    attention, network = config.inner("attn_config"), config.inner("ffn_config")
    network.inner("ffn_act_fn", Values({"name": "silu"})).text("name", one_of=("silu",))
    if network.values.get("moe_normalize_expert_weights", 1) != 1:  # null: they are not normalised
        raise network.refused("moe_normalize_expert_weights", "1: dbrx models in GGUF files have nothing else")
    clip = attention.number("clip_qkv", None, at_least=0)
    base = rope.settings(config).number("rope_theta", 10000.0, at_least=0)
    return {
        "feed_forward_length": network.integer("ffn_hidden_size"),
        "attention.head_count_kv": attention.integer("kv_n_heads"),
        "rope.freq_base": attention.number("rope_theta", base, at_least=0),
        **({} if clip is None else {"attention.clamp_kqv": clip}),
        "expert_count": network.integer("moe_num_experts"),
        "expert_used_count": network.integer("moe_top_k"),
        "attention.layer_norm_epsilon": 1e-5,
    }


_OF_EXPERTS = r"blocks\.(\d+)\.ffn\.experts\.mlp\."
_NUMBER_OF_EXPERTS = ("moe_num_experts", "ffn_config")
_YARN_OF_GROK = {
    "scaling_factor": "factor",
    "extrapolation_factor": "yarn_ext_factor",
    "attn_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def _grok(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; scaling of RoPE stands among the other settings, and "original" means YaRN."""
    found = positions(config, folder)
    if (
        "rope_type" in config
        and "rope.scaling.type" not in found
        and config.text("rope_type", one_of=("default", "yarn", "original")) != "default"
    ):
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.original_context_length"] = config.integer("original_max_position_embeddings")
        found |= {f"rope.scaling.{key}": config.number(name) for name, key in _YARN_OF_GROK.items()}
    for setting, key in (
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("attn_temperature_len", "attention.temperature_length"),
    ):
        if setting in config:
            found[key] = config.integer(setting)
    if cap := config.number("final_logit_softcapping", 0.0, at_least=0):
        found["final_logit_softcapping"] = cap
    return {
        **found,
        "attn_logit_softcapping": config.number("attn_logit_softcapping", 30.0, at_least=0),
        "router_logit_softcapping": config.number("router_logit_softcapping", 30.0, at_least=0),
        "attention.output_scale": config.number("attn_output_multiplier", head_dim(config) ** -0.5, at_least=0),
    }


def _whole(weights: Mapping[str, Stored], config: Values) -> dict[str, Any]:
    """Nothing; checks that no file has a part of the rows of an expert's matrix, as those of xAI's folder have."""
    wide = first_integer(config, "moe_intermediate_size|intermediate_size")
    for name, stored in weights.items():
        if name.endswith((".experts.0.w1.weight", ".moe.0.linear.weight")) and stored.shape[0] != wide:
            raise ModelError(
                f"{stored.path}: tensor {name!r} has {stored.shape[0]} rows, expected {wide}: matrices that are split "
                "between files are not joined",
                tensor=name,
                got=stored.shape[0],
                wanted=wide,
                remedy="save the model with whole matrices",
            )
    return {}


def _moe_of_grok() -> tuple[Tensors, ...]:
    names = {"linear": "ffn_gate_exps", "linear_v": "ffn_up_exps", "linear_1": "ffn_down_exps"}
    return tuple(
        Tensors(rf"{_DECODER}moe\.(\d+)\.{name}\.weight", rf"blk.\1.{target}.weight", of_experts=True)
        for name, target in names.items()
    )


_DECODER = r"decoder_layer\.(\d+)\."
_GROK = Family(
    "grok",
    (
        *decoder(
            *ATTENTION,
            *MLP,
            *SPARSE_EXPERTS,
            *layers(
                {
                    "pre_attn_norm": "attn_norm",
                    "post_attn_norm": "attn_output_norm",
                    "pre_moe_norm": "ffn_norm",
                    "post_moe_norm": "post_ffw_norm",
                }
            ),
        ),
        Tensors(r"in_out_embed\.weight", "token_embd.weight"),
        Tensors(r"rms_norm\.weight", "output_norm.weight"),
        *layers(
            {
                **{
                    f"multi_head_attention.{name}": f"attn_{target}"
                    for name, target in {"query": "q", "key": "k", "value": "v", "linear": "output"}.items()
                },
                "rms_norm": "attn_norm",
                "rms_norm_1": "attn_output_norm",
                "rms_norm_2": "ffn_norm",
                "rms_norm_3": "layer_output_norm",
                "router": "ffn_gate_inp",
            },
            block=_DECODER,
        ),
        *_moe_of_grok(),
    ),
    {**INTEGERS, **EXPERT_COUNTS},
    {**RMS, "embedding_multiplier_scale": "embedding_scale", "output_multiplier_scale": "logit_scale"},
    _grok,
    prefix=r"(?:model\.|transformer\.)?",
    of_weights=_whole,
)


def _arctic_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """The tokens that the settings of the tokenizer put in the place of others, or add."""
    texts, types, scores = list(found[TOKENS]), found[TOKEN_TYPE].copy(), found[SCORES].copy()
    settings = folder.optional_json("tokenizer_config.json") or Values({})
    added = settings.inner("added_tokens_decoder", Values({}))
    for key in added.values:
        entry, token = added.inner(key), natural(key)
        if token is None or token >= len(texts):
            continue
        texts[token], types[token], scores[token] = entry.text("content"), USER_DEFINED, -10000
        if entry.boolean("special", False):
            unknown = texts[token] == settings.text("unk_token", None)
            types[token], scores[token] = UNKNOWN if unknown else CONTROL, 0
    return {TOKENS: texts, TOKEN_TYPE: types, SCORES: scores}


FAMILIES: dict[str, Family] = {
    "dbrx": Family(
        "dbrx",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(r"norm_f\.weight", "output_norm.weight"),
            Tensors(r"lm_head\.weight", "output.weight"),
            *layers(
                {
                    "norm_attn_norm.norm_1": "attn_norm",
                    "norm_attn_norm.attn.Wqkv": "attn_qkv",
                    "norm_attn_norm.attn.out_proj": "attn_output",
                    "norm_attn_norm.norm_2": "attn_output_norm",
                    "ffn.router.layer": "ffn_gate_inp",
                },
                block=r"blocks\.(\d+)\.",
            ),
            Tensors(_OF_EXPERTS + "w1", r"blk.\1.ffn_gate_exps.weight", apart(*_NUMBER_OF_EXPERTS)),
            Tensors(_OF_EXPERTS + "v1", r"blk.\1.ffn_up_exps.weight", apart(*_NUMBER_OF_EXPERTS)),
            Tensors(_OF_EXPERTS + "w2", r"blk.\1.ffn_down_exps.weight", apart(*_NUMBER_OF_EXPERTS, turned=True)),
        ),
        {
            "max_seq_len": "context_length",
            "d_model": "embedding_length",
            "n_layers": "block_count",
            "n_heads": "attention.head_count",
        },
        more=_dbrx,
        prefix=r"(?:transformer\.)?",
        scalings=(),
        as_matrices=r"blk\.\d+\.ffn_gate_inp\.weight",
    ),
    **dict.fromkeys(("grok", "grok-1", "git"), _GROK),
    "arctic": Family(
        "arctic",
        decoder(
            *PAIRED_ATTENTION,
            *SPARSE_EXPERTS,
            *layers(
                {
                    "residual_mlp.w1": "ffn_gate",
                    "residual_mlp.w2": "ffn_down",
                    "residual_mlp.w3": "ffn_up",
                    "input_layernorm": "attn_norm",
                    "residual_layernorm": "ffn_norm",
                    "post_attention_layernorm": "ffn_norm_exps",
                }
            ),
        ),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        llama_keys,
        vocabulary=_arctic_tokens,
    ),
}
