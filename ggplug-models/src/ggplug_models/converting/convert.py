"""Converts Hugging Face folders to GGUF files with the metadata and tensor names of llama.cpp."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug import quants
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFWriter, file_types
from ggplug.gguf.format import ValueType
from ggplug.gguf.parse import parse_header
from ggplug.quantizing import MIXTURES, quantize_file
from ggplug.quantizing.rows import Encoder, Misfit
from ggplug.system.files import UNFINISHED_PREFIX, UNFINISHED_SUFFIX, check_target
from ggplug_models.checks.arguments import check_progress
from ggplug_models.converting import float8, loadable, microscaling, rope, settled
from ggplug_models.converting.checkpoint import INDEX, SINGLE, Checkpoint, Stored
from ggplug_models.converting.embeddings import MODULES, POOLING, modules
from ggplug_models.converting.families import family_of
from ggplug_models.converting.family import Change, Family
from ggplug_models.converting.folder import Folder
from ggplug_models.converting.tokens.sentencepiece import PIECES, UNIGRAM_PIECES
from ggplug_models.converting.tokens.token_files import RANKS_OF_QWEN, TOKEN_LINES, WORLD_TOKENS
from ggplug_models.converting.tokens.vocabulary import vocabulary
from ggplug_models.metadata.values import Values
from ggplug_models.weights.weights import check_blocks

_FILES_OF = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "MXFP4": "MXFP4_MOE"}
"""Types with another name as a file type, because llama.cpp names a mixture after the type alone."""

_NUMBERS = {
    type.name.upper(): file_types.FILE_TYPES[name]
    for type in gg.types.TYPES
    if (name := _FILES_OF.get(type.name.upper(), type.name.upper())) in file_types.FILE_TYPES
}
"""The ``general.file_type`` of files whose matrices all have one type."""

FILE_TYPES: dict[str, int] = {
    name: number for name, number in _NUMBERS.items() if quants.can_quantize(gg.types.by_name(name))
}
"""Types that all matrices can have, with their ``general.file_type``; mixtures are further types."""

READ = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    PIECES,
    UNIGRAM_PIECES,
    WORLD_TOKENS,
    TOKEN_LINES,
    RANKS_OF_QWEN,
    INDEX,
    "chat_template.jinja",
    "chat_template.json",
    "sentence_bert_config.json",
    MODULES,
    f"{POOLING}/config.json",
    "config_sentence_transformers.json",
)
"""Files of a folder that are read, if they exist, in addition to those with the weights."""

_IN_FULL = (
    "_norm.weight",
    "position_embd.weight",
    "token_types.weight",
    "rope_freqs.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "time_mix_first.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "indexer.proj.weight",
    "altup_correct_coef.weight",
    "altup_predict_coef.weight",
)
"""Suffixes of the names of tensors that are F32 in all file types, as in llama.cpp."""

_EMBEDDINGS, _OUTPUT = "token_embd.weight", "output.weight"

_PIECE = 1 << 22
"""Number of elements that are encoded at a time."""


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str | gg.types.Type = "F32",
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Converts a folder with ``config.json``, a tokenizer and safetensors files to a GGUF file; returns its path.

    The supported families are :data:`ggplug_models.converting.families.FAMILIES`.  Keys, tensor names and values are
    those of llama.cpp's converter; what a tokenizer says beyond that is under keys of ggplug's, or refused.  Only one
    tensor is in memory at a time.  The MXFP4 experts of gpt-oss keep their type and lose nothing, whatever ``type`` is.

    ``type``: one of :data:`FILE_TYPES`, for all matrices (norms, biases and positions stay F32), or a mixture of
    :data:`ggplug.quantizing.MIXTURES` such as Q4_K_M.  A mixture needs a temporary file with the stored types in the
    folder of ``out``.  ``progress(done, total)``: called with bytes of work.  An existing file is replaced only when
    the new one is complete, see :class:`ggplug.system.files.NewFile`.

    Raises ModelError for a folder with missing files, an unsupported architecture, or invalid values, such as weights
    to quantise that are NaN, infinite or too large for the type, and for one whose file would not load; ParameterError
    for an unknown type, or if ``out`` is one of the files that are read; FileKindError if ``out`` is not a regular
    file; other OSErrors.
    """
    check_progress(progress)
    kind = str(getattr(type, "name", type)).upper()
    if kind not in FILE_TYPES and kind not in MIXTURES:
        raise ParameterError(f"type must be one of {', '.join({**FILE_TYPES, **MIXTURES})}, got {type!r}", got=type)
    source = Folder(Path(folder))
    check_target(out, [*(source.path / name for name in READ), *source.path.glob("*.safetensors")])
    config = source.json("config.json")
    family, settings = family_of(config)
    with ExitStack() as opened:
        weights = _plain(opened.enter_context(Checkpoint(source)).tensors, config, settings)
        conversion = _Conversion(source, family, settings, weights)
        for number, layer in enumerate(modules(source).dense, 2):
            behind = Folder(source.path / layer.text("path"))
            check_target(out, [behind.path / SINGLE])
            conversion.add(f"dense_{number}.weight", opened.enter_context(Checkpoint(behind)), "linear.weight")
        if kind in FILE_TYPES:
            return conversion.write(Path(out), kind, progress)
        return _mixed(conversion, Path(out), kind, progress)


