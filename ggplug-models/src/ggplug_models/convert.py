"""Hugging Face folders to GGUF, with the metadata and tensor names that llama.cpp uses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import quants
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFWriter
from ggplug_models.requirements import required
from ggplug_models.tokenizer import HF_JSON, WORD_START

FILE_TYPES: dict[str, int] = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
"""Weight types that can be asked for, with llama.cpp's ``general.file_type``."""

_BERT_TENSORS = [
    (r"embeddings\.word_embeddings\.weight", "token_embd.weight"),
    (r"embeddings\.token_type_embeddings\.weight", "token_types.weight"),
    (r"embeddings\.position_embeddings\.weight", "position_embd.weight"),
    (r"embeddings\.LayerNorm\.(weight|bias)", r"token_embd_norm.\1"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.query\.(weight|bias)", r"blk.\1.attn_q.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.key\.(weight|bias)", r"blk.\1.attn_k.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.value\.(weight|bias)", r"blk.\1.attn_v.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(weight|bias)", r"blk.\1.attn_output.\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(weight|bias)", r"blk.\1.attn_output_norm.\2"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.(weight|bias)", r"blk.\1.ffn_up.\2"),
    (r"encoder\.layer\.(\d+)\.output\.dense\.(weight|bias)", r"blk.\1.ffn_down.\2"),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.(weight|bias)", r"blk.\1.layer_output_norm.\2"),
]
_BERT_UNUSED = re.compile(r"embeddings\.position_ids|pooler\..*|cls\..*")

