"""Converts the parameters that all APIs have in common to what the writer reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggplug_models.serve.bodies.asked import Asked, Form
from ggplug_models.serve.bodies.parameters import TextBody
from ggplug_models.serve.problems import Problem


def asked(body: TextBody, prompts: Sequence[list[int]], **more: Any) -> Asked:
    """What a body asks for.  ``more``: what only its API has; it replaces what the body says."""
    found: dict[str, Any] = {
        "prompts": prompts,
        "n": body.n,
        "max_tokens": body.max_tokens,
        "settings": body.settings,
        "seed": body.seed,
        "biases": _biases(body.logit_bias),
        "ignore_ends": body.ignore_eos,
        "stops": body.stops,
        "form": _form(body),
        "sampled": body.post_sampling_probs,
        "slot": body.id_slot,
        "keep": body.n_keep,
        "discard": body.n_discard,
        "lora": None if body.lora is None else {each.id: each.scale for each in body.lora},
        "stream": body.stream,
        "timings_per_token": body.timings_per_token,
        "progress": body.return_progress and body.stream,
        "verbose": body.verbose,
    }
    form = more.pop("form", None)
    if form is not None:
        found["form"] = form
    return Asked(**found | more)


def _form(body: TextBody) -> Form | None:
    if body.grammar and body.json_schema is not None:
        raise Problem(400, "grammar and json_schema cannot both be given", param="grammar", code="invalid_value")
    if body.grammar:
        return Form("grammar", body.grammar)
    return None if body.json_schema is None else Form("schema", body.json_schema)


def _biases(biases: Any) -> list[tuple[int | str, float]]:
    """Biases in the form of OpenAI (a dict) or llama-server (a list of pairs); false forbids a token."""
    pairs = biases.items() if isinstance(biases, dict) else biases or ()
    return [(token, float("-inf") if value is False else float(value)) for token, value in pairs]
