"""Mixtures of types, by name: each has a type for most matrices, and rules for the others.

The rules are llama.cpp's (``llama_tensor_get_type``), so that both write the same file for a name.  The argument of a
rule is a :class:`TensorOfKind`: the tensor's number among those of its kind, and some numbers of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ggplug import types
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf.file_types import FILE_TYPES
from ggplug.types import Type

COPY = "COPY"
"""The name that changes no tensor's type."""

ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


class Kind(Enum):
    """The purpose of a tensor, as far as rules depend on it."""

    OUTPUT = "output"
    TOKEN_EMBEDDING = "token embedding"
    VALUE = "attention values"
    """Values; also queries, keys and values in one matrix, and the second matrix of low-rank keys and values."""
    KEY = "attention keys"
    QUERY = "attention queries"
    ATTENTION_OUTPUT = "attention output"
    UP = "feed-forward up"
    GATE = "feed-forward gate"
    DOWN = "feed-forward down"
    OTHER = "other"


TOKEN_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")

_PARTS = (
    ("attn_qkv.weight", Kind.VALUE),
    ("attn_kv_b.weight", Kind.VALUE),
    ("attn_v.weight", Kind.VALUE),
    ("attn_k.weight", Kind.KEY),
    ("attn_q.weight", Kind.QUERY),
    ("attn_output.weight", Kind.ATTENTION_OUTPUT),
    ("ffn_up", Kind.UP),
    ("ffn_gate", Kind.GATE),
    ("ffn_down", Kind.DOWN),
)


def kind_of(name: str) -> Kind:
    """The kind of a tensor, by the first part of its name that determines it."""
    if name == "output.weight":
        return Kind.OUTPUT
    if name in TOKEN_EMBEDDINGS:
        return Kind.TOKEN_EMBEDDING
    return next((kind for part, kind in _PARTS if part in name), Kind.OTHER)


# -- arguments of rules --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Numbers of a model, from its metadata."""

    architecture: str
    experts: int
    sharing: int
    """Heads of queries that share keys and values; 0 if the model has no attention."""
    n_layers: int | None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Model:
        """Reads the numbers.  Raises ModelError for values of other types."""
        architecture = metadata.get("general.architecture", "")
        if not isinstance(architecture, str):
            raise ModelError(f"general.architecture must be a string, got {architecture!r}", got=architecture)

        def number(key: str, otherwise: int) -> int:
            value = metadata.get(f"{architecture}.{key}", otherwise)
            first = value[0] if hasattr(value, "__len__") and not isinstance(value, str) and len(value) else value
            try:
                found = int(first)
            except (TypeError, ValueError):
                raise ModelError(f"{architecture}.{key} must be a number, got {value!r}", got=value) from None
            if found < 0:
                raise ModelError(f"{architecture}.{key} must not be negative, got {found}", got=found)
            return found

        heads = number("attention.head_count", 0)
        sharing = number("attention.head_count_kv", heads)
        layers = number("block_count", 0) if f"{architecture}.block_count" in metadata else None
        return cls(architecture, number("expert_count", 0), heads // sharing if sharing else 0, layers)

    @property
    def layers(self) -> int:
        """The number of layers.  Raises ModelError if the metadata lacks it."""
        if self.n_layers is None:
            key = f"{self.architecture}.block_count"
            raise ModelError(
                f"the file has no {key}, which the rules for layers need", remedy="choose a type instead of a mixture"
            )
        return self.n_layers

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp would call the model ``LLM_TYPE_70B``."""
        if self.architecture == "llama":
            return self.n_layers == 80 and self.sharing != 1
        return self.n_layers == {"qwen2": 80, "qwen2vl": 80, "deci": 80, "jais2": 68}.get(self.architecture, -1)


@dataclass(frozen=True)
class TensorOfKind:
    """A tensor among those of its kind.  ``before``: how many of these come before it; ``count``: their number."""

    name: str
    model: Model
    before: int
    count: int
    importance: bool
    """Whether an importance matrix is used."""

    @property
    def layer(self) -> int:
        """The number of its layer: from its name if the model has experts, else ``before``.  Raises ModelError."""
        if self.model.experts <= 1:
            return self.before
        found = re.match(r"blk\.(\d+)\.", self.name)
        if found is None or int(found[1]) >= self.model.layers:
            raise ModelError(f"the name of tensor {self.name} has no layer number below {self.model.layers}")
        return int(found[1])

    def early(self, part: int = 8) -> bool:
        """Whether it is in the first ``1 / part`` of the layers."""
        return self.layer < self.model.layers // part

    def is_worth_more(self, number: int, count: int) -> bool:
        """Whether ``number`` is in the first or last eighth of ``count``, or third in between (``use_more_bits``)."""
        return number < count // 8 or number >= 7 * count // 8 or (number - count // 8) % 3 == 2

    @property
    def layer_is_worth_more(self) -> bool:
        return self.is_worth_more(self.layer, self.model.layers)

    @property
    def shared(self) -> bool:
        """Whether four or more heads of queries use the same keys and values, so that this tensor is small."""
        return self.model.sharing >= 4

    @property
    def falcon(self) -> bool:
        return self.model.architecture == "falcon"


Rule = Callable[[TensorOfKind], Type | None]
"""Returns a type, or None for that of most matrices."""


def _always(type: Type) -> Rule:
    return lambda _: type


# -- the rules -----------------------------------------------------------------------------------------

_FEW_BITS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""Mixtures with rules of their own."""

_A_LITTLE_MORE = ("IQ2_S", "IQ2_M")

_OUTPUT: dict[str, Type] = {
    **dict.fromkeys((*_FEW_BITS, "IQ3_XXS"), types.Q5_K),
    "MXFP4_MOE": types.Q8_0,
    "Q8_0": types.Q8_0,
}
"""Types of the output matrix; in other mixtures it is Q6_K."""

_TOKENS: dict[str, Type] = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), types.Q2_K),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), types.IQ3_S),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), types.Q4_K),
}

