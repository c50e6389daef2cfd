"""Language models in training: LoRA adapters beside their weights, or the weights themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import ops, opt
from ggplug.errors import ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.gradients.rules import zeros
from ggplug.ops.base import apply
from ggplug.quantizing.rows import Encoder
from ggplug.system.files import check_target
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32
from ggplug_models.adapters.lora import TABLE, A, B, has_own_scale, low_rank, weight_read, write_lora
from ggplug_models.adapters.matrices import rows_in_file
from ggplug_models.checks.arguments import number, whole
from ggplug_models.finetuning.inputs import WholeTexts
from ggplug_models.layers.patches import GraphChange, patched
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder

Array = npt.NDArray[Any]
Parameters = Mapping[str, Tensor]

BLOCKS = ("blk.*",)

LEAST_ALPHA = 1e-6
"""An alpha of 0 stands for none in files."""


class _ModelTraining(opt.Training):
    """A language model in training, on the model's devices.

    ``change(parameters)``: the change of the model's graphs by the parameters.  Data and labels are those of
    :class:`.Texts`.  Changes that are in effect when a batch of another shape is computed, such as adapters, act below
    the one that is trained.  The model must not be freed before.
    """

    def __init__(
        self,
        model: Decoder,
        parameters: Mapping[str, Array],
        change: Callable[[Parameters], GraphChange],
        optimiser: opt.Optimiser | None,
        period: int,
        clip: float,
    ) -> None:
        self.model = model
        logits = partial(_logits, model, change)
        super().__init__(logits, parameters, _loss, optimiser, backends=model.devices, period=period, clip=clip)

    @property
    def identity(self) -> str:
        """The weights beside which it learns."""
        return f"{self.model.architecture} {self.model.digest}"

    def save(self, path: str | Path) -> None:
        """As :meth:`.Training.save`.  Raises ParameterError for the path of the model's own file."""
        check_target(path, self.model.paths)
        super().save(path)


def _logits(model: Decoder, change: Callable[[Parameters], GraphChange], parameters: Parameters, ids: Tensor) -> Tensor:
    """The logits after each token, [n_vocab, n * texts], for ``ids`` I32 [n, texts]."""
    plain = model.scores(model.hidden(model.forward(WholeTexts(model, ids))))
    return patched([plain], [change(parameters), *model.patches])[0]


def _loss(logits: Tensor, labels: Tensor | None) -> Tensor:
    """The weighted mean over tokens of -log p(next token); see :class:`.Texts` for the labels."""
    assert labels is not None
    n, _, texts = labels.ne[:3]
    n_vocab, count = logits.ne[:2]
    next_ids, weights = (
        ops.reshape(ops.cont(ops.view(labels, n, texts, nb=(labels.nb[2],), offset=part * labels.nb[1])), 1, count)
        for part in range(2)
    )
    # A row for each token, with its weight in the place of the next token.
    chances = ops.set_rows(zeros((1, n_vocab, count, 1)), ops.reshape(weights, 1, 1, count), ops.cast(next_ids, "i32"))
    return ops.scale(ops.cross_entropy_loss(logits, ops.reshape(chances, n_vocab, count)), n)


def _check(model: Decoder) -> None:
    """Raises ParameterError for a model that cannot be trained."""
    if isinstance(model, EncoderDecoder):
        what = f"{model.architecture} models read a source text, which texts to learn do not have"
        raise ParameterError(f"{what}, so they cannot be trained", got=model)


def _matching(weights: Iterable[Tensor], targets: Sequence[str], kind: str) -> list[Tensor]:
    """The weights whose names match a pattern.  Raises ParameterError for a pattern that none matches."""
    found = {weight.name: weight for weight in weights}
    for pattern in targets:
        if not any(fnmatchcase(name, pattern) for name in found):
            some = ", ".join([*found][:4])
            raise ParameterError(
                f"no weight of the model that {kind} matches {pattern!r}; such weights are {some}, ...",
                got=pattern,
                wanted=tuple(found),
            )
    return [weight for name, weight in found.items() if any(fnmatchcase(name, pattern) for pattern in targets)]


# -- adapters --------------------------------------------------------------------------------------