def _mixed(conversion: _Conversion, out: Path, kind: str, progress: Callable[[int, int], None] | None) -> Path:
    """Writes a temporary file with the types of the folder, and quantises it to the mixture ``kind``."""
    between = out.parent / f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}{UNFINISHED_SUFFIX}"
    try:
        conversion.write(between, None, progress and (lambda done, total: progress(done, 2 * total)))
        quantize_file(
            between,
            out,
            kind,
            overrides=[(f"^{re.escape(name)}$", type) for name, type in conversion.in_blocks.items()],
            progress=progress and (lambda done, total: progress(total + done, 2 * total)),
        )
    finally:
        with suppress(FileNotFoundError):
            between.unlink()
    return out


class _Conversion:
    """The metadata and tensors of a folder, in the form of the new file.  Raises ModelError."""

    def __init__(self, source: Folder, family: Family, config: Values, weights: Mapping[str, Stored]) -> None:
        self._path = source.path
        self._config = config
        self._family = family
        self._tensors: list[tuple[str, list[Stored], Change | None]] = []
        experts: dict[str, dict[int, Stored]] = {}
        weights = self._with_head(family, config, weights)
        for name, stored in weights.items():
            found = family.targets(name, config)
            if not found:
                continue
            if stored.type is None or not stored.shape or not math.prod(stored.shape):
                raise ModelError(
                    f"{stored.path}: tensor {name!r} has the shape {list(stored.shape)} of {stored.dtype}, "
                    f"expected a tensor of F64, F32, F16 or BF16 that is not empty",
                    tensor=name,
                    got=stored.dtype,
                )
            for target in found:
                if target.expert is None:
                    self._tensors.append((target.name, [stored], target.change))
                else:
                    experts.setdefault(target.name, {})[target.expert] = stored
        self._tensors += [(name, _all_experts(name, parts), None) for name, parts in experts.items()]
        names = [name for name, _, _ in self._tensors]
        if _EMBEDDINGS not in names:
            raise ModelError(f"{source.path} has no token embeddings among its weights")
        if config.boolean("tie_word_embeddings", True) is False and self._lacks_head(source, family, config, names):
            raise ModelError(
                f"{source.path} has no tensor {family.head!r}, although by tie_word_embeddings of config.json, or its "
                "default, it is not tied to the token embeddings",
                tensor=family.head,
            )
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ModelError(f"{source.path} has two tensors for {twice} of the GGUF file", tensor=twice)
        settled.check(config, family.architecture)
        rope.check(config, family.architecture, family.scalings)
        self._fixed = {**rope.factors(config), **(family.fixed(config) if family.fixed else {})}
        n_vocab = self._tensors[names.index(_EMBEDDINGS)][1][0].shape[0]
        name = (config.text("_name_or_path", "") or source.path.resolve().name).rstrip("/").rsplit("/", 1)[-1]
        self._metadata = {
            "general.name": name,
            **family.keys(config, source),
            **(family.of_weights(weights, config) if family.of_weights else {}),
            **vocabulary(source, family, config, n_vocab, name),
        }
        check_blocks(names, self._metadata, family.architecture)
        multiplied = f"{family.architecture}.rope.scaling.yarn_log_multiplier" in self._metadata
        rope.check_magnitude(config, multiplied=multiplied)

    def add(self, name: str, weights: Checkpoint, stored: str) -> None:
        """Adds a tensor of another folder."""
        if stored not in weights.tensors:
            raise ModelError(f"{weights.path} has no tensor {stored!r}", tensor=stored)
        self._tensors.append((name, [weights.tensors[stored]], None))

    @property
    def in_blocks(self) -> dict[str, gg.types.Type]:
        """The types of the tensors that the folder has in blocks, which stay as they are."""
        stored = ((name, parts[0].type) for name, parts, _ in self._tensors)
        return {name: type for name, type in stored if type is not None and type.is_quantized}

    @staticmethod
    def _with_head(family: Family, config: Values, weights: Mapping[str, Stored]) -> Mapping[str, Stored]:
        """The weights with the output matrix that files need.

        They need none if it is tied to the token embeddings, and the same unless the family changes it.
        """
        if family.head is None or not config.boolean("tie_word_embeddings", False):
            return weights
        others = {name: stored for name, stored in weights.items() if name != family.head}
        tables = (
            each for name, each in others.items() if _EMBEDDINGS in (to.name for to in family.targets(name, config))
        )
        if (table := next(tables, None)) is None or not weights.get(family.head, table).equals(table):
            return weights
        scaled = any(row.target == _OUTPUT and row.change for row in family.tensors)
        return {**others, family.head: table} if scaled else others

    @staticmethod
    def _lacks_head(source: Folder, family: Family, config: Values, names: list[str]) -> bool:
        """Whether there is no output matrix, although the folder's model predicts tokens and does not embed texts."""
        generates = any(not name.endswith(("Model", "Classification")) for name in config.texts("architectures", []))
        return family.head is not None and generates and _OUTPUT not in names and modules(source).pooling is None

    def write(self, out: Path, kind: str | None, progress: Callable[[int, int], None] | None) -> Path:
        """Writes the file.  ``kind``: the type of matrices; None keeps the types of the folder."""
        with Encoder() as encoder:
            writer = GGUFWriter(out, self._family.architecture)
            for key, value in self._metadata.items():
                # Only lists of texts can be empty, such as the merges of a vocabulary of bytes.
                writer.add(
                    key, value, (ValueType.ARRAY, ValueType.STRING) if isinstance(value, list) and not value else None
                )
            plain = kind in (None, "F32", "F16", "BF16")
            writer.add(file_types.FILE_TYPE_KEY, FILE_TYPES["MXFP4" if plain and self.in_blocks else kind or "F16"])
            writer.add(file_types.QUANTIZATION_VERSION_KEY, file_types.QUANTIZATION_VERSION)
            described = []
            for name, values in self._fixed.items():
                writer.add_tensor(name, values)
                described.append((name, gg.F32, values.shape[::-1]))
            for name, parts, change in self._tensors:
                shape = parts[0].shape if change is None else change.shape(parts[0].shape, self._config)
                ne = (*shape[::-1], len(parts)) if len(parts) > 1 else shape[::-1]
                in_full = name.endswith(_IN_FULL) and not re.fullmatch(self._family.as_matrices, name)
                type = _type_of(name, parts[0], ne, kind, in_full=in_full)
                into_blocks = type.is_quantized or (kind is None and len(ne) > 1)
                pieces = self._pieces(encoder, parts, change, type, into_blocks=into_blocks)
                writer.add_tensor(name, pieces, type, ne)
                described.append((name, type, ne))
            loadable.check(parse_header(writer.header(), out).metadata, described, self._path)
            return writer.write(progress)[0]

    def _pieces(
        self, encoder: Encoder, parts: list[Stored], change: Change | None, type: gg.types.Type, *, into_blocks: bool
    ) -> Callable[[], Iterator[npt.NDArray[np.uint8]]]:
        """A function that yields the bytes of a tensor in the file, some rows at a time.

        ``parts``: the matrices of experts, or the one tensor.  ``into_blocks``: whether values are quantised, now or
        later, so that a NaN would spoil other values of its block.
        """

        def made() -> Iterator[npt.NDArray[np.uint8]]:
            for stored in parts:
                original = values = stored.array()
                if change:
                    values = change.apply(values, self._config)
                rows = values.reshape(-1, values.shape[-1])
                if stored.type is type and type.is_quantized:
                    yield np.ascontiguousarray(rows)
                    continue
                source = gg.types.F64 if rows.dtype == np.float64 else gg.F32
                step = max(1, _PIECE // rows.shape[1])
                for start in range(0, len(rows), step):
                    piece = np.ascontiguousarray(rows[start : start + step], source.dtype).view(np.uint8)
                    encoded = encoder.encode(piece, source, type)
                    misfit = encoder.misfit(piece, source, encoded, type, into_blocks=into_blocks)
                    if misfit is not None:
                        raise _refused(stored, original, misfit, type)
                    yield encoded

        return made


def _plain(tensors: Mapping[str, Stored], *settings: Values) -> Mapping[str, Stored]:
    """The tensors of a checkpoint by the names that they have where nothing is quantised.  Raises ModelError.

    ``settings``: objects of which one may have those of the quantisation.
    """
    holder = next((each for each in settings if each.values.get("quantization_config") is not None), None)
    if holder is None:
        return tensors
    quantization = holder.inner("quantization_config")
    method = quantization.text("quant_method", "")
    if quantization.values.get("transform_config"):
        raise quantization.refused("transform_config", "null: GGUF files have no key for rotations of activations")
    if method == "mxfp4":
        return microscaling.joined(tensors)
    if method == "fp8":
        return float8.dequantized(tensors, quantization, "_scale_inv")
    if method == "compressed-tensors" and quantization.text("format", "") == "float-quantized":
        return float8.dequantized(tensors, quantization, "weight_scale")
    return tensors


def _all_experts(name: str, parts: dict[int, Stored]) -> list[Stored]:
    """The matrices of experts in their order.  Raises ModelError if one is missing, or has another shape or type."""
    first = parts[min(parts)]
    missing = next((number for number in range(len(parts)) if number not in parts), None)
    if missing is not None:
        raise ModelError(
            f"{first.path}: expert {missing} of {name} is missing; there are {len(parts)}, up to {max(parts)}",
            tensor=name,
            got=sorted(parts),
        )
    found = [parts[number] for number in range(len(parts))]
    other = next((each for each in found if (each.shape, each.type) != (first.shape, first.type)), None)
    if other is not None:
        raise ModelError(
            f"{other.path}: tensor {other.name!r} has the shape {list(other.shape)} of {other.dtype}, but "
            f"{first.name!r} has {list(first.shape)} of {first.dtype}",
            tensor=other.name,
            got=other.shape,
            wanted=first.shape,
        )
    return found


def _type_of(name: str, stored: Stored, ne: tuple[int, ...], kind: str | None, *, in_full: bool) -> gg.types.Type:
    if stored.type is not None and stored.type.is_quantized:
        return stored.type
    if len(ne) == 1 or not name.endswith(".weight") or in_full:
        return gg.F32
    if kind is None:
        return stored.type if stored.type in (gg.F16, gg.types.BF16) else gg.F32
    type = gg.types.by_name(kind)
    return gg.F16 if ne[0] % type.block_size else type  # rows must be a multiple of the block size


def _refused(stored: Stored, values: npt.NDArray[Any], misfit: Misfit, type: gg.types.Type) -> ModelError:
    """The error for a ``misfit``, with its position in the original ``values`` (the conversion may change them)."""
    finite = np.isfinite(values)
    if misfit.finite or finite.all():
        place, wanted = int(np.where(finite, np.abs(values), 0).argmax()), f"numbers that {type.name.upper()} holds"
    else:
        place, wanted = int(finite.argmin()), "finite numbers"
    index = tuple(map(int, np.unravel_index(place, values.shape)))
    value = float(values[index])
    return ModelError(
        f"{stored.path}: tensor {stored.name!r} has {value:g} at {list(index)}, expected {wanted}",
        tensor=stored.name,
        index=index,
        got=value,
        wanted=wanted,
        path=stored.path,
        remedy="use F32 or BF16"
        if np.isfinite(value)
        else "check the model: the file is damaged, or training diverged",
    )