_VALUE: dict[str, Rule] = {
    "Q2_K": lambda at: types.Q4_K if at.shared else types.Q3_K,
    "IQ3_XXS": lambda at: types.Q4_K if at.shared else None if at.importance else types.IQ3_S,
    "IQ3_M": _always(types.Q4_K),
    "Q3_K_M": lambda at: types.Q5_K if at.before < 2 else types.Q4_K,
    "Q3_K_L": _always(types.Q5_K),
    "Q4_K_S": lambda at: types.Q5_K if at.before < 4 else None,
    **dict.fromkeys(("Q2_K_S", "IQ3_XS", "IQ3_S"), lambda at: types.Q4_K if at.shared else None),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), lambda at: types.Q5_K if at.shared else None),
    **dict.fromkeys(("Q4_K_M", "Q5_K_M"), lambda at: types.Q6_K if at.is_worth_more(at.before, at.count) else None),
}

_KEY_AND_QUERY: dict[str, Type] = {"IQ3_XS": types.IQ3_XXS, "IQ3_XXS": types.IQ2_S}


def _down_iq3_xxs(at: TensorOfKind) -> Type | None:
    if at.importance:
        return None
    return types.Q4_K if at.early() else types.Q3_K


def _down_q3_k_m(at: TensorOfKind) -> Type | None:
    if at.early(16):
        return types.Q5_K
    return types.Q4_K if not at.falcon or at.layer_is_worth_more else types.Q3_K


def _down_iq3_m(at: TensorOfKind) -> Type | None:
    return types.Q4_K if at.early() or (at.model.experts == 8 and at.layer_is_worth_more) else None


def _down_q4_k_m(at: TensorOfKind) -> Type | None:
    if not at.falcon:
        return types.Q6_K if at.layer_is_worth_more else None
    return types.Q6_K if at.early(16) else types.Q5_K if at.layer_is_worth_more else types.Q4_K


_DOWN: dict[str, Rule] = {
    "Q2_K": _always(types.Q3_K),
    "Q2_K_S": lambda at: types.Q4_K if at.early() else None,
    "IQ3_XXS": _down_iq3_xxs,
    "Q3_K_M": _down_q3_k_m,
    "IQ3_M": _down_iq3_m,
    "Q3_K_L": lambda at: types.Q4_K if at.falcon else types.Q5_K,
    "Q4_K_M": _down_q4_k_m,
    "Q5_K_M": lambda at: types.Q6_K if at.layer_is_worth_more else None,
    "Q4_K_S": lambda at: types.Q5_K if not at.falcon and at.early() else None,
    # some first layers become inaccurate with an importance matrix
    "Q4_0": lambda at: types.Q4_1 if at.importance and at.early() else None,
    "Q5_0": lambda at: types.Q5_1 if at.importance and at.early() else None,
    **dict.fromkeys(("IQ4_NL", "IQ4_XS"), lambda at: types.Q5_K if not at.importance and at.early() else None),
}

_ATTENTION_OUTPUT: dict[str, Type] = {
    "Q2_K": types.Q3_K,
    "IQ3_XXS": types.IQ3_S,
    "Q3_K_M": types.Q4_K,
    "Q3_K_L": types.Q5_K,
    "IQ3_M": types.Q4_K,
}

