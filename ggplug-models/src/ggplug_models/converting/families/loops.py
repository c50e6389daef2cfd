"""Decoders that are computed several times for a token."""

from __future__ import annotations

import re
from typing import Any

from ggplug_models.converting import rope
from ggplug_models.converting.families.dense import FAMILIES as DENSE
from ggplug_models.converting.family import Family, Tensors, first_integer, head_dim, part
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.rows import ATTENTION, INTEGERS, MLP, RMS, decoder, layer, llama_keys, positions
from ggplug_models.metadata.values import Values

_OF_STACK = "num_layers_per_stack|num_hidden_layers"


def _stacks(name: str, config: Values) -> str:
    """The name of a tensor; the blocks of the high stack are those after the low one's."""
    match = re.match(r"model\.([LH])_module\.layers\.(\d+)\.(.+)", name)
    if match is None:
        return name
    number = int(match[2]) + (first_integer(config, _OF_STACK) if match[1] == "H" else 0)
    return f"layers.{number}.{match[3]}"


def _hrm(config: Values, folder: Folder) -> dict[str, Any]:
    """The keys; a file has the blocks of both stacks once, and counts how often blocks are computed."""
    computed = config.integer("H_cycles") * (config.integer("L_cycles") + 1)
    return {
        **positions(config, folder),
        "block_count": first_integer(config, _OF_STACK) * computed,
        "rope.dimension_count": head_dim(config),
        "hrm.prefix_lm": config.boolean("prefix_lm", False),
    }


def _nanbeige(config: Values, folder: Folder) -> dict[str, Any]:
    return {
        **llama_keys(config, folder),
        "num_loops": config.integer("num_loops", 1),
        "skip_loop_final_norm": config.boolean("skip_loop_final_norm", False),
    }


FAMILIES: dict[str, Family] = {
    "hrm_text": Family(
        "hrm_text",
        decoder(
            *ATTENTION,
            layer("self_attn.gate_proj", "attn_gate"),
            *(
                layer("attn.gqkv_proj", f"attn_{name}", part(number, 4))
                for number, name in enumerate(("gate", "q", "k", "v"))
            ),
            layer("attn.o_proj", "attn_output"),
            *MLP,
            layer("mlp.gate_up_proj", "ffn_gate", part(0)),
            layer("mlp.gate_up_proj", "ffn_up", part(1)),
            Tensors(r"z_L_init", "hrm.z_l_init"),
        ),
        {
            **{key: to for key, to in INTEGERS.items() if to != "block_count"},
            _OF_STACK: "hrm.layers_per_stack",
            "H_cycles": "hrm.h_cycles",
            "L_cycles": "hrm.l_cycles",
        },
        {**RMS, "embedding_scale": "embedding_scale"},
        _hrm,
        names=_stacks,
    ),
    "nanbeige": Family("nanbeige", DENSE["llama"].tensors, INTEGERS, RMS, _nanbeige, scalings=rope.LLAMA3),
}
