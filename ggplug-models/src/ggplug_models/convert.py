"""Hugging Face folders to GGUF, with the metadata and tensor names that llama.cpp uses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import quants
from ggplug.errors import FileKindError, ModelError, ParameterError
from ggplug.files import check_target, open_regular
from ggplug.gguf import GGUFWriter, file_types
from ggplug_models.bert import ACTIVATIONS, Pooling
from ggplug_models.requirements import required
from ggplug_models.tokenizers.encoders import CONTROL, HF_JSON, WORD_START
from ggplug_models.tokenizers.vocabulary import TOKENS
from ggplug_models.values import Values

_FILES_OF = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "MXFP4": "MXFP4_MOE"}
"""Types whose files are called otherwise: llama.cpp calls mixtures by the type alone."""

_NUMBERS = {
    type.name.upper(): file_types.FILE_TYPES[name]
    for type in gg.types.TYPES
    if (name := _FILES_OF.get(type.name.upper(), type.name.upper())) in file_types.FILE_TYPES
}
"""``general.file_type`` of files with matrices of one type."""

FILE_TYPES: dict[str, int] = {
    name: number for name, number in _NUMBERS.items() if quants.can_quantize(gg.types.by_name(name))
}
"""Weight types that can be asked for, with their ``general.file_type``."""

READ = (
    "config.json", "tokenizer.json", "model.safetensors", "sentence_bert_config.json", "1_Pooling/config.json",
)  # fmt: skip
"""Files of a folder that are read, some of them where they are."""

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

    ``type``: of the matrices, one of :data:`FILE_TYPES`; norms, biases and positions stay F32.
    ``progress(done, total)``: bytes written.  Returns the path; an existing file is replaced only when the new one is
    complete, see :class:`ggplug.files.NewFile`.

    Raises ModelError for a folder that lacks something, holds another architecture, or values that make no sense;
    ParameterError for another type, or if ``out`` is one of the files that are read; FileKindError if ``out`` is no
    regular file; other OSErrors.
    """
    source, kind = Path(folder), type.upper()
    if kind not in FILE_TYPES:
        raise ParameterError(f"type {type!r} is not one of {', '.join(FILE_TYPES)}", got=type)
    if not source.is_dir():
        raise ModelError(f"{source} is no folder")
    _check_out(source, out)
    config = _json(source / "config.json")
    if config.text("model_type", None) != "bert":
        raise config.refused("model_type", "'bert'; no other architecture is supported")
    weights = _weights(source)
    with GGUFWriter(out, "bert") as writer:
        _add_bert(writer, source, config, kind)
        _add_tokenizer(writer, source, config, _rows(weights, source))
        _add_tensors(writer, source, weights, kind)
        return writer.write(progress)[0]


def _check_out(source: Path, out: str | os.PathLike[str]) -> None:
    """Refuses a file that cannot be written before work begins, and one that is read."""
    if check_target(out) is None:
        return
    for name in READ:
        if (source / name).exists() and os.path.samefile(source / name, out):
            raise ParameterError(
                f"{os.fspath(out)} is {source / name}, which the conversion reads", got=out,
                remedy="give another name for the new file",
            )  # fmt: skip


def _add_bert(writer: GGUFWriter, source: Path, config: Values, kind: str) -> None:
    config.text("position_embedding_type", "absolute", one_of=("absolute",))
    name = (config.text("_name_or_path", "") or source.resolve().name).rstrip("/").rsplit("/", 1)[-1]
    writer.add("general.name", name)
    writer.add(file_types.FILE_TYPE_KEY, FILE_TYPES[kind])
    writer.add(file_types.QUANTIZATION_VERSION_KEY, file_types.QUANTIZATION_VERSION)
    writer.add("bert.context_length", config.integer("max_position_embeddings"))
    writer.add("bert.embedding_length", config.integer("hidden_size"))
    writer.add("bert.block_count", config.integer("num_hidden_layers"))
    writer.add("bert.feed_forward_length", config.integer("intermediate_size"))
    writer.add("bert.attention.head_count", config.integer("num_attention_heads"))
    writer.add("bert.attention.layer_norm_epsilon", config.number("layer_norm_eps", at_least=0))
    writer.add("bert.attention.causal", False)
    writer.add("bert.hidden_activation", config.text("hidden_act", one_of=ACTIVATIONS))
    writer.add("bert.pooling_type", _pooling(source))