class LoraTraining(_ModelTraining):
    """A LoRA adapter in training, beside a model's weights of any type.

    ``rank``, ``alpha``: of the matrices; what they compute is multiplied with alpha / rank.  ``targets``: patterns of
    names of the weights that are changed, such as ``blk.*.attn_q.weight``; by default all matrices of the blocks.
    ``optimiser``, ``period``, ``clip``: see :class:`~ggplug.opt.Training`.  ``seed``: of the matrices A at the
    beginning; those B are zero, so the model does not change at first.

    The parameters have the names that they have in the adapter's file.  Raises ParameterError.
    """

    def __init__(
        self,
        model: Decoder,
        rank: int = 8,
        alpha: float = 16.0,
        targets: Sequence[str] = BLOCKS,
        optimiser: opt.Optimiser | None = None,
        *,
        period: int = 1,
        clip: float = 1.0,
        seed: int = 0,
    ) -> None:
        _check(model)
        rank, self.alpha = whole("rank", rank, 1), number("alpha", alpha, LEAST_ALPHA)
        read = (weight for node in model.sample().nodes if (weight := weight_read(node)) is not None)
        matrices = [each for each in read if each.rank > 1 and not has_own_scale(each.name, model.weights)]
        chosen = _matching(matrices, targets, "an adapter can change")
        random = np.random.default_rng(seed)
        parameters: dict[str, Array] = {}
        for weight in chosen:
            *experts, m, n = weight.shape
            if weight.name == TABLE:
                a, b = np.zeros((m, rank)), random.standard_normal((n, rank))
            else:
                a, b = random.uniform(-1, 1, (*experts, rank, n)) / n**0.5, np.zeros((*experts, m, rank))
            parameters |= {weight.name + A: a, weight.name + B: b}
        change = partial(_Adapter, frozenset(each.name for each in chosen), self.alpha / rank)
        super().__init__(model, parameters, change, optimiser, period, clip)

    @property
    def identity(self) -> str:
        """The weights beside which it learns, and alpha, without which the matrices would act otherwise."""
        return f"{super().identity}, alpha {self.alpha!r}"

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the adapter in llama.cpp's format, for :meth:`.Network.adapt`; returns its path.

        Raises ParameterError for the path of the model's own file, TrainingError for matrices with NaN or infinities,
        OSError.
        """
        check_target(path, self.model.paths)
        matrices = {name: self.values(tensor) for name, tensor in self.parameters.items()}
        return write_lora(path, self.model.architecture, self.alpha, matrices)


class _Adapter(GraphChange):
    """The adapter in a graph."""

    def __init__(self, names: frozenset[str], factor: float, matrices: Parameters) -> None:
        self._names, self._factor, self._matrices = names, factor, matrices

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        weight = weight_read(base)
        if weight is None or weight.name not in self._names:
            return None
        return made + low_rank(base, weight, self._matrices) * self._factor


# -- weights ---------------------------------------------------------------------------------------


class WeightTraining(_ModelTraining):
    """A model's weights in training: of the types F32, F16 and BF16.

    The parameters are the weights in F32; the model computes with these values rounded to the weights' types, as they
    will be in the file.  ``targets``: patterns of names of the weights that are trained; by default all.  Others:
    see :class:`LoraTraining`.  Raises ParameterError, also if a weight that is to be trained is quantised.
    """

    def __init__(
        self,
        model: Decoder,
        targets: Sequence[str] = ("*",),
        optimiser: opt.Optimiser | None = None,
        *,
        period: int = 1,
        clip: float = 1.0,
    ) -> None:
        _check(model)
        weights = set(model.weights)
        # The factors of RoPE are weights only by the format of files.
        read = [each for each in model.sample().leafs if each in weights and not each.name.startswith("rope_")]
        chosen = _matching(read, targets, "can be trained")
        quantised = next((each for each in chosen if each.type not in (F32, F16, BF16)), None)
        if quantised is not None:
            raise ParameterError(
                f"the weight {quantised.name!r} has the type {quantised.type.name}; whole weights are trained in f32, "
                "f16 or bf16",
                tensor=quantised,
                got=quantised.type,
                remedy="train an adapter, or the model before it was quantised",
            )
        values = {each.name: np.asarray(each.numpy(), np.float32) for each in chosen}
        super().__init__(model, values, partial(_Masters, chosen), optimiser, period, clip)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the model with the trained weights, in their types, and returns its path.

        Raises ParameterError if the model was not loaded from a file, or from this one; TrainingError for weights with
        NaN or infinities; ModelError for one that its type cannot hold; GGUFError, OSError.
        """
        if not self.model.paths:
            raise ParameterError("the model was not loaded from a file, of which the rest could be copied")
        check_target(path, self.model.paths)
        with GGUFReader(self.model.paths[0]) as reader, Encoder() as encoder:
            writer = GGUFWriter(path)
            writer.add_metadata_of(reader)
            for name, info in reader.tensors.items():
                tensor = self.parameters.get(name)
                if tensor is None:
                    writer.add_tensor(name, partial(rows_in_file, reader, info), info.type, info.ne)
                else:
                    rows = self.values(tensor).reshape(-1, info.ne[0]).view(np.uint8)
                    with np.errstate(over="ignore"):  # what is out of range is refused
                        encoded = encoder.encode(rows, F32, info.type)
                    misfit = encoder.misfit(rows, F32, encoded, info.type)
                    if misfit is not None:
                        raise misfit.refused("the trained model", name, info.ne, info.type)
                    writer.add_tensor(name, encoded, info.type, info.ne)
            writer.write()
        return Path(path)


class _Masters(GraphChange):
    """The trained weights in a graph, rounded to the types of the model's."""

    def __init__(self, weights: Sequence[Tensor], parameters: Parameters) -> None:
        self._rounded = {
            each: parameters[each.name] if each.type is F32 else ops.cast(parameters[each.name], each.type)
            for each in weights
        }

    def change(self, name: str, base: Tensor, made: Tensor) -> Tensor | None:
        if base.op is None or not any(source in self._rounded for source in base.src):
            return None
        sources = tuple(None if each is None else self._rounded.get(each, each) for each in base.src)
        return apply(base.op, sources, name)
