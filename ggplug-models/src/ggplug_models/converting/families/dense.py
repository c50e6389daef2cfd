"""Decoders of attention and one MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ggplug.errors import ModelError
from ggplug_models.converting import rope
from ggplug_models.converting.checkpoint import Stored
from ggplug_models.converting.family import (
    PAIRED_K,
    PAIRED_Q,
    TRANSPOSED,
    Array,
    Change,
    Family,
    Tensors,
    head_dim,
    in_heads,
    n_heads,
    n_kv_heads,
)
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.hunyuan import (
    HUNYUAN_SCALINGS,
    LATER_HEAD_NORMS,
    hunyuan_positions,
    hunyuan_tokens,
)
from ggplug_models.converting.rows import (
    ANY,
    ATTENTION,
    ATTENTION_AFTER,
    EXPERT_COUNTS,
    GLM_SPLITTING,
    HEAD_NORMS,
    INTEGERS,
    MLP,
    NORMS,
    PAIRED_ATTENTION,
    RMS,
    SPARSE_EXPERTS,
    WIDTHS,
    decoder,
    layer,
    layers,
    llama_keys,
    one_window,
    positions,
    windows,
)
from ggplug_models.converting.tokens.sentencepiece import ADDS_SPACE, PIECES, rules
from ggplug_models.metadata.values import Values
from ggplug_models.tokenizers.vocabulary import TOKENS


def _phi3(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Phi 3; a sliding window of 0 distinguishes Phi 4."""
    settings, original = rope.settings(config), "original_max_position_embeddings"
    return rope.longrope_keys(config) | {
        "attention.head_count_kv": config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        "rope.scaling.original_context_length": settings.integer(
            original, config.integer(original, config.integer("max_position_embeddings"))
        ),
        "rope.dimension_count": rope.rotated(config),
        "rope.freq_base": settings.number("rope_theta", 10000.0, at_least=0),
        "attention.sliding_window": config.integer("sliding_window", 0),
    }


def _gpt2(config: Values, folder: Folder) -> dict[str, Any]:
    return {"feed_forward_length": config.integer("n_inner", 4 * config.integer("n_embd"))}


def _exaone4(config: Values, folder: Folder) -> dict[str, Any]:
    return windows(config, folder) | {"vocab_size": config.integer("vocab_size")}


def _glm4(config: Values, folder: Folder) -> dict[str, Any]:
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return positions(config, folder) | {"rope.dimension_count": int(part * head_dim(config))}


_GLM_END = "<|endoftext|>"


def _olmo(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of OLMo, whose norms have no weights and a fixed epsilon."""
    clamp = {"attention.clamp_kqv": config.number("clip_qkv", at_least=0)} if "clip_qkv" in config else {}
    return {**positions(config, folder), **clamp, "attention.layer_norm_epsilon": 1e-5}


def _mistral(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of Mistral: all blocks have a window, or those that the settings name, as in Ministral."""
    return llama_keys(config, folder) | (windows(config, folder) if "layer_types" in config else one_window(config))


def _ministral3(config: Values, folder: Folder) -> dict[str, Any]:
    scaling = rope.settings(config)
    scaling.text("rope_type", one_of=("yarn",))
    if scaling.number("mscale") != 1:
        raise scaling.refused("mscale", "1: GGUF files of these models have no key for it")
    return _mistral(config, folder) | {
        "rope.scaling.yarn_log_multiplier": scaling.number("mscale_all_dim"),
        "attention.temperature_scale": scaling.number("llama_4_scaling_beta"),
    }


def _xielu(weights: Mapping[str, Stored], config: Values) -> dict[str, Any]:
    """The parameters of the activation of each block."""
    found: dict[str, Any] = {}
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        of_blocks = []
        for number in range(config.integer("num_hidden_layers")):
            name = f"model.layers.{number}.mlp.act_fn.{part}"
            if name not in weights:
                raise ModelError(f"the folder has no tensor {name!r}, which apertus models need", tensor=name)
            of_blocks.append(float(np.asarray(weights[name].array(), np.float32).reshape(-1)[0]))
        found[f"xielu.{part}"] = np.array(of_blocks, np.float32)
    return found


def _scales_of_minicpm(config: Values, folder: Folder) -> dict[str, Any]:
    depth = config.integer("num_hidden_layers")
    return {
        **positions(config, folder),
        "embedding_scale": config.number("scale_emb"),
        "residual_scale": config.number("scale_depth") / depth**0.5,
        "logit_scale": config.integer("hidden_size") / config.integer("dim_model_base"),
    }


def _part_of_groups(part: str) -> Change:
    """The queries, the keys or the values of rows in which each head of keys has its queries, a key and a value."""

    def split(config: Values) -> tuple[int, int]:
        heads, groups = n_heads(config), n_kv_heads(config)
        if heads % groups:
            raise config.refused("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
        return groups, heads // groups

    def apply(values: Array, config: Values) -> Array:
        groups, queries = split(config)
        rest = values.shape[1:]
        heads = in_heads(values, groups * (queries + 2)).reshape(groups, queries + 2, -1, *rest)
        rows = {"q": heads[:, :queries], "k": heads[:, -2], "v": heads[:, -1]}[part].reshape(-1, *rest)
        return {"q": PAIRED_Q, "k": PAIRED_K}[part].apply(rows, config) if part != "v" else rows

    def shape(old: tuple[int, ...], config: Values) -> tuple[int, ...]:
        _, queries = split(config)
        return (old[0] // (queries + 2) * (queries if part == "q" else 1), *old[1:])

    return Change(apply, shape)


def _internlm_tokens(found: Mapping[str, Any], config: Values, folder: Folder) -> dict[str, Any]:
    """Whether texts begin with a space, as the pieces' file says; chats end with another token than texts."""
    ends = {"tokenizer.ggml.eos_token_id": found[TOKENS].index(_TURN_END)} if _TURN_END in found[TOKENS] else {}
    adds_space = rules(folder.read(PIECES), folder.path / PIECES).boolean(ADDS_SPACE)
    return {"tokenizer.ggml.add_space_prefix": adds_space, **ends}


_TURN_END = "<|im_end|>"


def _exaone(config: Values, folder: Folder) -> dict[str, Any]:
    config.text("activation_function", "silu", one_of=("silu",))
    width = config.integer("hidden_size") // n_heads(config)
    part = rope.settings(config).number("partial_rotary_factor", 1.0, at_least=0)
    return {
        **positions(config, folder),
        "rope.dimension_count": int(part * width),
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", at_least=0),
    }


def _orion(config: Values, folder: Folder) -> dict[str, Any]:
    heads = {"attention.head_count_kv": n_kv_heads(config)}
    return {**rope.base(config), **heads, "tensor_data_layout": _META}


_META = "Meta AI original pth"
_CONTEXT = "max_sequence_length|max_position_embeddings|model_max_length"


def _maincoder(config: Values, folder: Folder) -> dict[str, Any]:
    width = {"rope.dimension_count": head_dim(config)} if "head_dim" in config else {}
    return positions(config, folder) | width


def _ternary(values: Array, config: Values) -> Array:
    """The nearest of minus one, zero and one times the mean magnitude of a matrix."""
    weights = np.asarray(values, np.float32)
    scale = 1 / max(np.abs(weights).mean(dtype=np.float32), np.float32(1e-5))
    return np.asarray(np.clip(np.round(weights * scale), -1, 1) / scale, np.float32)


_TERNARY = Change(_ternary)


def _bitnet(config: Values, folder: Folder) -> dict[str, Any]:
    return {**rope.keys(config), "rope.scaling.type": "linear", "rope.scaling.factor": 1.0}


_BITNET = Family(
    "bitnet",
    decoder(
        *layers({f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}, _TERNARY),
        layer("self_attn.o_proj", "attn_output", _TERNARY),
        *layers({f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}, _TERNARY),
        *layers({"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"}),
        *NORMS,
    ),
    INTEGERS,
    RMS,
    _bitnet,
    unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    scalings=(),
)
"""Published settings of BitNet name LLaMA as the model type, and its own class."""

FAMILIES: dict[str, Family] = {
    "bitnet": _BITNET,
    "llama": Family(
        "llama",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        INTEGERS,
        RMS,
        llama_keys,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        scalings=rope.LLAMA3,
        variants=((lambda config: "BitnetForCausalLM" in config.texts("architectures", []), _BITNET),),
    ),
    "qwen2": Family("qwen2", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, positions),
    "qwen3": Family("qwen3", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS), INTEGERS, RMS, positions),
    "phi3": Family(
        "phi3",
        decoder(
            layer("self_attn.qkv_proj", "attn_qkv"),
            layer("self_attn.o_proj", "attn_output"),
            layer("mlp.gate_up_proj", "ffn_up"),
            layer("mlp.down_proj", "ffn_down"),
            *NORMS,
        ),
        INTEGERS,
        RMS,
        _phi3,
        scalings=rope.LONG,
    ),
    "phimoe": Family(
        "phimoe",
        decoder(*ATTENTION, *SPARSE_EXPERTS, *NORMS, Tensors(r"lm_head\.bias", "output.bias")),
        {**INTEGERS, **EXPERT_COUNTS},
        RMS,
        _phi3,
        scalings=rope.LONG,
    ),
    "gpt2": Family(
        "gpt2",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(r"wpe\.weight", "position_embd.weight"),
            Tensors(rf"ln_f\.{ANY}", r"output_norm.\1"),
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
            layer("ln_1", "attn_norm", layer=r"h\.(\d+)\."),
            layer("ln_2", "ffn_norm", layer=r"h\.(\d+)\."),
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
        scalings=(),
    ),
}
FAMILIES |= {
    "mistral": replace(FAMILIES["llama"], more=_mistral),
    "smollm3": Family("smollm3", FAMILIES["llama"].tensors, INTEGERS, RMS, llama_keys),
    "ernie4_5": Family("ernie4_5", decoder(*ATTENTION, *MLP, *NORMS), INTEGERS, RMS, positions),
    "seed_oss": Family("seed_oss", decoder(*ATTENTION, *MLP, NORMS[0], ATTENTION_AFTER[0]), INTEGERS, RMS, positions),
    "exaone4": Family(
        "exaone4",
        decoder(*ATTENTION, *HEAD_NORMS, *MLP, *ATTENTION_AFTER),
        INTEGERS,
        RMS,
        _exaone4,
        scalings=rope.LLAMA3,
    ),
    "olmo2": Family("olmo2", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *ATTENTION_AFTER), INTEGERS, RMS, windows),
}
FAMILIES["olmo3"] = FAMILIES["olmo2"]
FAMILIES |= {
    "glm4": Family(
        "glm4",
        decoder(
            *ATTENTION,
            *layers(
                {
                    "mlp.gate_up_proj": "ffn_up",
                    "mlp.down_proj": "ffn_down",
                    "input_layernorm": "attn_norm",
                    "post_self_attn_layernorm": "post_attention_norm",
                    "post_attention_layernorm": "ffn_norm",
                    "post_mlp_layernorm": "post_ffw_norm",
                }
            ),
        ),
        INTEGERS,
        RMS,
        _glm4,
        special={"eos": _GLM_END, "eot": "<|user|>", "unk": _GLM_END, "bos": _GLM_END},
        splitting=GLM_SPLITTING,
    ),
    "olmo": Family("olmo", decoder(*PAIRED_ATTENTION, *MLP), INTEGERS, more=_olmo),
    "ministral3": Family("mistral3", FAMILIES["llama"].tensors, INTEGERS, RMS, _ministral3, scalings=("yarn",)),
    "arcee": Family(
        "arcee", decoder(*PAIRED_ATTENTION, *MLP[1:], *NORMS), INTEGERS, RMS, llama_keys, scalings=rope.LLAMA3
    ),
    "apertus": Family(
        "apertus",
        decoder(
            *ATTENTION,
            *HEAD_NORMS,
            *MLP[1:],
            *layers({"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}),
        ),
        INTEGERS,
        RMS,
        llama_keys,
        unused=r"layers\.\d+\.mlp\.act_fn\..*",
        scalings=rope.LLAMA3,
        of_weights=_xielu,
    ),
    "hunyuan_v1_dense": Family(
        "hunyuan-dense",
        decoder(
            *ATTENTION,
            *LATER_HEAD_NORMS,
            *MLP,
            *NORMS,
        ),
        INTEGERS,
        RMS,
        hunyuan_positions,
        vocabulary=hunyuan_tokens,
        scalings=HUNYUAN_SCALINGS,
    ),
    "minicpm": Family(
        "minicpm",
        decoder(*PAIRED_ATTENTION, *MLP, *NORMS),
        INTEGERS,
        RMS,
        _scales_of_minicpm,
        scalings=(*rope.LLAMA3, *rope.LONG),
    ),
    "exaone": Family(
        "exaone",
        (
            Tensors(r"wte\.weight", "token_embd.weight"),
            Tensors(r"ln_f\.weight", "output_norm.weight"),
            Tensors(r"lm_head\.weight", "output.weight"),
            *(
                layer(name, target, layer=r"h\.(\d+)\.")
                for name, target in {
                    **{f"attn.attention.{part}_proj": f"attn_{part}" for part in "qkv"},
                    "attn.attention.out_proj": "attn_output",
                    "mlp.c_fc_0": "ffn_gate",
                    "mlp.c_fc_1": "ffn_up",
                    "mlp.c_proj": "ffn_down",
                    "ln_1": "attn_norm",
                    "ln_2": "ffn_norm",
                }.items()
            ),
        ),
        {
            **{key: to for key, to in INTEGERS.items() if not key.endswith(("layers", "hidden_layers"))},
            "num_layers|num_hidden_layers": "block_count",
        },
        {"layer_norm_epsilon": "attention.layer_norm_epsilon"},
        _exaone,
        scalings=rope.LLAMA3,
        prefix=r"(?:transformer\.)?",
        unused=r".*rotary.*inv_freq",
    ),
    "orion": Family(
        "orion",
        decoder(*ATTENTION, *MLP, *NORMS),
        {**{key: to for key, to in INTEGERS.items() if to != "context_length"}, _CONTEXT: "context_length"},
        {"rms_norm_eps": "attention.layer_norm_epsilon"},
        _orion,
        unused=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    ),
    "maincoder": Family("maincoder", decoder(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS), INTEGERS, RMS, _maincoder),
    "pangu_embedded": Family(
        "pangu-embedded",
        decoder(*ATTENTION, *MLP, *NORMS),
        INTEGERS,
        RMS,
        lambda config, folder: llama_keys(config, folder) | dict.fromkeys(WIDTHS, head_dim(config)),
    ),
    "internlm2": Family(
        "internlm2",
        (
            Tensors(r"tok_embeddings\.weight", "token_embd.weight"),
            Tensors(r"output\.weight", "output.weight"),
            Tensors(r"norm\.weight", "output_norm.weight"),
            *(layer("attention.wqkv", f"attn_{part}", _part_of_groups(part)) for part in "qkv"),
            *layers(
                {
                    "attention.wo": "attn_output",
                    "attention_norm": "attn_norm",
                    "ffn_norm": "ffn_norm",
                    "feed_forward.w1": "ffn_gate",
                    "feed_forward.w2": "ffn_down",
                    "feed_forward.w3": "ffn_up",
                }
            ),
        ),
        INTEGERS,
        RMS,
        positions,
        head="output.weight",
        vocabulary=_internlm_tokens,
    ),
}