def _pooling(source: Path) -> Pooling:
    modes = _json(source / "1_Pooling" / "config.json", optional=True)
    if modes is None or modes.boolean("pooling_mode_mean_tokens", False):
        return Pooling.MEAN
    if modes.boolean("pooling_mode_cls_token", False):
        return Pooling.CLS
    raise ModelError(f"{modes.where}: only mean and first-token pooling are supported")


def _add_tokenizer(writer: GGUFWriter, source: Path, config: Values, n_vocab: int) -> None:
    """The vocabulary as llama.cpp reads it, and the whole tokenizer.json with the truncation that holds."""
    description = _json(source / "tokenizer.json")
    model = description.inner("model")
    if model.text("type", "WordPiece") != "WordPiece":
        raise model.refused("type", "'WordPiece'; no other vocabulary is supported")
    vocabulary = model.inner("vocab")
    places = {token: vocabulary.integer(token, at_least=0, at_most=n_vocab - 1) for token in vocabulary.values}
    special = _special_tokens(description)
    tokens = [""] * n_vocab
    for token, position in places.items():
        tokens[position] = token
    kinds = []
    for position, token in enumerate(tokens):
        if token in special:
            kinds.append(CONTROL)
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
    writer.add(TOKENS, tokens)
    writer.add("tokenizer.ggml.token_type", np.array(kinds, np.int32))
    writer.add("tokenizer.ggml.token_type_count", config.integer("type_vocab_size", 2))
    for key, token in {
        "padding": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "bos": "[CLS]", "seperator": "[SEP]", "eos": "[SEP]",
        "mask": "[MASK]",
    }.items():  # fmt: skip
        if token in places:
            writer.add(f"tokenizer.ggml.{key}_token_id", places[token])

    # sentence_bert_config.json overrides what tokenizer.json says of truncation; padding is ours to do.
    longest = config.integer("max_position_embeddings")
    overrides = _json(source / "sentence_bert_config.json", optional=True)
    if overrides is not None:
        longest = min(longest, overrides.integer("max_seq_length", longest))
    elif "truncation" in description:
        longest = min(longest, description.inner("truncation").integer("max_length"))
    truncation = {"max_length": longest, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    whole = {**description.values, "truncation": truncation, "padding": None}
    writer.add(HF_JSON, json.dumps(whole, ensure_ascii=False))


def _special_tokens(description: Values) -> set[str]:
    entries = description.objects("added_tokens", [])
    return {entry.text("content") for entry in entries if entry.boolean("special", False)}


def _weights(source: Path) -> Any:
    """The open weights.  Raises ModelError."""
    with required("safetensors", "reading the weights of a Hugging Face model"):
        from safetensors import safe_open
    path = source / "model.safetensors"
    if not path.exists():
        raise ModelError(f"{source} has no model.safetensors", remedy="save the model in the safetensors format")
    with _unreadable(path):
        open_regular(path).close()  # the library would wait for a FIFO
        return safe_open(path, framework="numpy")


def _rows(weights: Any, source: Path) -> int:
    """How many tokens the weights have a vector for."""
    for name in weights.keys():  # noqa: SIM118 (it is no mapping)
        if _target_name(name) == "token_embd.weight":
            with _unreadable(source / "model.safetensors"):
                rows: int = weights.get_slice(name).get_shape()[0]
                return rows
    raise ModelError(f"{source / 'model.safetensors'} has no vectors of tokens (embeddings.word_embeddings.weight)")


def _add_tensors(writer: GGUFWriter, source: Path, weights: Any, kind: str) -> None:
    path = source / "model.safetensors"
    for name in weights.keys():  # noqa: SIM118 (it is no mapping)
        target = _target_name(name)
        if target is None:
            continue
        with _unreadable(path):
            values = weights.get_tensor(name)
        if values.dtype.kind != "f" or not values.ndim:
            raise ModelError(f"{path}: tensor {name!r} has {values.ndim} axes of {values.dtype}, expected floats")
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


@overload
def _json(path: Path) -> Values: ...
@overload
def _json(path: Path, *, optional: bool) -> Values | None: ...
def _json(path: Path, *, optional: bool = False) -> Values | None:
    """The object in a JSON file; None if it is ``optional`` and not there.  Raises ModelError."""
    try:
        with _unreadable(path), open_regular(path) as file:
            value = json.loads(file.read())
    except FileNotFoundError:
        if optional:
            return None
        raise ModelError(f"{path.parent} has no {path.name}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold an object")
    return Values(value, where=str(path))


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Around reading a file, whatever the library that does it raises: ModelError says which file cannot be read."""
    try:
        yield
    except (FileNotFoundError, MemoryError):
        raise
    except FileKindError as error:
        raise ModelError(error.message) from error
    except Exception as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