_ALWAYS_F32 = re.compile(r"token_types\.weight|position_embd\.weight|.*_norm\.weight|.*\.bias")
"""What llama.cpp keeps in full precision whatever the file's type."""


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str = "F32",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes a GGUF file from a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors``.

    ``type``: of the matrices, one of :data:`FILE_TYPES`; norms, biases and positions stay F32.  ``progress(done,
    total)``:
    bytes written.  Returns the path; an existing file is replaced only when the new one is complete.  Raises
    ModelError for a
    folder that lacks something or holds another architecture, ParameterError for another type.
    """
    source, kind = Path(folder), type.upper()
    if kind not in FILE_TYPES:
        raise ParameterError(f"type {type!r} is not one of {', '.join(FILE_TYPES)}", got=type)
    if not source.is_dir():
        raise ModelError(f"{source} is no folder")
    config = _json(source / "config.json")
    if config.get("model_type") != "bert":
        raise ModelError(
            f"{source / 'config.json'}: model_type {config.get('model_type')!r} is not supported",
            remedy="supported: bert",
        )
    with GGUFWriter(out, "bert") as writer:
        _add_bert(writer, source, config, kind)
        _add_tokenizer(writer, source, config)
        _add_tensors(writer, source, kind)
        return writer.write(progress)[0]


def _add_bert(writer: GGUFWriter, source: Path, config: Mapping[str, Any], kind: str) -> None:
    def wanted(key: str) -> Any:
        if key not in config:
            raise ModelError(f"{source / 'config.json'} lacks {key!r}")
        return config[key]

    if wanted("hidden_act") not in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"):
        raise ModelError(f"{source / 'config.json'}: hidden_act {config['hidden_act']!r} is not supported")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{source / 'config.json'}: only absolute positions are supported")
    name = str(config.get("_name_or_path") or source.resolve().name).rstrip("/").rsplit("/", 1)[-1]
    writer.add("general.name", name)
    writer.add("general.file_type", FILE_TYPES[kind])
    writer.add("general.quantization_version", 2)
    writer.add("bert.context_length", wanted("max_position_embeddings"))
    writer.add("bert.embedding_length", wanted("hidden_size"))
    writer.add("bert.block_count", wanted("num_hidden_layers"))
    writer.add("bert.feed_forward_length", wanted("intermediate_size"))
    writer.add("bert.attention.head_count", wanted("num_attention_heads"))
    writer.add("bert.attention.layer_norm_epsilon", float(wanted("layer_norm_eps")))
    writer.add("bert.attention.causal", False)
    writer.add("bert.hidden_activation", wanted("hidden_act"))
    writer.add("bert.pooling_type", _pooling(source))


def _pooling(source: Path) -> int:
    path = source / "1_Pooling" / "config.json"
    if not path.exists():
        return 1
    modes = _json(path)
    if modes.get("pooling_mode_mean_tokens"):
        return 1
    if modes.get("pooling_mode_cls_token"):
        return 2
    raise ModelError(f"{path}: only mean and first-token pooling are supported")


def _add_tokenizer(writer: GGUFWriter, source: Path, config: Mapping[str, Any]) -> None:
    """The vocabulary as llama.cpp reads it, and the whole tokenizer.json with the truncation that holds."""
    path = source / "tokenizer.json"
    description = _json(path)
    vocabulary = description.get("model", {}).get("vocab")
    if description.get("model", {}).get("type", "WordPiece") != "WordPiece" or not isinstance(vocabulary, dict):
        raise ModelError(f"{path}: only WordPiece vocabularies are supported")
    tokens = [""] * max(len(vocabulary), int(config.get("vocab_size", 0)))
    for token, position in vocabulary.items():
        tokens[position] = token
    special = {entry["content"]: entry["id"] for entry in description.get("added_tokens", []) if entry.get("special")}
    kinds = []
    for position, token in enumerate(tokens):
        if token in special:
            kinds.append(3)  # control
        elif token == "":
            tokens[position] = f"[PAD{position}]"
            kinds.append(5)  # unused
        elif token.startswith("[") and token.endswith("]"):
            kinds.append(1)  # such as [unused0]: llama.cpp leaves them as they are
        else:
            tokens[position] = token[2:] if token.startswith("##") else WORD_START + token
            kinds.append(1)
    writer.add("tokenizer.ggml.model", "bert")
    writer.add("tokenizer.ggml.pre", "default")
    writer.add("tokenizer.ggml.tokens", tokens)
    writer.add("tokenizer.ggml.token_type", np.array(kinds, np.int32))
    writer.add("tokenizer.ggml.token_type_count", int(config.get("type_vocab_size", 2)))
    for key, token in {
        "padding": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "bos": "[CLS]", "seperator": "[SEP]", "eos": "[SEP]",
        "mask": "[MASK]",
    }.items():  # fmt: skip
        if token in vocabulary:
            writer.add(f"tokenizer.ggml.{key}_token_id", vocabulary[token])

    # sentence_bert_config.json overrides what tokenizer.json says of truncation; padding is ours to do.
    overrides = source / "sentence_bert_config.json"
    longest = int(config["max_position_embeddings"])
    if overrides.exists():
        longest = min(longest, int(_json(overrides).get("max_seq_length") or longest))
    elif description.get("truncation"):
        longest = min(longest, int(description["truncation"]["max_length"]))
    description["truncation"] = {"max_length": longest, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    description["padding"] = None
    writer.add(HF_JSON, json.dumps(description, ensure_ascii=False))


def _add_tensors(writer: GGUFWriter, source: Path, kind: str) -> None:
    with required("safetensors", "reading the weights of a Hugging Face model"):
        from safetensors import SafetensorError, safe_open
    path = source / "model.safetensors"
    if not path.exists():
        raise ModelError(f"{source} has no model.safetensors", remedy="save the model in the safetensors format")
    try:
        weights = safe_open(path, framework="numpy")
        names = list(weights.keys())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    for name in names:
        target = _target_name(name)
        if target is None:
            continue
        values = weights.get_tensor(name)
        if values.dtype.kind != "f":
            raise ModelError(f"{path}: tensor {name!r} has type {values.dtype}, expected floats")
        tensor_type = gg.types.by_name("F32" if _ALWAYS_F32.fullmatch(target) else kind)
        if values.shape[-1] % tensor_type.block_size:
            tensor_type = gg.F16  # rows that are no whole number of blocks
        writer.add_tensor(target, _encoded(values, tensor_type), tensor_type)


def _target_name(name: str) -> str | None:
    """GGUF's name of a tensor; None for what inference does not need.  Raises ModelError."""
    stem = name.removeprefix("bert.")
    for pattern, target in _BERT_TENSORS:
        match = re.fullmatch(pattern, stem)
        if match:
            return match.expand(target)
    if _BERT_UNUSED.fullmatch(stem):
        return None
    raise ModelError(f"tensor {name!r} is not known in a BERT encoder")


def _encoded(values: npt.NDArray[Any], type: gg.types.Type) -> npt.NDArray[np.uint8]:
    return quants.quantize(np.ascontiguousarray(values, np.float32), type)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold an object")
    return value
