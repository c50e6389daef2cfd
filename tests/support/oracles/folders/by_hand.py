"""Tiny folders of models that transformers lack, of settings and shapes, and the shapes that several have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles import formula
from oracles.folders.recording import N_VOCAB, SHAPE, Tiny, write_json
from oracles.folders.vocabularies import pieces


@dataclass
class ByHand:
    """A model that transformers lack: its settings, and the shapes of its weights, those of a layer without prefix.

    ``layers``: the prefix of layers.  ``dense``: how many of the first layers have an MLP in the place of experts.
    """

    config: dict[str, Any]
    shapes: dict[str, list[int]]
    layers: str = "model.layers"
    dense: int | None = None

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        write_json(folder / "config.json", self.config)
        n_layers = next(self.config[key] for key in LAYERS if self.config.get(key))
        whole = {name: shape for name, shape in self.shapes.items() if name.startswith(WHOLE)}
        for n in range(n_layers):
            for name, shape in self.shapes.items():
                plain = re.match(r"mlp\.(gate|up|down)_proj", name)
                routed = name.startswith("mlp.") and not plain
                left_out = plain if n >= (self.dense or 0) else routed
                if not name.startswith(WHOLE) and not (left_out and any("experts" in each for each in self.shapes)):
                    whole[f"{self.layers}.{n}.{name}"] = shape
        formula.write(folder / "model.safetensors", whole, "F32")


LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_transformer_layers")
"""Names of the setting of their number."""


WHOLE = (
    "model.",
    "transformer.",
    "lm_head",
    "output.",
    "rwkv.",
    "head.",
    "embeddings.",
    "emb_ln.",
    "encoder.",
    "decoder.",
    "pooler.",
)


NAMES = {
    "minicpm": "MiniCPMForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "exaone": "ExaoneForCausalLM",
    "orion": "OrionForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_vl_v2": "DeepseekOCRForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "smallthinker": "SmallThinkerForCausalLM",
    "plm": "PLMForCausalLM",
    "maincoder": "MaincoderForCausalLM",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "Dream": "DreamModel",
    "rnd1": "RND1",
    "llama_bidirec": "LlamaBidirectionalModel",
    "llada_moe": "LLaDAMoEModelLM",
    "mistral3": "Mistral3ForConditionalGeneration",
    "rwkv6": "Rwkv6ForCausalLM",
    "pangu_embedded": "PanguEmbeddedForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "xverse": "XverseForCausalLM",
    "llada": "LLaDAModelLM",
    "plamo2": "Plamo2ForCausalLM",
    "plamo3": "Plamo3ForCausalLM",
    "nanbeige": "NanbeigeForCausalLM",
    "hrm_text": "HrmTextForCausalLM",
    "xlm-roberta": "XLMRobertaModel",
    "nomic_bert": "NomicBertModel",
    "bert": "JinaBertForMaskedLM",
    "neobert": "NeoBERTLMHead",
    "talkie": "TalkieForCausalLM",
    "qwen": "QWenLMHeadModel",
    "gpt_refact": "GPTRefactForCausalLM",
    "jais": "JAISLMHeadModel",
    "codeshell": "CodeShellForCausalLM",
    "chatglm": "ChatGLMForConditionalGeneration",
    "openelm": "OpenELMForCausalLM",
    "deci": "DeciLMForCausalLM",
    "nemotron-nas": "DeciLMForCausalLM",
    "plamo": "PlamoForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "git": "Grok1ForCausalLM",
    "grok-1": "GrokForCausalLM",
    "arctic": "ArcticForCausalLM",
    "llama": "BitnetForCausalLM",
    "paddleocr_vl": "PaddleOCRVLForConditionalGeneration",
    "hunyuan_vl": "HunYuanVLForConditionalGeneration",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "rwkv7": "RWKV7ForCausalLM",
    "maple": "MapleForCausalLM",
    "spark2_5": "Spark2_5ForCausalLM",
}
"""Of classes, by which llama.cpp's converter knows a model."""


NO_SHAPE = dict.fromkeys(name for name in SHAPE if name not in ("vocab_size", "bos_token_id", "eos_token_id"))
"""Takes out what published settings say under other names."""


def by_hand(kind: str, shapes: dict[str, list[int]], settings: dict[str, Any] | None = None, **more: Any) -> Tiny:
    """``more``: fields of Tiny and of ByHand, ``tokens`` for the vocabulary, and ``null``, settings that are null."""
    config = {**SHAPE, "rms_norm_eps": 1e-5, "rope_theta": 100.0, "tie_word_embeddings": False, **(settings or {})}
    config |= {"model_type": kind, "architectures": [NAMES[kind]]}
    config = {key: value for key, value in config.items() if value is not None} | dict.fromkeys(more.pop("null", ()))
    tokens, how = more.pop("tokens", pieces), {key: more.pop(key) for key in ("layers", "dense") if key in more}
    as_it_is = {"pad_token_id": None}
    return Tiny(lambda: ByHand(config, shapes, **how), tokens, "BF16", changes=as_it_is, **more)


LLAMA: dict[str, list[int]] = {
    "model.embed_tokens.weight": [N_VOCAB, 32],
    "lm_head.weight": [N_VOCAB, 32],
    "model.norm.weight": [32],
    **{f"self_attn.{name}_proj.weight": [16 if name in "kv" else 32, 32] for name in "qkvo"},
    **{f"mlp.{name}_proj.weight": [32, 48] if name == "down" else [48, 32] for name in ("gate", "up", "down")},
    **{f"{name}_layernorm.weight": [32] for name in ("input", "post_attention")},
}


LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm", "model.norm")


MIXTURE: dict[str, list[int]] = {
    **{
        f"mlp.{of}.{name}_proj.weight": [32, wide] if name == "down" else [wide, 32]
        for of, wide in (("shared_experts", 48), *((f"experts.{n}", 24) for n in range(4)))
        for name in ("gate", "up", "down")
    },
    "mlp.gate.weight": [4, 32],
}


MIXTURE_SETTINGS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


SEEING = {"model.visual.patch_embed.proj.weight": [32, 3, 2, 14, 14]}


DEEP = {"deepstack_visual_indexes": [1, 3, 5]}


def both(name: str, *shapes: list[int]) -> dict[str, list[int]]:
    """A weight and its bias, by the weight's shape."""
    (shape,) = shapes
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


LAYERS_OF_FOUR = ["full_attention", *["sliding_attention"] * 3]


def of_blocks(layers: str, *blocks: dict[str, list[int]]) -> dict[str, list[int]]:
    """The shapes of blocks that differ."""
    return {f"{layers}.{n}.{name}": shape for n, block in enumerate(blocks) for name, shape in block.items()}


GPT: dict[str, list[int]] = {
    "transformer.wte.weight": [N_VOCAB, 32],
    "lm_head.weight": [N_VOCAB, 32],
}
