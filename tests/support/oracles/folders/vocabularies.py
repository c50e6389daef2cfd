"""Vocabularies of tiny folders, as the published files are made up."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from oracles.folders.recording import TEMPLATE, TEXT, byte_pairs, qwen_tokens, sentence_pieces, unigrams, write_json


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


def arctic_tokens(folder: Path) -> None:
    """Two tokens of the pieces are others, by the settings."""
    added = {"0": "<unk>", "1": "<s>", "2": "</s>", "318": "<|im_start|>", "319": "<|im_end|>"}
    decoder = {number: {"content": text, "special": True} for number, text in added.items()}
    decoder["330"] = {"content": "\u2581tool", "special": False}
    sentence_pieces(folder, {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": decoder})
