"""JSON objects of requests: what all of them have in common.

A check stops at the first wrong item, so that a body with a million wrong items does not take longer than a body with a
million right ones.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import from_json

from ggplug_models.serve.problems import Problem, wrong

MOST_KEYS = 256
"""Maximum number of keys of a JSON object."""

MOST_REPORTED = 16
"""Maximum number of ignored parameters that a response names."""

MAY_BE_INFINITE = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}|[0-9]{200}")
"""What a JSON text has somewhere if one of its numbers is read as NaN or infinity."""

T = TypeVar("T")


def _whole(value: Any) -> Any:
    """A number such as 3.0 as an integer, because JSON does not distinguish the two."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Many: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]


@dataclass
class Unknown:
    """The keys of a body that nothing declares.  ``strict``: whether they are refused."""

    strict: bool = False
    names: dict[str, None] = field(default_factory=dict)

    def check(self) -> None:
        """Raises Problem if the server is strict and there are such keys."""
        if self.strict and self.names:
            name = next(iter(self.names))
            raise Problem(
                400, f"{name:.100} is not supported by this server", param=f"{name:.100}", code="unknown_parameter"
            )

    @property
    def header(self) -> str | None:
        """The value of a header that lists these keys, in ASCII; None if there are none."""
        if not self.names:
            return None
        shown = [json.dumps(name[:60])[1:-1] for name in list(self.names)[:MOST_REPORTED]]
        more = len(self.names) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


class Body(BaseModel):
    """A JSON object.  A key with null counts as missing; keys that nothing declares are ignored and recorded.

    ``NO_EFFECT``: keys that are ignored without a record.
    """

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)
    NO_EFFECT: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def read(cls, raw: bytes, unknown: Unknown) -> Self:
        """The object in a body.

        Raises ValidationError; Problem as :meth:`Unknown.check` does, and for a number that is not finite, also where
        any value is allowed, because such a value may be a part of a reply.
        """
        found = cls.model_validate_json(raw, context=unknown)
        if MAY_BE_INFINITE.search(raw) and (place := _not_finite(from_json(raw))):
            raise wrong(place, "Input should be a finite number")
        unknown.check()
        return found

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > MOST_KEYS:
            raise ValueError(f"an object has {len(value)} keys; at most {MOST_KEYS} are allowed")
        if isinstance(info.context, Unknown) and cls.model_config.get("extra") == "ignore":
            known = names_of(cls)
            info.context.names |= {key: None for key, each in value.items() if key not in known and not _empty(each)}
        return {key: each for key, each in value.items() if each is not None}


@cache
def names_of(body: type[Body]) -> frozenset[str]:
    """The names of all parameters of a kind of body."""
    names = set(body.NO_EFFECT)
    for name, each in body.model_fields.items():
        alias = each.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or each.alias or name]
        names |= {choice for choice in choices if isinstance(choice, str)}
    return frozenset(names)


def _not_finite(value: Any) -> tuple[str | int, ...]:
    """The place of a number in an object or a list that is not finite; empty if there is none."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, float) and not math.isfinite(each):
            return (key,)
        if isinstance(each, dict | list) and (place := _not_finite(each)):
            return (key, *place)
    return ()


def _empty(value: Any) -> bool:
    """Whether a value means that nothing is asked for."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)