_OF_EIGHT_EXPERTS = (
    "Q2_K",
    "IQ3_XS",
    "IQ3_XXS",
    "Q3_K_S",
    "Q3_K_M",
    "IQ4_NL",
    "Q4_K_S",
    "Q4_K_M",
    "IQ3_S",
    "IQ3_M",
    "IQ4_XS",
)
"""Mixtures in which the attention output of a model with eight experts is Q5_K: it is small, compared with these."""


def _of_few_bits(name: str, kind: Kind, at: TensorOfKind) -> Type | None:
    some_more = name in _A_LITTLE_MORE
    if kind is Kind.VALUE:
        if at.shared or at.model.experts >= 4:
            return types.Q4_K
        return types.IQ3_S if some_more else types.Q2_K
    if kind is Kind.KEY:
        return types.Q4_K if at.model.experts == 8 else None
    if kind is Kind.DOWN and at.before < at.model.layers // 8:
        return types.IQ3_S if some_more else types.Q2_K
    if kind is Kind.ATTENTION_OUTPUT:
        if at.model.experts == 8:
            return types.Q5_K
        return types.IQ2_XXS if name in ("IQ1_S", "IQ1_M") else types.IQ3_S if some_more else None
    return None


def _value(name: str, at: TensorOfKind, base: Type) -> Type | None:
    found = _VALUE[name](at) if name in _VALUE else None
    if at.model.is_70b and (found or base) in (types.Q3_K, types.Q4_K):
        found = types.Q5_K  # in these models an eighth of the queries' size
    return types.Q8_0 if at.model.experts == 8 else found


def _attention_output(name: str, at: TensorOfKind) -> Type | None:
    if at.falcon:
        return types.Q4_K if name == "Q3_K_L" else None
    if at.model.experts == 8:
        return types.Q5_K if name in _OF_EIGHT_EXPERTS else None
    return _ATTENTION_OUTPUT.get(name)


@dataclass(frozen=True)
class Mixture:
    """A name, its ``general.file_type``, and the type of most matrices."""

    name: str
    file_type: int
    base: Type

    def type_of(self, kind: Kind, ne: tuple[int, ...], at: TensorOfKind, *, tied: bool) -> Type:
        """The type that the rules give a tensor, for any length of its rows.

        ``tied``: the model has no ``output.weight`` and uses the token embeddings instead.
        """
        if kind is Kind.OUTPUT or (tied and kind is Kind.TOKEN_EMBEDDING):
            if at.falcon or ne[0] % self.base.block_size:
                return types.Q8_0
            return _OUTPUT.get(self.name, types.Q6_K)
        return self._rule(kind, ne, at) or self.base

    def _rule(self, kind: Kind, ne: tuple[int, ...], at: TensorOfKind) -> Type | None:
        name = self.name
        if name == "MXFP4_MOE":
            feeds = kind in (Kind.UP, Kind.GATE, Kind.DOWN)
            expert = len(ne) > 2 and ne[2] > 1 and (at.model.architecture != "bailingmoe3" or feeds)
            return types.MXFP4 if expert else types.Q8_0
        if kind is Kind.TOKEN_EMBEDDING:
            return _TOKENS.get(name)
        if name in _FEW_BITS:
            return _of_few_bits(name, kind, at)
        if kind is Kind.VALUE:
            return _value(name, at, self.base)
        if kind is Kind.KEY and at.model.experts == 8:
            return types.Q8_0
        if kind in (Kind.KEY, Kind.QUERY):
            return _KEY_AND_QUERY.get(name)
        if kind is Kind.DOWN:
            return _DOWN[name](at) if name in _DOWN else None
        if kind is Kind.ATTENTION_OUTPUT:
            return _attention_output(name, at)
        if kind in (Kind.GATE, Kind.UP) and name == "IQ3_XS":
            first, last = at.model.layers // 8, 7 * at.model.layers // 8
            return types.IQ3_XXS if first <= at.layer < last else None
        return None


_BASES = {
    "IQ2_S": types.IQ2_XS,
    "IQ2_M": types.IQ2_S,
    "IQ3_XS": types.IQ3_S,
    "IQ3_M": types.IQ3_S,
    "MXFP4_MOE": types.MXFP4,
}
"""The types of mixtures whose names do not begin with them."""


def _base_of(name: str) -> Type:
    return _BASES.get(name) or types.by_name(re.sub(r"(_K)_[SML]$", r"\1", name))


MIXTURES = {name: Mixture(name, number, _base_of(name)) for name, number in FILE_TYPES.items()}


def mixture(name: str) -> Mixture:
    """The mixture of a name of llama.cpp's, upper or lower case.  Raises ParameterError."""
    wanted = name.upper()
    found = MIXTURES.get(ALIASES.get(wanted, wanted))
    if found is None:
        names = ", ".join([*MIXTURES, COPY])
        raise ParameterError(f"there is no mixture {name!r}", got=name, remedy=f"use one of {names}")
    return found
