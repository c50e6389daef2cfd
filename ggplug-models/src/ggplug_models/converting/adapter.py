"""Converts LoRA adapters of PEFT to GGUF files in llama.cpp's format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError
from ggplug.system.files import check_target
from ggplug_models.adapters.lora import TABLE, A, B, write_lora
from ggplug_models.converting.checkpoint import Checkpoint
from ggplug_models.converting.families import family_of
from ggplug_models.converting.family import PAIRED_K, PAIRED_Q, TRANSPOSED, Family
from ggplug_models.converting.folder import Folder
from ggplug_models.metadata.values import Values

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"

Array: TypeAlias = npt.NDArray[Any]

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?:(?P<side>[AB])(?:\.[^.]+)?\.weight|embedding_(?P<of_table>[AB])(?:\.(?!bias)[^.]+)?)"
)
"""PEFT's name of a matrix; the name of the adapter may follow that of the matrix."""

_USED = {"peft_type", "r", "lora_alpha", "use_rslora", "bias", "init_lora_weights"}
"""Settings that are taken into account; ``r`` and ``rank_pattern`` are the ranks of the matrices."""

_WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("exclude_modules", "layers_pattern", "layers_to_transform", "target_modules", "rank_pattern", "fan_in_fan_out"),
    *("lora_dropout", "megatron_config", "megatron_core", "qalora_group_size"),
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),
}
"""Settings that do not change what the matrices do: of training, and which weights have matrices."""

_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
"""The ways to initialise matrices that leave the weights of the model as they are; PiSSA, OLoRA and others do not."""


