"""Tiny folders made of the recorded models, and of others by hand."""

from __future__ import annotations

import base64
import inspect
import json
import re
import textwrap
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import tokenizers
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from oracles import formula
from oracles.dense import HALF_ROPE, ROPE
from oracles.experts import DEEPSEEK, GPT_OSS_ROPE
from oracles.families import FAMILIES
from oracles.folders.recording import (
    N_VOCAB,
    SHAPE,
    T5,
    TEMPLATE,
    TEXT,
    Tiny,
    byte_pairs,
    of_converter,
    of_transformers,
    qwen_tokens,
    reads_json,
    reads_pieces,
    replaced,
    sentence_pieces,
    unigrams,
    word_pieces,
    write_json,
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


def pieces(folder: Path) -> None:
    sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False})


def internlm_tokens(folder: Path) -> None:
    added = {"0": "<unk>", "1": "<s>", "2": "</s>", "318": "<|im_start|>", "319": "<|im_end|>"}
    decoder = {number: {"content": text, "special": True} for number, text in added.items()}
    sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": decoder})


def world_tokens(folder: Path) -> None:
    """RWKV's own list of tokens, of which some are no text."""
    tokens: list[str | bytes] = [
        *map(chr, range(97, 123)),
        "\n",
        "\n\n",
        "'",
        '"',
        "the",
        " fox",
        "\u00e9",
        b"\xff",
        b"\x00",
    ]
    sizes = [len(each.encode("utf-8") if isinstance(each, str) else each) for each in tokens]
    lines = [f"{n} {each!r} {size}\n" for n, (each, size) in enumerate(zip(tokens, sizes, strict=True), 1)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), "utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Rwkv6Tokenizer", "chat_template": TEMPLATE})


def glm_tokens(folder: Path) -> None:
    """Texts begin with two tokens."""
    special = ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|observation|>"]
    byte_pairs(folder, "glm4", special, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})
    whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    first = [(each, whole.token_to_id(each)) for each in special[1:3]]
    whole.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", pair="[gMASK] <sop> $A $B:1", special_tokens=first
    )
    whole.save(str(folder / "tokenizer.json"))


def llama_tokens(folder: Path) -> None:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    byte_pairs(folder, "llama-bpe", special, {"bos_token": special[0], "eos_token": special[2]})


def deepseek_tokens(folder: Path) -> None:
    names = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
    byte_pairs(folder, "llama-bpe", names, {"bos_token": names[0], "eos_token": names[1], "add_bos_token": True})


def listed_unigrams(folder: Path) -> None:
    """As the published files of XLM-R are made up, with the normaliser of T5's."""
    unigrams(folder)
    whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    content = sentencepiece_model_pb2.ModelProto()
    content.ParseFromString((folder / "spiece.model").read_bytes())
    (folder / "spiece.model").unlink()
    (folder / "added_tokens.json").unlink()
    model = json.loads(whole.to_str())["model"]
    listed = [
        ["<s>", 0.0],
        ["<pad>", 0.0],
        ["</s>", 0.0],
        ["<unk>", 0.0],
        *map(list, model["vocab"][3:]),
        ["<mask>", 0.0],
    ]
    whole = tokenizers.Tokenizer(models.Unigram([(text, score) for text, score in listed], unk_id=3))
    whole.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    whole.normalizer = normalizers.Precompiled(content.normalizer_spec.precompiled_charsmap)
    spaces = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    whole.pre_tokenizer = pre_tokenizers.Sequence(spaces)
    whole.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    whole.save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    settings = {"tokenizer_class": "XLMRobertaTokenizer", "clean_up_tokenization_spaces": True}
    write_json(
        folder / "tokenizer_config.json", {**settings, **{f"{name}_token": text for name, text in names.items()}}
    )


