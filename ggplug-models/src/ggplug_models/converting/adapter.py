"""Converts LoRA adapters of PEFT to GGUF files in llama.cpp's format."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

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

_NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(embedding_)?([AB])(?:\.(?!weight)\w+)?(?:\.weight)?")


def convert_adapter(folder: str | os.PathLike[str], base: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Converts a folder that PEFT saved to a LoRA adapter, a GGUF file with F32 matrices; returns its path.

    ``base``: the Hugging Face folder of the model that the adapter was trained for, of which ``config.json`` is read.
    Raises ModelError for adapters of other kinds (DoRA, trained biases or whole modules), matrices that the family does
    not know or whose rows are not only reordered, and missing or damaged files; ParameterError, OSError.
    """
    source = Folder(Path(folder))
    check_target(out, [source.path / CONFIG, source.path / MATRICES])
    family, config = family_of(Folder(Path(base)).json("config.json"))
    settings = source.json(CONFIG)
    with Checkpoint(source, MATRICES) as weights:
        pairs = _pairs(source, family, {name: stored.array() for name, stored in weights.tensors.items()}, config)
    _check(settings)
    ranks = {b.shape[-1] for _, b in pairs.values()}
    alpha = settings.number("lora_alpha")
    if settings.boolean("use_rslora", False):  # its scale is alpha / sqrt(r), llama.cpp's alpha / r
        if len(ranks) > 1:
            raise ModelError(f"{source.path} has matrices of several ranks, {sorted(ranks)}, and use_rslora")
        alpha *= math.sqrt(*ranks)
    matrices = {name + end: values for name, pair in pairs.items() for end, values in zip((A, B), pair, strict=True)}
    return write_lora(out, family.architecture, alpha, matrices, source.path.resolve().name)


def _pairs(
    source: Folder, family: Family, found: dict[str, npt.NDArray[Any]], config: Values
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The matrices by the weight of the GGUF file that they change, rows first."""
    halves: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, values in found.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise ModelError(f"{source.path}: the tensor {name!r} is no matrix of a LoRA adapter", tensor=name)
        targets = family.targets(f"{match[1]}.weight", config)
        if not targets:
            raise ModelError(f"{source.path}: {name!r} changes a weight that {family.architecture} does not need")
        weight, change, expert = targets[0]
        if len(targets) > 1 or expert is not None or change not in (None, TRANSPOSED, PAIRED_Q, PAIRED_K):
            raise ModelError(f"{source.path}: {name!r} changes a weight that the conversion changes, too", tensor=name)
        if match[3] == "B" and change in (PAIRED_Q, PAIRED_K):
            assert change is not None
            values = change.apply(values, config)
        if match[3] == "A" and weight == TABLE:
            values = values.T  # a row for each token
        halves.setdefault(weight, {})[match[3]] = values
    lacking = next((weight for weight, pair in halves.items() if len(pair) < 2), None)
    if lacking is not None or not halves:
        raise ModelError(f"{source.path} has only one matrix for {lacking}" if lacking else f"{source.path} is empty")
    return {weight: (pair["A"], pair["B"]) for weight, pair in halves.items()}


def _check(settings: Values) -> None:
    """Raises ModelError for what a LoRA adapter of llama.cpp does not hold."""
    if settings.boolean("use_dora", False):
        raise settings.refused("use_dora", "false: DoRA is not supported")
    if settings.text("bias", "none") != "none":
        raise settings.refused("bias", "'none': trained biases are not supported")
    for key in ("modules_to_save", "alpha_pattern"):
        if settings.values.get(key):
            raise settings.refused(key, "empty")
