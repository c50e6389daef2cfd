"""Chooses the tensors of a model that are quantised, and their types, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ggplug import types
from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.gguf.format import TensorInfo
from ggplug.quantizing.mixtures import MIXTURES, TOKEN_EMBEDDINGS, Kind, Mixture, Model, TensorOfKind, kind_of
from ggplug.quants import can_dequantize, can_quantize
from ggplug.types import Type, as_type

_LEFT_ALONE = ("position_embd.weight", "token_types.weight")

_LEFT_ALONE_WITH = (
    # norms, and the matrix that chooses experts
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    # small matrices
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    *(
        f"time_mix_{name}.weight"
        for name in (
            "first",
            "w0",
            "w1",
            "w2",
            "v0",
            "v1",
            "v2",
            "a0",
            "a1",
            "a2",
            "g1",
            "g2",
            "decay_w1",
            "decay_w2",
            "lerp_fused",
        )
    ),
    # embeddings of positions, and input layers of images and sound
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of the names of tensors that llama.cpp never quantises."""

_WITHOUT_IMPORTANCE_REFUSED = (
    types.IQ3_XXS,
    types.IQ2_XXS,
    types.IQ2_XS,
    types.IQ2_S,
    types.IQ1_M,
    types.IQ1_S,
)
"""Types with which matrices are unusable if they are quantised without an importance matrix."""

_FALLBACKS = {
    **dict.fromkeys(
        (
            types.IQ1_S,
            types.IQ1_M,
            types.IQ2_XXS,
            types.IQ2_XS,
            types.IQ2_S,
            types.IQ3_XXS,
            types.IQ3_S,
            types.IQ4_XS,
        ),
        types.IQ4_NL,
    ),
    **dict.fromkeys((types.Q2_0, types.Q2_K, types.Q3_K, types.TQ1_0, types.TQ2_0), types.Q4_0),
    types.Q4_K: types.Q5_0,
    types.Q5_K: types.Q5_1,
    types.Q6_K: types.Q8_0,
}
"""Types with smaller blocks, for rows that are no whole number of blocks."""

_OF_WEIGHTS = frozenset(each.base for each in MIXTURES.values())


@dataclass(frozen=True)
class Override:
    """A regular expression and a type: tensors whose names contain a match get the type, before all other rules."""

    pattern: str
    type: Type

    def __init__(self, pattern: str, type: Type | str) -> None:
        """Raises ParameterError for a malformed regular expression, and for types that are not for weights in files.

        Raises TypeMismatchError if ``type`` is no type.
        """
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "type", as_type(type))
        if self.type not in _OF_WEIGHTS:
            names = ", ".join(sorted(type.name for type in _OF_WEIGHTS))
            raise ParameterError(f"{self.type.name} is not a type for weights", got=type, remedy=f"use one of {names}")
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise ParameterError(f"{self.pattern!r} is not a regular expression: {error}", got=self.pattern) from None

    @classmethod
    def of(cls, value: Override | tuple[str, Type | str]) -> Override:
        """An Override as it is, or one made of a pattern and a type.  Raises ParameterError for anything else."""
        if isinstance(value, Override):
            return value
        if not isinstance(value, tuple) or len(value) != 2:
            raise ParameterError(f"an override must be an Override or (pattern, type), got {value!r}", got=value)
        return cls(*value)

    @classmethod
    def parse(cls, text: str) -> Override:
        """Parses ``PATTERN=TYPE``.  Raises ParameterError."""
        pattern, equals, name = text.rpartition("=")
        if not pattern or not equals:
            raise ParameterError(f"{text!r} is not PATTERN=TYPE", got=text, remedy="write it as in 'ffn_down=q6_K'")
        return cls(pattern, name)