def convert_adapter(folder: str | os.PathLike[str], base: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Converts a folder that PEFT saved to a LoRA adapter, a GGUF file with F32 matrices; returns its path.

    ``base``: the Hugging Face folder of the model that the adapter was trained for, of which ``config.json`` is read,
    and the extents of weights if they are there.  Raises ModelError for adapters of other kinds (such as DoRA, trained
    biases or whole modules) and settings that are not known, matrices that the family does not know, that do not fit,
    are not finite, or whose rows are not only reordered, and missing or damaged files; ParameterError, OSError.
    """
    source = Folder(Path(folder))
    check_target(out, [source.path / CONFIG, source.path / MATRICES])
    model = Folder(Path(base))
    family, config = family_of(model.json("config.json"))
    settings = source.json(CONFIG)
    _check(settings)
    with Checkpoint(source, MATRICES) as weights:
        found = {name: stored.array() for name, stored in weights.tensors.items()}
    pairs = _pairs(source, family, found, config, _shapes(model))
    tied = config.boolean("tie_word_embeddings", family.head is None)
    if tied and (weight := next((each for each in (TABLE, "output.weight") if each in pairs), "")):
        raise ModelError(
            f"{source.path} changes {weight} of a model whose token embeddings are its output matrix; with PEFT only "
            "one of them changes, in a GGUF file they are one matrix",
            tensor=weight,
        )
    ranks = {b.shape[-1] for _, b in pairs.values()}
    alpha = settings.number("lora_alpha")
    if not alpha:  # in llama.cpp's format it stands for the rank
        raise settings.refused("lora_alpha", "another number than 0, with which the adapter would do nothing")
    if settings.boolean("use_rslora", False):  # its scale is alpha / sqrt(r), llama.cpp's alpha / r
        if len(ranks) > 1:
            raise ModelError(f"{source.path} has matrices of several ranks, {sorted(ranks)}, and use_rslora")
        alpha *= math.sqrt(*ranks)
    matrices = {name + end: values for name, pair in pairs.items() for end, values in zip((A, B), pair, strict=True)}
    return write_lora(out, family.architecture, alpha, matrices, source.path.resolve().name)


def _pairs(
    source: Folder,
    family: Family,
    found: dict[str, Array],
    config: Values,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[Array, Array]]:
    """The matrices by the weight of the GGUF file that they change, rows first.

    ``shapes``: of the weights of the model, as far as they are known.
    """

    def wrong(name: str, why: str) -> ModelError:
        return ModelError(f"{source.path}: {name!r} {why}", tensor=name)

    halves: dict[str, dict[str, Array]] = {}
    n_layer = _most_blocks(family, config)
    for name, values in found.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise wrong(name, "is no matrix of a LoRA adapter")
        module, of_table = f"{match['module']}.weight", match["of_table"] is not None
        side = match["of_table"] or match["side"]
        targets = family.targets(module, config)
        if not targets:
            raise wrong(name, f"changes a weight that {family.architecture} does not need")
        weight, change, expert = targets[0]
        if len(targets) > 1 or expert is not None or change not in (None, TRANSPOSED, PAIRED_Q, PAIRED_K):
            raise wrong(name, "changes a weight that the conversion changes, too")
        if of_table != (weight == TABLE):
            raise wrong(name, f"is of another kind than the matrices of {weight}")
        block = _BLOCK.search(weight)
        if block is not None and n_layer is not None and int(block[1]) >= n_layer:
            raise wrong(name, f"is of a block that the model does not have: it has {n_layer}")
        if values.ndim != 2 or not values.size or values.dtype.kind not in "fV" or not _finite(values):
            raise wrong(name, f"must be a matrix of finite numbers, got {list(values.shape)} of {values.dtype}")
        if side in halves.setdefault(weight, {}):
            raise wrong(name, f"is the second matrix {side} for {weight}; save one adapter alone")
        shape = shapes.get(module, (-1, -1))
        n_out, n_in = shape if change is not TRANSPOSED and not of_table else shape[::-1]
        extent, wanted = (values.shape[1], n_in) if side == "A" else (values.shape[0], n_out)
        if wanted not in (-1, extent):
            raise wrong(name, f"has the shape {list(values.shape)}; the weight of the model has {list(shape)}")
        if side == "B" and change in (PAIRED_Q, PAIRED_K):
            assert change is not None
            values = change.apply(values, config)
        if side == "A" and of_table:
            values = values.T  # a row for each token
        halves[weight][side] = values
    for weight, pair in halves.items():
        if len(pair) < 2:
            raise ModelError(f"{source.path} has only one matrix for {weight}", got=weight)
        rank = pair["A"].shape[1 if weight == TABLE else 0]
        if rank != pair["B"].shape[1]:
            raise ModelError(
                f"{source.path}: the matrices for {weight} have the ranks {rank} and {pair['B'].shape[1]}", got=weight
            )
    if not halves:
        raise ModelError(f"{source.path} is empty")
    return {weight: (pair["A"], pair["B"]) for weight, pair in halves.items()}


_BLOCK = re.compile(r"\bblk\.(\d+)\.")


def _finite(values: Array) -> bool:
    return bool(np.isfinite(values.astype(np.float32)).all())


def _most_blocks(family: Family, config: Values) -> int | None:
    """The number of blocks of the model, if the family names the setting."""
    counts = (name for name, key in family.integers.items() if key in ("block_count", "decoder_block_count"))
    known = [config.integer(name) for each in counts for name in each.rstrip("?").split("|") if name in config]
    return max(known, default=None)


def _shapes(model: Folder) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's matrices by name; none if its weights are not in the folder."""
    try:
        with Checkpoint(model) as weights:
            return {name: stored.shape for name, stored in weights.tensors.items() if len(stored.shape) == 2}
    except ModelError:
        return {}


def _check(settings: Values) -> None:
    """Raises ModelError for what a LoRA adapter of llama.cpp does not hold, and for settings that are not known."""
    settings.text("peft_type", one_of=["LORA"])
    if settings.text("bias", "none") != "none":
        raise settings.refused("bias", "'none': trained biases are not supported")
    initial = settings.values.get("init_lora_weights")
    if isinstance(initial, (list, dict)) or initial not in _INITIAL:
        raise settings.refused("init_lora_weights", "a kind that leaves the model's weights as they are, or true")
    for key, value in settings.values.items():
        if value and key not in _USED | _WITHOUT_EFFECT:
            raise settings.refused(key, "absent, or empty: ggplug does not support it in adapters")
