"""The adapters of each sequence of a session: which of the model's act, and with which scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ggplug.errors import ModelError, ParameterError
from ggplug_models.checks.arguments import number
from ggplug_models.layers.patches import GraphChange, Patching
from ggplug_models.metadata.values import short_repr

Lora: TypeAlias = Mapping[Patching, float]
"""The scales of adapters, by what :meth:`.Network.adapt` returned; those that are missing do not act."""

InEffect: TypeAlias = dict[GraphChange, float | None]
"""The changes of a graph, in their order, each with its scale; None: it has no scale."""

OwnScales: TypeAlias = Mapping[GraphChange, float] | None
"""The scales that a sequence has of its own; None: it has those of the model."""


def checked_scales(lora: Lora | None, there: Sequence[GraphChange]) -> OwnScales:
    """The scales by change.  ``there``: the changes of the model.  Raises ParameterError."""
    if lora is None:
        return None
    if not isinstance(lora, Mapping):
        raise ParameterError(f"the scales of adapters must be a dict, got {short_repr(lora)}", got=lora)
    for each in lora:
        if not isinstance(each, Patching) or each.change.scale is None or each.change not in there:
            raise ParameterError(
                f"{short_repr(each)} is no adapter in effect",
                got=each,
                wanted="what adapt() of the model returned, before its remove()",
            )
    return {each.change: number("the scale of an adapter", scale) for each, scale in lora.items()}


class Adapting:
    """The scales that each of ``n_seq`` sequences has of its own; None: it has those of the model."""

    def __init__(self, n_seq: int) -> None:
        self._own: list[OwnScales] = [None] * n_seq

    def own(self, seq: int) -> OwnScales:
        """The scales of a sequence."""
        return self._own[seq]

    def set(self, seq: int, own: OwnScales) -> None:
        """Sets the scales of a sequence."""
        self._own[seq] = own

    def copy(self, source: int, target: int) -> None:
        """Gives a sequence the scales of another one."""
        self._own[target] = self._own[source]

    def of(self, seq: int, there: Sequence[GraphChange]) -> InEffect:
        """What is in effect for a sequence, of the changes of a model."""
        return in_effect(self._own[seq], there)


def in_effect(own: OwnScales, there: Sequence[GraphChange]) -> InEffect:
    """What is in effect, of the changes of a model, for a sequence with scales of its own; a scale 0 leaves one out."""
    found: InEffect = {}
    for each in there:
        scale = each.scale if own is None or each.scale is None else own.get(each, 0.0)
        if scale != 0:
            found[each] = scale
    return found


def only_scaled(changes: InEffect) -> dict[GraphChange, float]:
    """The adapters among changes, with their scales."""
    return {each: scale for each, scale in changes.items() if scale is not None}


def unscaled(changes: InEffect) -> tuple[GraphChange, ...]:
    """The patches and control vectors among changes."""
    return tuple(each for each, scale in changes.items() if scale is None)


def as_text(adapters: Mapping[GraphChange, float]) -> str:
    """Adapters for a file: the digest of each, and its scale."""
    return ", ".join(f"{change.digest} {scale!r}" for change, scale in adapters.items())


def digests(patches: Sequence[GraphChange]) -> str:
    """Patches and control vectors for a file: the digest of each.  Raises ParameterError for one without a digest."""
    for each in patches:
        if not each.digest:
            raise ParameterError(
                f"files of sessions cannot say that {short_repr(each)} was in effect",
                got=each,
                remedy="save and restore without it, or patch with an array",
            )
    return ", ".join(each.digest for each in patches)


def scales_in(text: str, there: Sequence[GraphChange]) -> dict[GraphChange, float]:
    """The scales that :func:`as_text` wrote.

    Raises ModelError for an adapter that the model does not have, and for another text.
    """
    own: dict[GraphChange, float] = {}
    for each in filter(None, text.split(", ")):
        digest, _, scale = each.partition(" ")
        alike = (change for change in there if change.scale is not None and change not in own)
        change = next((change for change in alike if change.digest == digest), None)
        if change is None:
            raise ModelError(
                f"the tokens were computed with a LoRA adapter that is not in effect; its digest is {digest:.100}",
                got=digest,
                remedy="load it, too, or compute the tokens again",
            )
        try:
            own[change] = number("the scale of an adapter", float(scale))
        except ValueError:
            raise ModelError(f"{each!r:.100} is no LoRA adapter with a scale", got=each) from None
    return own
