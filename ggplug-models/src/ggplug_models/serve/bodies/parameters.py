"""The parameters of requests for texts, each declared once, with all the names that it has in the APIs.

A parameter that no declaration names is ignored, with a warning; a strict server refuses it.  Ranges that depend on
nothing but the number are checked here; those of the sampler's settings by :class:`~ggplug_models.sampling.Sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from pydantic import AliasChoices, BeforeValidator, Field, create_model

from ggplug_models.metadata.values import LARGEST_SINGLE
from ggplug_models.sampling.parameters import ORDER, SETTINGS
from ggplug_models.serve.bodies.body import Body, Many, Whole

MOST_TEXTS = 16
"""Maximum number of texts of a request."""

MOST_STOPS = 16
"""Maximum number of stop strings."""

MOST_BIASES = 4096
"""Maximum number of tokens with a bias."""

MOST_SCORES = 100
"""Maximum number of the most probable tokens that are listed for a position."""

NO_EFFECT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "verbosity",
    "background",
    "include",
    "truncation",
    "return_tokens",
)
"""Parameters that do not change the text: they are accepted without a warning."""

Count: TypeAlias = Annotated[Whole, Field(ge=1)]
Biases: TypeAlias = dict[str, float | bool] | list[tuple[int | str, float | bool]]


def _unlimited(value: Any) -> Any:
    """A number of tokens; -1 and other negative numbers mean: until the context is full."""
    is_negative = isinstance(value, int | float) and not isinstance(value, bool) and value < 0
    return None if is_negative and value >= -2 else value


def _seed(value: Any) -> Any:
    """A seed; -1, and the same as an unsigned number of 32 bits, mean a random one."""
    return None if value in (-1, 2**32 - 1) and not isinstance(value, bool) else value


def _few(value: Any) -> Any:
    """Limits the number of biases, because pydantic checks all items of dicts, also after an error."""
    if isinstance(value, (dict, list)) and len(value) > MOST_BIASES:
        raise ValueError(f"has {len(value)} tokens; at most {MOST_BIASES} are allowed")
    if isinstance(value, list):
        return [tuple(each) if isinstance(each, list) else each for each in value]
    return value


def _stops(value: Any) -> Any:
    """The stop strings without empty ones, which stop nothing."""
    if isinstance(value, list):
        return [each for each in value if each != ""]
    return value or None


def _all(value: Any) -> Any:
    """A limit of candidates, where negative numbers and 0 mean all."""
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value < 0 else value


class LoraScale(Body):
    """The scale of one of the server's LoRA adapters, by its number."""

    id: Whole
    scale: Annotated[float, Field(ge=-LARGEST_SINGLE, le=LARGEST_SINGLE)]


class Parameter(NamedTuple):
    """A parameter: its type, its default, the other names that it has, and what it does."""

    kind: Any
    default: Any
    names: tuple[str, ...] = ()
    what: str = ""


Limit: TypeAlias = Annotated[Annotated[Whole, Field(ge=0)] | None, BeforeValidator(_unlimited)]
Stops: TypeAlias = Annotated[
    str | Annotated[list[str], Field(max_length=MOST_STOPS, fail_fast=True)] | None, BeforeValidator(_stops)
]

STEPS: Mapping[str, str] = {**dict(zip(ORDER, ORDER, strict=True)), "typ_p": "typical_p", "dist": ""}
"""Names of sampling steps in llama-server's ``samplers``, with those of this library."""

SAMPLER_NAMES: Mapping[str, tuple[str, ...]] = {
    "penalty_last_n": ("repeat_last_n",),
    "dynamic_range": ("dynatemp_range",),
    "dynamic_exponent": ("dynatemp_exponent",),
    "dry_last_n": ("dry_penalty_last_n",),
    "typical_p": ("typ_p",),
    "repeat_penalty": ("repetition_penalty",),
}
"""Further names of the sampler's settings, those of llama-server and vLLM."""

SAMPLER: Mapping[str, Parameter] = {
    name: Parameter(
        (Annotated[Whole, BeforeValidator(_all)] if name == "top_k" else Whole if kind is int else float) | None,
        None,
        SAMPLER_NAMES.get(name, ()),
        f"{name} of the sampler",
    )
    for name, (kind, _) in SETTINGS.items()
}
"""The settings of :class:`~ggplug_models.sampling.Sampling` that are numbers.  Only their types are checked here."""

TEXTS: Mapping[str, Parameter] = {
    "model": Parameter(str | None, None, (), "name of the model"),
    "max_tokens": Parameter(
        Limit,
        None,
        ("max_completion_tokens", "max_output_tokens", "n_predict", "num_predict"),
        "maximum number of generated tokens; -1: until the context is full",
    ),
    "n": Parameter(Annotated[Whole, Field(ge=1, le=MOST_TEXTS)], 1, ("n_cmpl",), "number of texts"),
    "stop": Parameter(Stops, None, ("stop_sequences",), "stop strings"),
    "stream": Parameter(bool, False, (), "whether the text is sent as it is generated"),
    "seed": Parameter(Annotated[Whole | None, BeforeValidator(_seed)], None, (), "seed of the random numbers"),
    "logit_bias": Parameter(
        Annotated[Biases | None, BeforeValidator(_few)], None, (), "numbers to add to logits; false forbids a token"
    ),
    "ignore_eos": Parameter(bool, False, (), "whether end tokens are forbidden"),
    "samplers": Parameter(Many[str] | None, None, (), "the sampling steps, in their order"),
    "grammar": Parameter(str | None, None, (), "GBNF grammar of the text"),
    "json_schema": Parameter(dict[str, Any] | None, None, (), "JSON schema of the text"),
    "lora": Parameter(
        Many[LoraScale] | None, None, (), "scales of the server's LoRA adapters for this request; others do not act"
    ),
    "n_keep": Parameter(
        Whole, 0, ("num_keep",), "tokens of the prompt that a full context keeps if the server shifts; -1: all"
    ),
    "n_discard": Parameter(Annotated[Whole, Field(ge=0)], 0, (), "tokens after these that it drops; 0: half"),
    "id_slot": Parameter(Whole, -1, (), "slot that computes the text, if it is free"),
    "timings_per_token": Parameter(bool, False, (), "whether each event of a stream has timings"),
    "return_progress": Parameter(bool, False, (), "whether a stream reports how much of the prompt is computed"),
    "verbose": Parameter(bool, False, (), "whether the response has what /completion answers as __verbose"),
    "post_sampling_probs": Parameter(bool, False, (), "whether probabilities are those after the sampling steps"),
}
"""The other parameters that all APIs for texts have in common."""


def fields(declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The declarations as fields of a pydantic model."""
    return {
        name: (
            each.kind,
            Field(
                default=each.default,
                validation_alias=AliasChoices(name, *each.names) if each.names else None,
                description=each.what,
            ),
        )
        for name, each in declared.items()
    }


_Declared = create_model("_Declared", __base__=Body, **fields({**SAMPLER, **TEXTS}))


class TextBody(_Declared):  # type: ignore[valid-type, misc]
    """The parameters that all APIs for texts have in common."""

    NO_EFFECT: ClassVar[frozenset[str]] = frozenset(NO_EFFECT)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the sampler in the request, with the names of :class:`~ggplug_models.sampling.Sampling`."""
        found = {name: value for name in SAMPLER if (value := getattr(self, name)) is not None}
        if self.samplers is not None:
            found["order"] = tuple(dict.fromkeys(step for name in self.samplers if (step := STEPS.get(name))))
        return found

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []
