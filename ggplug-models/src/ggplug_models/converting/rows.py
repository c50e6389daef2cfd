"""Rows of tensors and keys of settings that the tables of several families share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug_models.converting import rope
from ggplug_models.converting.family import PAIRED_K, PAIRED_Q, Change, Tensors, head_dim, part
from ggplug_models.converting.folder import Folder
from ggplug_models.metadata.values import Values

Keys: TypeAlias = Callable[[Values, Folder], Mapping[str, Any]]

LAYER = r"layers\.(\d+)\."
ANY = r"(weight|bias)"


def layer(name: str, target: str, change: Change | None = None, layer: str = LAYER) -> Tensors:
    """The row for the weight and the bias of each layer."""
    return Tensors(rf"{layer}{re.escape(name)}\.{ANY}", rf"blk.\1.{target}.\2", change)


def layers(names: Mapping[str, str], change: Change | None = None, block: str = LAYER) -> tuple[Tensors, ...]:
    """The rows for the weights and the biases of each layer, by their names in it.  ``block``: the pattern of one."""
    return tuple(layer(name, target, change, block) for name, target in names.items())


def decoder(*layers: Tensors, norm: Change | None = None) -> tuple[Tensors, ...]:
    return (
        Tensors(r"embed_tokens\.weight", "token_embd.weight"),
        Tensors(rf"norm\.{ANY}", r"output_norm.\1", norm),
        Tensors(r"lm_head\.weight", "output.weight"),
        *layers,
    )


ATTENTION = (
    layer("self_attn.q_proj", "attn_q"),
    layer("self_attn.k_proj", "attn_k"),
    layer("self_attn.v_proj", "attn_v"),
    layer("self_attn.o_proj", "attn_output"),
)
PAIRED_ATTENTION = (
    layer("self_attn.q_proj", "attn_q", PAIRED_Q),
    layer("self_attn.k_proj", "attn_k", PAIRED_K),
    *ATTENTION[2:],
)
HEAD_NORMS = (layer("self_attn.q_norm", "attn_q_norm"), layer("self_attn.k_norm", "attn_k_norm"))
MLP = (
    layer("mlp.gate_proj", "ffn_gate"),
    layer("mlp.up_proj", "ffn_up"),
    layer("mlp.down_proj", "ffn_down"),
)
NORMS = (layer("input_layernorm", "attn_norm"), layer("post_attention_layernorm", "ffn_norm"))
INTEGERS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads?": "attention.head_count_kv",
}
RMS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
WIDTHS = ("attention.key_length", "attention.value_length")


def positions(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE, and the width of heads if the settings have one."""
    widths = dict.fromkeys(WIDTHS, head_dim(config)) if "head_dim" in config else {}
    return {**rope.keys(config), **widths}


def one_window(config: Values) -> dict[str, Any]:
    """The key of the window that all blocks have, if there is one; llama.cpp has no such key for these families."""
    return {"attention.sliding_window": config.integer("sliding_window")} if "sliding_window" in config else {}


def llama_keys(config: Values, folder: Folder) -> dict[str, Any]:
    vocabulary = {"vocab_size": config.integer("vocab_size")}
    return positions(config, folder) | vocabulary | {"rope.dimension_count": head_dim(config)}


ATTENTION_AFTER = (
    layer("post_attention_layernorm", "post_attention_norm"),
    layer("post_feedforward_layernorm", "post_ffw_norm"),
)
EXPERT_COUNTS = {"num_experts|num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
EXPERT_WIDTH = {"moe_intermediate_size": "expert_feed_forward_length"}
SHARED_EXPERT = (
    layer("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    layer("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    layer("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    layer("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
)


def of_experts(module: str, gate: str, up: str, down: str) -> tuple[Tensors, ...]:
    """The rows of experts, and of the matrix that chooses among them."""
    names = {gate: "ffn_gate_exps", up: "ffn_up_exps", down: "ffn_down_exps"}
    experts = (
        Tensors(rf"{LAYER}{module}\.experts\.(\d+)\.{name}\.weight", rf"blk.\1.{target}.weight", of_experts=True)
        for name, target in names.items()
    )
    return (layer(f"{module}.gate", "ffn_gate_inp"), *experts)


EXPERTS = of_experts("mlp", "gate_proj", "up_proj", "down_proj")
SPARSE_EXPERTS = of_experts("block_sparse_moe", "w1", "w3", "w2")


def windows(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys of RoPE, and of the sliding window with the blocks that have one."""
    found = positions(config, folder)
    if config.values.get("sliding_window") is None:
        return found
    layers = config.values.get("layer_types")
    if not isinstance(layers, list) or not {"sliding_attention", "full_attention"} >= {*map(str, layers)}:
        raise config.refused("layer_types", "an array of 'sliding_attention' and 'full_attention'")
    return found | {
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": [each == "sliding_attention" for each in layers],
    }


JOINED_EXPERTS = (
    Tensors(LAYER + r"mlp\.experts\.gate_up_proj", r"blk.\1.ffn_gate_exps.weight", part(0)),
    Tensors(LAYER + r"mlp\.experts\.gate_up_proj", r"blk.\1.ffn_up_exps.weight", part(1)),
    Tensors(LAYER + r"mlp\.experts\.down_proj", r"blk.\1.ffn_down_exps.weight"),
)


GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 3}
"""How the scores of experts are made of the router's results, as files number it."""

FINAL_NORM = Tensors(rf"final_layernorm\.{ANY}", r"output_norm.\1")
"""Of families that name it so."""

SIGMOID = {"expert_gating_func": GATING["sigmoid"]}
"""Of families whose settings may not say how scores are made."""

_SCORES = ("scoring_func", "score_function", "moe_router_activation_func", "score_func")
ROUTED = {
    "n_routed_experts|num_experts|num_local_experts": "expert_count",
    "num_experts_per_tok|num_experts_per_token": "expert_used_count",
    "n_group?": "expert_group_count",
    "topk_group?": "expert_group_used_count",
    **EXPERT_WIDTH,
}


def routing(config: Values) -> dict[str, Any]:
    """The keys of how experts are chosen and weighed, and of those that all tokens use, of the settings there are."""
    found: dict[str, Any] = {}
    for setting, key in {
        "first_k_dense_replace": "leading_dense_block_count",
        "num_dense_layers": "leading_dense_block_count",
        "n_shared_experts": "expert_shared_count",
        "num_shared_experts": "expert_shared_count",
    }.items():
        if setting in config:
            found[key] = config.integer(setting, at_least=0)
    if "routed_scaling_factor" in config:
        found["expert_weights_scale"] = config.number("routed_scaling_factor", at_least=0)
    if "norm_topk_prob" in config:
        found["expert_weights_norm"] = config.boolean("norm_topk_prob")
    scores = next((name for name in _SCORES if name in config), None)
    return found if scores is None else found | {"expert_gating_func": GATING[config.text(scores, one_of=GATING)]}


def unusual_weights(config: Values, *, usual: bool) -> dict[str, Any]:
    """The key of whether expert weights are divided by their sum, if that is not ``usual`` in the family.

    llama.cpp does what is usual, whatever the settings say.
    """
    found = config.boolean("norm_topk_prob", usual)
    return {} if found == usual else {"expert_weights_norm": found}


BIAS_OF_CHOICE = (
    Tensors(LAYER + r"\w+\.(?:gate\.|experts\.)?(?:e_score_correction_bias|expert_bias)", r"blk.\1.exp_probs_b.bias"),
)
SHARED_EXPERTS = layers(
    {
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }
)


def for_blocks(config: Values, setting: str, wanted: Collection[str]) -> list[str]:
    """The kinds of blocks, one of ``wanted`` for each."""
    kinds, n = config.values.get(setting), config.integer("num_hidden_layers")
    if not isinstance(kinds, list) or len(kinds) != n or not {*wanted} >= {*map(str, kinds)}:
        raise config.refused(setting, f"an array of {n} of {', '.join(wanted)}")
    return kinds


def of_blocks(value: int, where: Iterable[bool]) -> npt.NDArray[np.int32]:
    """A value for each block: ``value`` in some, and 0 in the others."""
    return np.array([value if each else 0 for each in where], np.int32)


GLM_SPLITTING = dict.fromkeys(("llama-bpe", "dbrx"), "glm4")
"""GLM's texts are split as Llama 3's, and begin with other tokens."""

GLM_SPECIAL = {"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>", "eom": "<|observation|>"}

AHEAD = layers(
    {
        "eh_proj": "nextn.eh_proj",
        "embed_tokens": "nextn.embed_tokens",
        "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm",
        "shared_head.head": "nextn.shared_head_head",
        "shared_head.norm": "nextn.shared_head_norm",
    }
)
"""Of blocks after the last, which guess further tokens."""