def jina_code_tokens(folder: Path) -> None:
    sentences(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings |= {"tokenizer_class": "RobertaTokenizer", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    write_json(folder / "tokenizer_config.json", settings)


def pooled_pieces(folder: Path) -> None:
    pieces(folder)
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(folder / "modules.json", [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])


def sentences(folder: Path) -> None:
    """Texts begin with one token and end with another."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    byte_pairs(folder, "gpt-2", special, names)
    whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(each, whole.token_to_id(each)) for each in special[1:3]],
    )
    whole.save(str(folder / "tokenizer.json"))


def merged_pieces(folder: Path) -> None:
    """Pairs of letters, with bytes, as ``tokenizer.json`` has them instead of ``tokenizer.model``."""
    whole = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    whole.normalizer = normalizers.Replace(" ", "\u2581")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    of_bytes = [f"<0x{n:02X}>" for n in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=[*special, *of_bytes], show_progress=False)
    whole.train_from_iterator([TEXT], trainer)
    content = json.loads(whole.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] in special]
    whole = tokenizers.Tokenizer.from_str(json.dumps(content))
    whole.add_tokens(["<|channel>", "<channel|>", "<tool>"])
    strip = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    whole.decoder = decoders.Sequence(strip)
    whole.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


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
OCR: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "use_mla": False,
    "kv_lora_rank": None,
    "q_lora_rank": None,
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0),
}
"""As published: the settings of the language model stand in an object of their own, and a second time outside of it."""
BAILING: dict[str, list[int]] = {
    "model.word_embeddings.weight": [N_VOCAB, 32],
    **{name: shape for name, shape in LLAMA.items() if not re.search("self_attn|embed_tokens", name)},
    "attention.query_key_value.weight": [64, 32],
    "attention.dense.weight": [32, 32],
}
SEEING = {"model.visual.patch_embed.proj.weight": [32, 3, 2, 14, 14]}
DEEP = {"deepstack_visual_indexes": [1, 3, 5]}
FALCON = {"num_kv_heads": 2, "parallel_attn": True, "bias": False, "alibi": False, "ffn_hidden_size": 128}
PLAMO: dict[str, list[int]] = {
    "model.embed_tokens.weight": [64, 32],
    "lm_head.weight": [64, 32],
    "model.norm.weight": [32],
    "mlp.gate_up_proj.weight": [96, 32],
    "mlp.down_proj.weight": [32, 48],
    **{f"{when}_{name}_norm.weight": [32] for when in ("pre", "post") for name in ("mixer", "mlp")},
}
PLAMO_ATTENTION = {"mixer.qkv_proj.weight": [64, 32], "mixer.o_proj.weight": [32, 32]}


def plamo_lines(folder: Path) -> None:
    """PLaMo's lines, of which some are of bytes; the table of embeddings has more rows."""
    named = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad", "op", "mask")]
    entries = [[text, 0.0, "UNKNOWN" if "unk" in text else "CONTROL", 0, 0, 0, 0] for text in named]
    entries += [[f"<0x{n:02X}>", 0.0, "BYTE", 0, 0, 0, 0] for n in (0, 65, 255)]
    entries += [[text, -n / 4, "NORMAL", 0, 0, 0, 0] for n, text in enumerate(("the", " fox", "\u00e9", "\n", "<sep>"))]
    entries.append(["<|plamo:reserved:0x1E|>", 0.0, "NORMAL", 0, 0, 0, 0])
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in entries)
    (folder / "tokenizer.jsonl").write_text(lines, "utf-8")
    names = {f"{name}_token": f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Plamo2Tokenizer", **names})


def mamba_of_plamo(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The first of two blocks, whose mixer is Mamba's."""
    mixer = {
        "in_proj.weight": [128, 32],
        "conv1d.weight": [64, 1, 4],
        "bcdt_proj.weight": [96, 64],
        "dt_proj.weight": [4, 64],
        **{key: [4] for key in ("dt_bias", "A_log", "D")},
        "out_proj.weight": [32, 64],
        "dt_norm_weight": [64],
        **{key: [16] for key in ("B_norm_weight", "C_norm_weight")},
    }
    return {f"model.layers.layers.0.mixer.{name}": shape for name, shape in mixer.items()}


def names_baichuan() -> AbstractContextManager[Any]:
    """Lets the converter name what is not queries, keys and values; as it is, it goes in a circle."""
    packed = of_converter("baichuan.BaichuanModel").modify_tensors
    plain = of_converter("base.TextModel").modify_tensors
    return replaced(
        "baichuan.BaichuanModel",
        "modify_tensors",
        lambda self, *of: packed(self, *of) if "W_pack" in of[1] else plain(self, *of),
    )


def of_embeddings(vocabulary: int, types: int, norm: str) -> dict[str, list[int]]:
    """The shapes of an encoder's embeddings.  ``norm``: the name of theirs."""
    return {
        "embeddings.word_embeddings.weight": [vocabulary, 32],
        "embeddings.token_type_embeddings.weight": [types, 32],
        **both(norm, [32]),
    }


def both(name: str, *shapes: list[int]) -> dict[str, list[int]]:
    """A weight and its bias, by the weight's shape."""
    (shape,) = shapes
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def adapted(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The names of modules with adapters, which lie next to the weights."""
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        if len(shape) == 2 and kind == "weight":
            inner = f"{module}.parametrizations.weight"
            found |= {f"{inner}.original": shape, f"{inner}.0.lora_A": [2, 4, shape[1]]}
            found[f"{inner}.0.lora_B"] = [2, shape[0], 4]
        else:
            found[name] = shape
    return found


def jina2(network: dict[str, list[int]]) -> dict[str, list[int]]:
    block: dict[str, list[int]] = {**both("attention.output.LayerNorm", [32]), **network}
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        block |= both(f"attention.{name}", [32, 32])
    return {f"encoder.layer.{n}.{name}": shape for n in range(2) for name, shape in block.items()}


JINA2: dict[str, Any] = {
    "rms_norm_eps": None,
    "rope_theta": None,
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_key_value_heads": None,
    "position_embedding_type": "alibi",
    "tie_word_embeddings": None,
    "type_vocab_size": 2,
    "vocab_size": 120,
}
LAYERS_OF_FOUR = ["full_attention", *["sliding_attention"] * 3]
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


def laguna_tokens(folder: Path) -> None:
    qwen_tokens(folder)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tool = next(each for each in content["added_tokens"] if each["content"] == "<tool>")
    tool["content"] = "</assistant>"
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    write_json(folder / "tokenizer_config.json", {**settings, "chat_template": "{% include 'chat_template.jinja' %}"})
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")


QWEN_WORDS = [b"th", b"the", b" f", b"ox", b" fox", b"\xc3\xa9", b" the"]
QWEN_NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))]


def qwen_ranks(folder: Path) -> None:
    """Tokens in base 64 with their ranks, bytes first."""
    tokens = [*(bytes([n]) for n in range(256)), *QWEN_WORDS]
    lines = "".join(f"{base64.b64encode(token).decode()} {n}\n" for n, token in enumerate(tokens))
    (folder / "qwen.tiktoken").write_text(lines, "utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "QWenTokenizer"})


def reads_ranks() -> AbstractContextManager[Any]:
    """Gives the converter what the published code of Qwen's tokenizer makes of its file."""
    plain = of_converter("qwen.QwenModel").set_vocab

    def set_vocab(self: Any) -> None:
        lines = (self.dir_model / "qwen.tiktoken").read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
        special = {name: n for n, name in enumerate(QWEN_NAMES, len(ranks))}
        made = SimpleNamespace(mergeable_ranks=ranks, special_tokens=special, get_vocab=lambda: {**special})
        with mock.patch("transformers.AutoTokenizer.from_pretrained", return_value=made):
            plain(self)

    return replaced("qwen.QwenModel", "set_vocab", set_vocab)


def reads_slopes() -> AbstractContextManager[Any]:
    """Lets the converter look at the slopes of ALiBi, which it has not read yet."""
    plain, lazy = of_converter("jais.JaisModel").modify_tensors, of_converter("base.LazyTorchTensor")

    def modified(self: Any, values: Any, name: str, number: int | None) -> Any:
        return plain(self, lazy.to_eager(values) if name.endswith("slopes") else values, name, number)

    return replaced("jais.JaisModel", "modify_tensors", modified)


def plamo_of_any_width() -> AbstractContextManager[Any]:
    """Lets the converter reorder heads of width 2 as it does those of 128."""
    kind, found = of_converter("plamo.PlamoModel"), {}
    for name in ("shuffle_attn_q_weight", "shuffle_attn_output_weight"):
        source = inspect.getsource(getattr(kind, name)).replace("5120", "80").replace("128", "2")
        exec(textwrap.dedent(source), {"torch": torch}, found)
    return mock.patch.multiple(kind, **found)


def of_blocks(layers: str, *blocks: dict[str, list[int]]) -> dict[str, list[int]]:
    """The shapes of blocks that differ."""
    return {f"{layers}.{n}.{name}": shape for n, block in enumerate(blocks) for name, shape in block.items()}


def arctic_tokens(folder: Path) -> None:
    """Two tokens of the pieces are others, by the settings."""
    added = {"0": "<unk>", "1": "<s>", "2": "</s>", "318": "<|im_start|>", "319": "<|im_end|>"}
    decoder = {number: {"content": text, "special": True} for number, text in added.items()}
    decoder["330"] = {"content": "\u2581tool", "special": False}
    sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": decoder})


ROUTED_GROK = {f"{n}.w{which}.weight": [32, 24] if which == 2 else [24, 32] for n in range(4) for which in (1, 2, 3)}
GROK_SETTINGS: dict[str, Any] = {
    "attn_logit_softcapping": 30.0,
    "embedding_multiplier_scale": 90.5,
    "head_dim": 8,
    "hidden_act": "gelu",
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "output_multiplier_scale": 0.5,
    "router_logit_softcapping": 30.0,
}


def mimo(groups: int) -> dict[str, list[int]]:
    """The shapes of attention and norms, of a block with a window if it has two heads of keys."""
    return {
        "input_layernorm.weight": [32],
        "post_attention_layernorm.weight": [32],
        "self_attn.q_proj.weight": [48, 32],
        "self_attn.k_proj.weight": [12 * groups, 32],
        "self_attn.v_proj.weight": [8 * groups, 32],
        "self_attn.o_proj.weight": [32, 32],
        **({"self_attn.attention_sink_bias": [4]} if groups == 2 else {}),
    }


MIMO_NETWORK = {f"mlp.{name}_proj.weight": [32, 48] if name == "down" else [48, 32] for name in ("gate", "up", "down")}
MIMO_EXPERTS: dict[str, list[int]] = {
    **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
    "mlp.gate.e_score_correction_bias": [4],
}
MIMO_AHEAD: dict[str, list[int]] = {
    "eh_proj.weight": [32, 64],
    "enorm.weight": [32],
    "hnorm.weight": [32],
    "final_layernorm.weight": [32],
}
NAS_WIDE: dict[str, list[int]] = {
    f"mlp.{name}_proj.weight": [32, 256] if name == "down" else [256, 32] for name in ("gate", "up", "down")
}
GPT: dict[str, list[int]] = {
    "transformer.wte.weight": [N_VOCAB, 32],
    "lm_head.weight": [N_VOCAB, 32],
}
OF_GPT = {**NO_SHAPE, "rms_norm_eps": None, "rope_theta": None, "layer_norm_epsilon": 1e-5}
OF_GPT |= {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}
NOMIC: dict[str, Any] = {
    **NO_SHAPE,
    "rms_norm_eps": None,
    "rope_theta": None,
    "tie_word_embeddings": None,
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias", "prenorm", "parallel_block"), False),
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 2,
    "n_positions": 8192,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 120,
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
    "minicpm": by_hand("minicpm", LLAMA, {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}),
    "internlm2": by_hand(
        "internlm2",
        {
            "model.tok_embeddings.weight": [320, 32],
            "output.weight": [320, 32],
            "model.norm.weight": [32],
            **{f"attention.{name}.weight": shape for name, shape in (("wqkv", [64, 32]), ("wo", [32, 32]))},
            **{f"{name}.weight": [32] for name in ("attention_norm", "ffn_norm")},
            **{f"feed_forward.w{n}.weight": [32, 48] if n == 2 else [48, 32] for n in (1, 2, 3)},
        },
        {"vocab_size": 320},
        tokens=internlm_tokens,
    ),
    "hunyuan-dense-dynamic": of(
        "hunyuan-dense",
        changes={
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "rope_theta": 10000.0, "factor": 1.0},
        },
    ),
    "exaone": by_hand(
        "exaone",
        {
            "transformer.wte.weight": [N_VOCAB, 32],
            "transformer.ln_f.weight": [32],
            "lm_head.weight": [N_VOCAB, 32],
            **{f"attn.attention.{name}_proj.weight": [16 if name in "kv" else 32, 32] for name in "qkv"},
            "attn.attention.out_proj.weight": [32, 32],
            **{f"mlp.c_fc_{n}.weight": [48, 32] for n in (0, 1)},
            "mlp.c_proj.weight": [32, 48],
            **{f"ln_{n}.weight": [32] for n in (1, 2)},
        },
        {
            "activation_function": "silu",
            "layer_norm_epsilon": 1e-5,
            "num_layers": 2,
            "rms_norm_eps": None,
            "num_hidden_layers": None,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
    ),
    "orion": by_hand(
        "orion",
        {
            **LLAMA,
            **{f"{name}.bias": [32] for name in LLAMA_NORMS},
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
        },
        {"num_key_value_heads": 4},
    ),
    "deepseek": by_hand(
        "deepseek",
        {**LLAMA, **MIXTURE},
        {**MIXTURE_SETTINGS, "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1},
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "deepseek_vl_v2": by_hand(
        "deepseek_vl_v2",
        {
            **LLAMA,
            **MIXTURE,
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
            **{f"model.{name}": [32] for name in ("image_newline", "view_seperator")},
            "model.sam_model.pos_embed": [1, 4, 4, 32],
            "model.vision_model.embeddings.class_embedding": [32],
            "model.projector.layers.weight": [32, 64],
        },
        {**OCR, "rms_norm_eps": None, "rope_theta": None, "language_config": {**SHAPE, **OCR}},
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "bailing_moe": by_hand(
        "bailing_moe",
        {**BAILING, **MIXTURE},
        {**MIXTURE_SETTINGS, "num_experts": 4, "num_shared_experts": 2, "first_k_dense_replace": 0, "norm_head": True},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "bailing_moe_v2": by_hand(
        "bailing_moe_v2",
        {
            **BAILING,
            **MIXTURE,
            "mlp.gate.expert_bias": [4],
            "attention.query_layernorm.weight": [8],
            "attention.key_layernorm.weight": [8],
        },
        {
            **MIXTURE_SETTINGS,
            "head_dim": 8,
            "num_experts": 4,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "moe_shared_expert_intermediate_size": 48,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "n_group": 2,
            "topk_group": 1,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        dense=1,
    ),
    "smallthinker": by_hand(
        "smallthinker",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            **{
                f"block_sparse_moe.experts.{n}.{name}.weight": [32, 24] if name == "down" else [24, 32]
                for n in range(4)
                for name in ("gate", "up", "down")
            },
            "block_sparse_moe.primary_router.weight": [4, 32],
        },
        {
            "head_dim": 8,
            "moe_ffn_hidden_size": 24,
            "moe_num_primary_experts": 4,
            "moe_num_active_primary_experts": 2,
            "moe_primary_router_apply_softmax": False,
            "sliding_window_layout": [0, 1],
            "sliding_window_size": 12,
            "intermediate_size": None,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "plm": by_hand(
        "plm",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("proj", name)},
            "self_attn.q_proj.weight": [48, 32],
            "self_attn.kv_a_proj_with_mqa.weight": [20, 32],
            "self_attn.kv_a_layernorm.weight": [16],
            "self_attn.kv_b_proj.weight": [64, 16],
            "self_attn.o_proj.weight": [32, 32],
            "mlp.up_proj.weight": [48, 32],
            "mlp.down_proj.weight": [32, 48],
        },
        {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 4},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "maincoder": by_hand(
        "maincoder",
        {**LLAMA, "self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8]},
        {"head_dim": 8},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "qwen2_vl": by_hand(
        "qwen2_vl",
        {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkv"}, **SEEING},
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "qwen3_vl": by_hand(
        "qwen3_vl",
        {**LLAMA, "self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8], **SEEING},
        {"head_dim": 8, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}, "vision_config": DEEP},
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={r"^model\.(layers|norm|embed_tokens)": r"model.language_model.\1"},
    ),
    "qwen3_vl_moe": by_hand(
        "qwen3_vl_moe",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
            "mlp.gate.weight": [4, 32],
            "mlp.experts.gate_up_proj": [4, 32, 48],
            "mlp.experts.down_proj": [4, 24, 32],
            **SEEING,
        },
        {
            **MIXTURE_SETTINGS,
            "num_experts": 4,
            "head_dim": 8,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
            "vision_config": DEEP,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={r"^model\.(layers|norm|embed_tokens)": r"model.language_model.\1"},
    ),
    "Dream": by_hand(
        "Dream",
        {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkv"}},
        {"mask_token_id": 300},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "llama_bidirec": by_hand(
        "llama_bidirec",
        LLAMA,
        {"pooling": "avg"},
        tokens=pooled_pieces,
        renamed={"^model\\.": "", "^lm_head": None},
    ),
    "rnd1": by_hand(
        "rnd1",
        {
            **LLAMA,
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {**MIXTURE_SETTINGS, "head_dim": 8, "num_experts": 4, "mask_token_id": 300},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "llada_moe": by_hand(
        "llada_moe",
        {
            **LLAMA,
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "expert_intermediate_size": 24,
            "dense_intermediate_size": 48,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "mistral3": by_hand(
        "mistral3",
        LLAMA,
        {"text_config": {"model_type": "mistral", "head_dim": 8, "rope_theta": 100.0, "rms_norm_eps": 1e-5, **SHAPE}},
        renamed={
            r"^model\.(layers|norm|embed_tokens)": r"language_model.model.\1",
            "^lm_head": "language_model.lm_head",
        },
    ),
    "rwkv6": by_hand(
        "rwkv6",
        {
            "rwkv.embeddings.weight": [64, 64],
            "rwkv.blocks.0.pre_ln.weight": [64],
            "rwkv.blocks.0.pre_ln.bias": [64],
            "rwkv.ln_out.weight": [64],
            "rwkv.ln_out.bias": [64],
            "head.weight": [64, 64],
            **{f"{name}.{end}": [64] for name in ("ln1", "ln2", "attention.ln_x") for end in ("weight", "bias")},
            **{f"attention.time_maa_{name}": [1, 1, 64] for name in "xwkvrg"},
            "attention.time_maa_w1": [64, 160],
            "attention.time_maa_w2": [5, 32, 64],
            "attention.time_decay": [1, 1, 64],
            "attention.time_decay_w1": [64, 64],
            "attention.time_decay_w2": [64, 64],
            "attention.time_faaaa": [1, 64],
            **{f"attention.{name}.weight": [64, 64] for name in ("receptance", "key", "value", "gate", "output")},
            **{f"feed_forward.time_maa_{name}": [1, 1, 64] for name in "kr"},
            "feed_forward.key.weight": [224, 64],
            "feed_forward.receptance.weight": [64, 64],
            "feed_forward.value.weight": [64, 224],
        },
        {
            "vocab_size": 64,
            "hidden_size": 64,
            "head_size": 64,
            "layer_norm_epsilon": 1e-5,
            "rescale_every": 1,
            "intermediate_size": 224,
            "rms_norm_eps": None,
        },
        tokens=world_tokens,
        layers="rwkv.blocks",
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
    "pangu_embedded": by_hand(
        "pangu_embedded", {**LLAMA, **{f"self_attn.{name}_proj.bias": [16 if name in "kv" else 32] for name in "qkvo"}}
    ),
    "baichuan": by_hand(
        "baichuan",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[qkv]_proj", name)},
            "self_attn.W_pack.weight": [96, 32],
            "self_attn.rotary_emb.inv_freq": [4],
        },
        {"num_key_value_heads": None, "max_position_embeddings": None, "model_max_length": 128, "rope_theta": None},
        mends=names_baichuan,
    ),
    "xverse": by_hand(
        "xverse",
        {
            **LLAMA,
            **{key: [323, 32] for key in ("model.embed_tokens.weight", "lm_head.weight")},
            **{f"self_attn.{name}_proj.weight": [32, 32] for name in "kv"},
        },
        {"num_key_value_heads": None, "rope_theta": None, "vocab_size": 323},
        tokens=merged_pieces,
    ),
    "llada": by_hand(
        "llada",
        {
            "model.transformer.wte.weight": [N_VOCAB, 32],
            "model.transformer.ff_out.weight": [N_VOCAB, 32],
            "model.transformer.ln_f.weight": [32],
            **{f"{name}_proj.weight": [16 if name in "kv" else 32, 32] for name in "qkv"},
            "attn_out.weight": [32, 32],
            **{f"{name}_proj.weight": [48, 32] for name in ("ff", "up")},
            "ff_out.weight": [32, 48],
            **{f"{name}_norm.weight": [32] for name in ("attn", "ff")},
        },
        {
            **NO_SHAPE,
            "tie_word_embeddings": None,
            "activation_type": "silu",
            "alibi": False,
            "block_type": "llama",
            "d_model": 32,
            "mask_token_id": 300,
            "max_sequence_length": 128,
            "mlp_hidden_size": 48,
            "n_heads": 4,
            "n_kv_heads": 2,
            "n_layers": 2,
            "weight_tying": False,
        },
        tokens=llama_tokens,
        pre="llama-bpe",
        layers="model.transformer.blocks",
    ),
    "plamo2": by_hand(
        "plamo2",
        PLAMO,
        {
            "vocab_size": 64,
            "hidden_size_per_head": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_enabled": True,
            "mamba_num_heads": 4,
            "mamba_step": 2,
            "use_predefined_initial_state": False,
        },
        tokens=plamo_lines,
        layers="model.layers.layers",
        more=lambda shapes: (
            mamba_of_plamo(shapes)
            | {
                f"model.layers.layers.1.{name}": shape
                for name, shape in {**PLAMO_ATTENTION, "mixer.q_weight": [2, 16], "mixer.k_weight": [1, 16]}.items()
            }
        ),
    ),
    "plamo3": by_hand(
        "plamo3",
        {**PLAMO, **PLAMO_ATTENTION, "mixer.q_norm.weight": [8], "mixer.k_norm.weight": [8]},
        {
            "vocab_size": 64,
            "head_dim": 8,
            "window_size": 12,
            "sliding_window_pattern": 2,
            "rope_local_theta": 10.0,
            "rope_scaling_factor": 4,
            "initial_context_length": 32,
        },
        tokens=plamo_lines,
        layers="model.layers.layers",
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
    "hrm_text-joined": by_hand(
        "hrm_text",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.z_L_init": [32],
            **{
                f"model.{stack}_module.layers.{n}.{name}.weight": shape
                for stack in "LH"
                for n in range(2)
                for name, shape in (
                    ("attn.gqkv_proj", [128, 32]),
                    ("attn.o_proj", [32, 32]),
                    ("mlp.gate_up_proj", [96, 32]),
                    ("mlp.down_proj", [32, 48]),
                )
            },
        },
        {"num_key_value_heads": None, "head_dim": 8, "H_cycles": 2, "L_cycles": 1, "embedding_scale": 1.5},
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "nanbeige": by_hand("nanbeige", LLAMA, {"num_loops": 2, "skip_loop_final_norm": True}),
    "jina-bert-v3": by_hand(
        "xlm-roberta",
        adapted(
            of_embeddings(62, 1, "emb_ln")
            | {
                f"encoder.layers.{n}.{name}": shape
                for n in range(2)
                for name, shape in {
                    **both("mixer.Wqkv", [96, 32]),
                    **both("mixer.out_proj", [32, 32]),
                    **both("mlp.fc1", [48, 32]),
                    **both("mlp.fc2", [32, 48]),
                    **both("norm1", [32]),
                    **both("norm2", [32]),
                }.items()
            }
        ),
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "lora_adaptations": ["retrieval", "separation"],
            "lora_alpha": 1,
            "max_position_embeddings": 130,
            "num_key_value_heads": None,
            "pad_token_id": 1,
            "position_embedding_type": "rotary",
            "rotary_emb_base": 20000.0,
            "tie_word_embeddings": None,
            "type_vocab_size": 1,
            "vocab_size": 62,
        },
        tokens=listed_unigrams,
        renamed={"^": "roberta."},
    ),
    "nomic-bert": by_hand(
        "nomic_bert",
        of_embeddings(120, 2, "emb_ln")
        | {
            f"encoder.layers.{n}.{name}": shape
            for n in range(2)
            for name, shape in {
                "attn.Wqkv.weight": [96, 32],
                "attn.out_proj.weight": [32, 32],
                **{f"mlp.{name}.weight": [48, 32] for name in ("fc11", "fc12")},
                "mlp.fc2.weight": [32, 48],
                **both("norm1", [32]),
                **both("norm2", [32]),
            }.items()
        },
        NOMIC,
        tokens=word_pieces,
        null=("rotary_emb_scale_base",),
    ),
    "nomic-bert-moe": by_hand(
        "nomic_bert",
        of_embeddings(62, 1, "emb_ln")
        | {
            f"encoder.layers.{n}.{name}": shape
            for n in range(2)
            for name, shape in {
                **both("attn.Wqkv", [96, 32]),
                **both("attn.out_proj", [32, 32]),
                **(
                    {
                        "mlp.router.layer.weight": [4, 32],
                        **{f"mlp.experts.mlp.w{which}": [192, 32] for which in (1, 2)},
                        "mlp.experts.bias": [32],
                    }
                    if n
                    else {**both("mlp.fc1", [48, 32]), **both("mlp.fc2", [32, 48])}
                ),
                **both("norm1", [32]),
                **both("norm2", [32]),
            }.items()
        },
        {
            **NOMIC,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"), True),
            "moe_every_n_layers": 2,
            "moe_normalize_expert_weights": False,
            "moe_top_k": 2,
            "n_positions": 2048,
            "num_experts": 4,
            "num_shared_experts": 0,
            "pad_token_id": 1,
            "rotary_emb_base": 10000,
            "type_vocab_size": 1,
            "vocab_size": 62,
        },
        tokens=listed_unigrams,
        null=("rotary_emb_scale_base",),
    ),
    "jina-bert-v2": by_hand(
        "bert",
        of_embeddings(120, 2, "embeddings.LayerNorm")
        | jina2({"mlp.gated_layers.weight": [96, 32], **both("mlp.wo", [32, 48]), **both("mlp.layernorm", [32])})
        | both("pooler.dense", [32, 32]),
        JINA2,
        tokens=word_pieces,
    ),
    "jina-bert-v2-code": by_hand(
        "bert",
        of_embeddings(N_VOCAB, 2, "embeddings.LayerNorm")
        | jina2(
            {
                **both("attention.self.layer_norm_q", [32]),
                **both("attention.self.layer_norm_k", [32]),
                "mlp.up_gated_layer.weight": [96, 32],
                **both("mlp.down_layer", [32, 48]),
                **both("layer_norm_1", [32]),
                **both("layer_norm_2", [32]),
            }
        ),
        {**JINA2, "vocab_size": N_VOCAB},
        tokens=jina_code_tokens,
        pre="gpt-2",
    ),
    "neo-bert": by_hand(
        "neobert",
        {
            "model.encoder.weight": [120, 32],
            "model.layer_norm.weight": [32],
            **both("decoder", [120, 32]),
            **{
                f"model.transformer_encoder.{n}.{name}.weight": shape
                for n in range(2)
                for name, shape in {
                    "qkv": [96, 32],
                    "wo": [32, 32],
                    "ffn.w12": [64, 32],
                    "ffn.w3": [32, 32],
                    "attention_norm": [32],
                    "ffn_norm": [32],
                }.items()
            },
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "max_length": 128,
            "max_position_embeddings": None,
            "norm_eps": 1e-5,
            "num_key_value_heads": None,
            "tie_word_embeddings": None,
            "vocab_size": 120,
        },
        tokens=word_pieces,
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
    "talkie": by_hand(
        "talkie",
        {
            "model.embed.weight": [N_VOCAB, 32],
            "lm_head": [N_VOCAB, 32],
            "lm_head_gain.w_g": [1],
            **{f"attn.attn_{name}.weight": [32, 32] for name in ("query", "key", "value", "resid")},
            "attn.head_gain.head_g": [4],
            **{f"mlp.mlp_{name}.weight": [48, 32] for name in ("gate", "linear")},
            "mlp.mlp_resid.weight": [32, 48],
            **{f"{name}.a_g": [1] for name in ("attn_gain", "mlp_gain", "embed_skip")},
        },
        {"head_dim": 8, "num_key_value_heads": 4, "rms_norm_eps": None},
        tokens=qwen_tokens,
        pre="qwen2",
        layers="model.blocks",
    ),
    "qwen": by_hand(
        "qwen",
        {
            **{name: [480, 32] for name in GPT},
            "transformer.ln_f.weight": [32],
            "ln_1.weight": [32],
            "ln_2.weight": [32],
            **both("attn.c_attn", [96, 32]),
            "attn.c_proj.weight": [32, 32],
            **{f"mlp.w{n}.weight": [24, 32] for n in (1, 2)},
            "mlp.c_proj.weight": [32, 24],
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "bos_token_id": None,
            "eos_token_id": None,
            "layer_norm_epsilon": 1e-6,
            "num_key_value_heads": None,
            "rotary_emb_base": 10000,
            "rotary_pct": 1.0,
            "vocab_size": 480,
        },
        tokens=qwen_ranks,
        pre="qwen2",
        mends=reads_ranks,
        layers="transformer.h",
    ),
    "refact": by_hand(
        "gpt_refact",
        {
            **GPT,
            "transformer.ln_f.weight": [32],
            "ln_1.weight": [32],
            "ln_2.weight": [32],
            "attn.q.weight": [32, 32],
            "attn.kv.weight": [16, 32],
            "attn.c_proj.weight": [32, 32],
            "mlp.gate_up_proj.weight": [512, 32],
            "mlp.c_proj.weight": [32, 256],
        },
        {**OF_GPT, "multi_query": True},
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
    ),
    "jais": by_hand(
        "jais",
        {
            **GPT,
            "model.transformer.relative_pe.slopes": [4],
            **both("transformer.ln_f", [32]),
            **both("ln_1", [32]),
            **both("ln_2", [32]),
            "attn.c_attn.weight": [32, 96],
            "attn.c_attn.bias": [96],
            **both("attn.c_proj", [32, 32]),
            "mlp.c_fc.weight": [32, 48],
            "mlp.c_fc.bias": [48],
            "mlp.c_fc2.weight": [32, 48],
            "mlp.c_fc2.bias": [48],
            "mlp.c_proj.weight": [48, 32],
            "mlp.c_proj.bias": [32],
        },
        {
            **OF_GPT,
            "activation_function": "swiglu",
            "mup_embeddings_scale": 14.6,
            "mup_output_alpha": 2.22,
            "mup_scale_qk_dot_by_d": True,
            "mup_width_scale": 0.125,
            "n_inner": 48,
            "position_embedding_type": "alibi",
        },
        tokens=qwen_tokens,
        mends=reads_slopes,
        pre="qwen2",
        layers="transformer.h",
    ),
    "codeshell": by_hand(
        "codeshell",
        {
            **GPT,
            **both("transformer.ln_f", [32]),
            **both("ln_1", [32]),
            **both("ln_2", [32]),
            **both("attn.c_attn", [64, 32]),
            **both("attn.c_proj", [32, 32]),
            **both("mlp.c_fc", [128, 32]),
            **both("mlp.c_proj", [32, 128]),
        },
        {
            **OF_GPT,
            "activation_function": "gelu_pytorch_tanh",
            "num_query_groups": 2,
            "position_embedding_type": "rope",
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.h",
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
    "chatglm": by_hand(
        "chatglm",
        {
            "transformer.embedding.word_embeddings.weight": [N_VOCAB, 32],
            "transformer.output_layer.weight": [N_VOCAB, 32],
            "transformer.encoder.final_layernorm.weight": [32],
            "transformer.rotary_pos_emb.inv_freq": [2],
            "input_layernorm.weight": [32],
            "post_attention_layernorm.weight": [32],
            **both("self_attention.query_key_value", [64, 32]),
            "self_attention.dense.weight": [32, 32],
            "mlp.dense_h_to_4h.weight": [96, 32],
            "mlp.dense_4h_to_h.weight": [32, 48],
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "ffn_hidden_size": 48,
            "hidden_size": 32,
            "kv_channels": 8,
            "layernorm_epsilon": 1.5e-7,
            "multi_query_group_num": 2,
            "num_attention_heads": 4,
            "num_layers": 2,
            "padded_vocab_size": N_VOCAB,
            "rmsnorm": True,
            "rope_ratio": 50,
            "seq_length": 128,
        },
        tokens=glm_tokens,
        pre="chatglm-bpe",
        layers="transformer.encoder.layers",
    ),
    "openelm": by_hand(
        "openelm",
        {
            "transformer.token_embeddings.weight": [N_VOCAB, 32],
            "transformer.norm.weight": [32],
            **of_blocks(
                "transformer.layers",
                *(
                    {
                        "attn.qkv_proj.weight": [8 * (heads + 2 * kv), 32],
                        "attn.out_proj.weight": [32, 8 * heads],
                        **{f"attn.{name}_norm.weight": [8] for name in "qk"},
                        **{f"{name}_norm.weight": [32] for name in ("attn", "ffn")},
                        "ffn.proj_1.weight": [2 * width, 32],
                        "ffn.proj_2.weight": [32, width],
                    }
                    for heads, kv, width in ((4, 2, 24), (6, 3, 56))
                ),
            ),
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "tie_word_embeddings": None,
            "activation_fn_name": "swish",
            "ffn_dim_divisor": 8,
            "ffn_multipliers": [0.7, 1.8],
            "ffn_with_glu": True,
            "head_dim": 8,
            "max_context_length": 128,
            "model_dim": 32,
            "normalize_qk_projections": True,
            "num_kv_heads": [2, 3],
            "num_query_heads": [4, 6],
            "num_transformer_layers": 2,
            "rope_freq_constant": 10000,
            "share_input_output_layers": True,
        },
    ),
    "deci": by_hand(
        "deci",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[kv]_proj", name)},
            **of_blocks(
                "model.layers", *({f"self_attn.{name}_proj.weight": [8 * n, 32] for name in "kv"} for n in (1, 2))
            ),
        },
        {"num_key_value_heads_per_layer": [1, 2], "num_key_value_heads": None},
        mends=partial(reads_pieces, "deci.DeciModel"),
    ),
    "nemotron-nas": by_hand(
        "nemotron-nas",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.norm.weight": [32],
            **of_blocks(
                "model.layers",
                {
                    name: shape if "mlp" not in name else NAS_WIDE[name]
                    for name, shape in LLAMA.items()
                    if not name.startswith(WHOLE)
                },
                {
                    "input_layernorm.weight": [32],
                    "post_attention_layernorm.weight": [32],
                    "self_attn.linear_attn.weight": [32, 32],
                    **NAS_WIDE,
                },
                {"post_attention_layernorm.weight": [32], **NAS_WIDE},
                {},
            ),
        },
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": None,
            "intermediate_size": None,
            "block_configs": [
                {"attention": attention, "ffn": {"ffn_mult": multiplier}}
                for attention, multiplier in (
                    ({"n_heads_in_group": 2, "replace_with_linear": False}, 2.0),
                    ({"n_heads_in_group": None, "replace_with_linear": True}, 1.0),
                    ({"n_heads_in_group": None, "replace_with_linear": False}, 0.5),
                    ({"n_heads_in_group": None, "replace_with_linear": False}, None),
                )
            ],
        },
        tokens=llama_tokens,
        pre="llama-bpe",
        mends=partial(reads_json, "deci.DeciModel"),
    ),
    "plamo": by_hand(
        "plamo",
        {
            "model.embed_tokens.weight": [N_VOCAB, 80],
            "lm_head.weight": [N_VOCAB, 80],
            "model.norm.weight": [80],
            "norm.weight": [80],
            **{f"self_attn.{name}_proj.weight": [80 if name in "qo" else 10, 80] for name in "qkvo"},
            **{f"mlp.{name}_proj.weight": [96, 80] for name in ("gate", "up")},
            "mlp.down_proj.weight": [80, 96],
            "self_attn.rotary_emb.inv_freq": [1],
        },
        {
            "rope_theta": None,
            "hidden_size": 80,
            "intermediate_size": 96,
            "max_position_embeddings": None,
            "n_shared_head": 8,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
        },
        mends=plamo_of_any_width,
        layers="model.layers.layers",
    ),
    "dbrx": by_hand(
        "dbrx",
        {
            **GPT,
            "transformer.norm_f.weight": [32],
            **{f"norm_attn_norm.norm_{n}.weight": [32] for n in (1, 2)},
            "norm_attn_norm.attn.Wqkv.weight": [64, 32],
            "norm_attn_norm.attn.out_proj.weight": [32, 32],
            "ffn.router.layer.weight": [4, 32],
            **{f"ffn.experts.mlp.{name}": [96, 32] for name in ("w1", "v1", "w2")},
        },
        {
            **NO_SHAPE,
            "rms_norm_eps": None,
            "rope_theta": None,
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500.0},
            "ffn_config": {
                "ffn_act_fn": {"name": "silu"},
                "ffn_hidden_size": 24,
                "moe_normalize_expert_weights": 1.0,
                "moe_num_experts": 4,
                "moe_top_k": 2,
            },
        },
        tokens=qwen_tokens,
        pre="qwen2",
        layers="transformer.blocks",
    ),
    "grok": by_hand(
        "git",
        {
            **{name: shape for name, shape in LLAMA.items() if "layernorm" not in name},
            **{f"{when}_{name}_norm.weight": [32] for when in ("pre", "post") for name in ("attn", "moe")},
            "block_sparse_moe.gate.weight": [4, 32],
            **{f"block_sparse_moe.experts.{name}": shape for name, shape in ROUTED_GROK.items()},
        },
        {
            **GROK_SETTINGS,
            "attn_temperature_len": 1024,
            "final_logit_softcapping": 50,
            "moe_intermediate_size": 24,
            "rope_type": "original",
            "scaling_factor": 16.0,
            "original_max_position_embeddings": 64,
            "extrapolation_factor": 1.0,
            "attn_factor": 1.0,
            "beta_fast": 8,
            "beta_slow": 1,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        mends=partial(reads_json, "grok.GrokModel"),
        dense=2,
    ),
    "grok-1": by_hand(
        "grok-1",
        {
            "transformer.in_out_embed.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "transformer.rms_norm.weight": [32],
            **{
                f"multi_head_attention.{name}.weight": [16 if name in ("key", "value") else 32, 32]
                for name in ("query", "key", "value", "linear")
            },
            **{f"rms_norm{end}.weight": [32] for end in ("", "_1", "_2", "_3")},
            "router.weight": [4, 32],
            **{
                f"moe.{n}.{name}.weight": [32, 48] if name == "linear_1" else [48, 32]
                for n in range(4)
                for name in ("linear", "linear_v", "linear_1")
            },
        },
        {**GROK_SETTINGS, "attn_output_multiplier": 0.09},
        layers="transformer.decoder_layer",
    ),
    "arctic": by_hand(
        "arctic",
        {
            **{name: shape for name, shape in LLAMA.items() if "mlp" not in name},
            **{key: [32] for key in ("residual_layernorm.weight",)},
            **{f"residual_mlp.w{n}.weight": [32, 32] for n in (1, 2, 3)},
            "block_sparse_moe.gate.weight": [4, 32],
            **{
                f"block_sparse_moe.experts.{n}.w{which}.weight": [32, 48] if which == 2 else [48, 32]
                for n in range(4)
                for which in (1, 2, 3)
            },
        },
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        tokens=arctic_tokens,
    ),
    "bitnet": by_hand(
        "llama",
        {
            **{name: shape for name, shape in LLAMA.items() if "lm_head" not in name},
            "self_attn.inner_attn_ln.weight": [32],
            "mlp.ffn_layernorm.weight": [48],
        },
        {"hidden_act": "silu", "tie_word_embeddings": True},
    ),
    "paddleocr": by_hand(
        "paddleocr_vl",
        {**LLAMA, **SEEING, "mlp_AR.linear_1.weight": [32, 32]},
        {"head_dim": 8, "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 1, 1]}},
        renamed={"^model\\.visual": "visual", r"^model\.layers\.\d+\.mlp_AR": "mlp_AR"},
    ),
    "hunyuan_vl": by_hand(
        "hunyuan_vl",
        {
            **LLAMA,
            "self_attn.query_layernorm.weight": [8],
            "self_attn.key_layernorm.weight": [8],
            **SEEING,
        },
        {
            "head_dim": 8,
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "xdrope_section": [1, 1, 1, 1], "factor": 1.0},
            "rope_theta": 10000.0,
        },
        tokens=qwen_tokens,
        pre="qwen2",
        renamed={"^model\\.visual": "vit"},
    ),
    "mimo2": by_hand(
        "mimo_v2_flash",
        {
            "model.embed_tokens.weight": [N_VOCAB, 32],
            "lm_head.weight": [N_VOCAB, 32],
            "model.norm.weight": [32],
            **of_blocks("model.layers", {**mimo(1), **MIMO_NETWORK}, {**mimo(2), **MIMO_EXPERTS}),
            **of_blocks("model.mtp.layers", *[{**mimo(2), **MIMO_NETWORK, **MIMO_AHEAD}] * 3),
        },
        {
            "rms_norm_eps": None,
            "head_dim": 12,
            "v_head_dim": 8,
            "swa_head_dim": 12,
            "swa_v_head_dim": 8,
            "swa_num_attention_heads": 4,
            "num_key_value_heads": 1,
            "swa_num_key_value_heads": 2,
            "hybrid_layer_pattern": [0, 1],
            "sliding_window": 12,
            "swa_rope_theta": 10.0,
            "partial_rotary_factor": 0.334,
            "attention_value_scale": 0.707,
            "layernorm_epsilon": 1e-5,
            "moe_intermediate_size": 24,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "rwkv7": by_hand(
        "rwkv7",
        {
            "model.embeddings.weight": [64, 64],
            "lm_head.weight": [64, 64],
            **both("model.norm", [64]),
            **both("model.layers.0.pre_norm", [64]),
            **both("attn_norm", [64]),
            **both("ffn_norm", [64]),
            **both("attn.g_norm", [64]),
            **{f"attn.x_{name}": [1, 1, 64] for name in "rwkvag"},
            "attn.k_k": [64],
            "attn.k_a": [64],
            "attn.r_k": [1, 64],
            **{f"attn.{name}_proj.weight": [64, 64] for name in "rkvo"},
            **{f"attn.{name}_lora.lora.0.weight": [8, 64] for name in "wvag"},
            **{f"attn.{name}_lora.lora.2.weight": [64, 8] for name in "wvag"},
            **{f"attn.{name}_lora.lora.2.bias": [64] for name in "wva"},
            "ffn.x_k": [64],
            "ffn.key.weight": [128, 64],
            "ffn.value.weight": [64, 128],
        },
        {
            "rms_norm_eps": None,
            "rope_theta": None,
            "a_low_rank_dim": 8,
            "decay_low_rank_dim": 8,
            "gate_low_rank_dim": 8,
            "v_low_rank_dim": 8,
            "head_dim": 64,
            "hidden_size": 64,
            "intermediate_size": 128,
            "norm_eps": 1e-5,
            "vocab_size": 64,
        },
        tokens=world_tokens,
    ),
    "maple": by_hand(
        "maple",
        {
            **{name: shape for name, shape in LLAMA.items() if not name.startswith("mlp")},
            **{name: shape for name, shape in MIXTURE.items() if "shared" not in name},
            "self_attn.q_norm.weight": [8],
            "self_attn.k_norm.weight": [8],
        },
        {
            **MIXTURE_SETTINGS,
            "head_dim": 8,
            "hidden_act": "silu",
            "layer_types": LAYERS_OF_FOUR[:2],
            "nope_on_global_attention": True,
            "num_experts": 4,
            "partial_rotary_factor": 0.5,
            "sliding_window": 12,
        },
        tokens=qwen_tokens,
        pre="qwen2",
    ),
    "spark2_5": by_hand(
        "spark2_5",
        {
            **{name: shape for name, shape in LLAMA.items() if not re.search("[qkv]_proj", name)},
            "self_attn.q_k_v_proj.weight": [64, 32],
            "self_attn.g_proj.weight": [4, 32],
        },
        {
            "rope_theta": None,
            "gate_attn_act_mode": "sigmoid",
            "head_dim": 8,
            "headwise_attn_output_gate": True,
            "hidden_act": "gelu",
            "layer_types": LAYERS_OF_FOUR[:2],
            "rope_parameters": {
                f"{kind}_attention": {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 0.5}
                for kind, base in (("full", 500.0), ("sliding", 100.0))
            },
            "sliding_window": 12,
        },
        tokens=qwen_tokens,
        pre="qwen2",
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