@dataclass(frozen=True)
class Choice:
    """The new type of a tensor.  ``wanted``: the type by the rules, if rows are no whole number of its blocks."""

    info: TensorInfo
    type: Type
    wanted: Type | None = None

    @property
    def changes(self) -> bool:
        return self.type is not self.info.type

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its new type."""
        ne = self.info.ne
        rows = self.info.n_elements // ne[0] if ne and ne[0] else 0
        return self.info.nbytes if not self.changes else rows * self.type.row_bytes(ne[0])


def may_change(info: TensorInfo) -> bool:
    """Whether a tensor is a matrix of weights that may be quantised."""
    name = info.name
    axes = next((i for i in range(len(info.ne), 0, -1) if info.ne[i - 1] != 1), 1)
    if axes < 2 or not name.endswith("weight") or name in _LEFT_ALONE:
        return False
    return not any(part in name for part in _LEFT_ALONE_WITH)


def in_order(infos: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Tensors in llama.cpp's order, by layer, then by name: rules count them and the file has them in this order."""

    def key(info: TensorInfo) -> tuple[int, str]:
        found = re.match(r"blk\.(\d+)\.", info.name)
        return (int(found[1]) if found else -1, info.name)

    return sorted(infos, key=key)


def choose(
    infos: Sequence[TensorInfo],
    mixture: Mixture | None,
    model: Model,
    *,
    importance: bool,
    overrides: Sequence[Override] = (),
) -> list[Choice]:
    """A choice for each of ``infos``, in their order.  ``mixture``: None leaves all tensors as they are.

    Raises ParameterError if an override matches no tensor that may be quantised, and ModelError if the metadata lacks
    values that the rules need.
    """
    kinds = [kind_of(info.name) for info in infos]
    seen = dict.fromkeys(Kind, 0)
    unused = dict.fromkeys(override.pattern for override in overrides)
    chosen: list[Choice] = []
    for info, kind in zip(infos, kinds, strict=True):
        if not may_change(info):
            chosen.append(Choice(info, info.type))
            continue
        matching = [each for each in overrides if re.search(each.pattern, info.name)]
        for each in matching:
            unused.pop(each.pattern, None)
        if matching:
            wanted = matching[0].type
        elif mixture is None:
            wanted = info.type
        elif not mixture.base.is_quantized:
            wanted = mixture.base
        else:
            at = TensorOfKind(info.name, model, seen[kind], kinds.count(kind), importance)
            wanted = mixture.type_of(kind, info.ne, at, tied=Kind.OUTPUT not in kinds)
            seen[kind] += 1
        found = _fitting(info, wanted)
        chosen.append(Choice(info, found, None if found is wanted else wanted))
    if unused:
        pattern = next(iter(unused))
        raise ParameterError(
            f"the override {pattern!r} matches no tensor that may be quantised",
            got=pattern,
            remedy="`ggplug gguf FILE` lists the names; norms, biases and vectors are never quantised",
        )
    return chosen


def _fitting(info: TensorInfo, wanted: Type) -> Type:
    """The type ``wanted``; if rows are no whole number of its blocks a type with smaller blocks, or else F16."""
    if info.ne[0] % wanted.block_size == 0:
        return wanted
    smaller = _FALLBACKS.get(wanted)
    return smaller if smaller is not None and info.ne[0] % smaller.block_size == 0 else types.F16


def needs_importance(choice: Choice, name: str) -> bool:
    """Whether the chosen type needs an importance matrix, in a file quantised as ``name``."""
    if not choice.changes or choice.info.name in (*TOKEN_EMBEDDINGS, "output.weight"):
        return not can_quantize(choice.type)
    return choice.type in _WITHOUT_IMPORTANCE_REFUSED or (choice.type is types.Q2_K and name == "Q2_K_S")


def check(choices: Iterable[Choice], *, allow_requantize: bool) -> None:
    """Raises TypeMismatchError for a tensor that cannot get the chosen type, or that would be quantised twice."""
    for choice in choices:
        info = choice.info
        if not choice.changes:
            continue
        if info.type.is_quantized and not allow_requantize:
            raise TypeMismatchError(
                f"tensor {info.name} is already {info.type.name}; quantising it again to {choice.type.name} would lose "
                f"more precision than quantising F16 or F32",
                tensor=info.name,
                got=info.type,
                wanted=choice.type,
                remedy="quantise the F16 file, or allow it (--allow-requantize, allow_requantize=True)",
            )
        if info.type not in types.KERNEL_FLOATS and not (info.type.is_quantized and can_dequantize(info.type)):
            raise TypeMismatchError(
                f"tensor {info.name} is {info.type.name}, a type that cannot be quantised",
                tensor=info.name,
                got=info.type,
                wanted=choice.type,
            )
        if not can_quantize(choice.type, imatrix=True):
            raise TypeMismatchError(
                f"tensor {info.name}: there is no encoder for {choice.type.name}", tensor=info.name, got=choice.type
            )
