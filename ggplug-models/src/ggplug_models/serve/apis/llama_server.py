"""llama-server's own ``/completion``, and what it tells about a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from ggplug_models.sampling import Sampling
from ggplug_models.serve.answers import Answers, Delta
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Many, Whole
from ggplug_models.serve.bodies.parameters import MOST_SCORES, TextBody
from ggplug_models.serve.bodies.prompts import Texts, several
from ggplug_models.serve.log_probabilities import LogProbability, Scored
from ggplug_models.serve.reply import Reply, Served
from ggplug_models.serve.writer import Writer
from ggplug_models.tokenizers import Tokenizer

RANDOM = 2**32 - 1
"""llama-server's seed that stands for a random one."""


class NativeBody(TextBody):
    """The body of ``/completion``."""

    prompt: Texts
    n_probs: Annotated[Whole, Field(ge=0, le=MOST_SCORES)] = 0
    return_tokens: bool = False
    response_fields: Many[str] | None = None


def ask(writer: Writer, body: NativeBody) -> Asked:
    """What a completion asks for.  Raises Problem, ParameterError, ModelError."""
    prompts = writer.prompts(several(body.prompt, "prompt"), body.n)
    return asked(body, prompts, begins=not body.prompt, scores=body.n_probs or None)


class NativeReply(Reply):
    """The replies of ``/completion``."""

    def whole(self) -> Any:
        found = [self._selected(index) for index in range(len(self.answers.texts))]
        return found[0] if len(found) == 1 else found

    def piece(self, delta: Delta) -> Iterator[bytes]:
        answers, index = self.answers, delta.index
        if delta.finish is not None:
            yield self.event({**self._selected(index), "content": "", "tokens": []})
            return
        request = answers.requests[index]
        found = {
            "index": index,
            "content": delta.text,
            "tokens": delta.tokens,
            "stop": False,
            "id_slot": request.slot,
            "tokens_predicted": len(answers.written[index].tokens),
            "tokens_evaluated": len(request.prompt),
        }
        if delta.progress is not None:
            found["prompt_progress"] = delta.progress.fields
        if delta.scores:
            found[self._scores_name] = self._scores(delta.scores)
        if self.asked.timings_per_token:
            found["timings"] = answers.timings(index, delta.progress)
        yield self.event(found)

    def _selected(self, index: int) -> dict[str, Any]:
        """What is told about a text at its end; with ``response_fields`` only these, such as ``timings/prompt_n``."""
        found = final(self.served, self.asked, self.answers, index)
        if self.asked.scores and not self.asked.stream:  # of a stream, each event has had those of its text
            found[self._scores_name] = self._scores(self.answers.written[index].scores)
        if not getattr(self.body, "return_tokens", False):
            found["tokens"] = []
        if not self.body.response_fields:
            return found
        return {name: value for name in self.body.response_fields if (value := _at(found, name)) is not _MISSING}

    _scores_name = "completion_probabilities"

    def _scores(self, scores: Sequence[Scored]) -> list[dict[str, Any]]:
        return [scored_token(self.served.tokenizer, each.score, sampled=self.asked.sampled) for each in scores]


_MISSING = object()


def _at(found: Any, path: str) -> Any:
    for name in path.split("/"):
        if not isinstance(found, dict) or name not in found:
            return _MISSING
        found = found[name]
    return found


def scored_token(tokenizer: Tokenizer, score: LogProbability, *, sampled: bool) -> dict[str, Any]:
    """A token with its log probability and those of others, or with probabilities if these are after sampling."""
    kind, kinds = ("prob", "top_probs") if sampled else ("logprob", "top_logprobs")

    def one(token: int, value: float) -> dict[str, Any]:
        data = tokenizer.piece(token)
        number = math.exp(value) if sampled else value
        return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data), kind: number}

    return one(score.token, score.value) | {kinds: [one(*other) for other in score.others]}


def final(served: Served, asked: Asked, answers: Answers, index: int) -> dict[str, Any]:
    """What llama-server tells about a text at its end."""
    text, written, request = answers.texts[index], answers.written[index], answers.requests[index]
    full = len(text.prompt) + len(written.tokens) >= served.n_ctx
    by_limit = text.max_tokens is not None and len(written.tokens) >= text.max_tokens
    return {
        "index": index,
        "content": written.text,
        "tokens": written.tokens,
        "id_slot": request.slot,
        "stop": True,
        "model": served.name,
        "tokens_predicted": len(written.tokens),
        "tokens_evaluated": len(text.prompt),
        "generation_settings": settings(text.sampling, text.max_tokens)
        | {
            "stop": list(asked.stops),
            "stream": asked.stream,
            "n_probs": asked.scores or 0,
            "ignore_eos": asked.ignore_ends,
            "n_keep": asked.keep,
            "n_discard": asked.discard,
            "post_sampling_probs": asked.sampled,
            "timings_per_token": asked.timings_per_token,
            "lora": [{"id": number, "scale": scale} for number, scale in enumerate((text.lora or {}).values())],
            "grammar": asked.form.value if asked.form is not None and asked.form.kind == "grammar" else "",
        },
        "prompt": served.tokenizer.decode(text.prompt, clean=False),
        "has_new_line": "\n" in written.text,
        "truncated": bool(request.dropped) or (full and written.finish == "length" and not by_limit),
        "stop_type": "limit" if written.finish == "length" else "eos" if written.stop is None else "word",
        "stopping_word": written.stop or "",
        "tokens_cached": len(text.prompt) + len(written.tokens) - request.dropped,
        "timings": answers.timings(index),
    }


def settings(sampling: Sampling, most: int | None) -> dict[str, Any]:
    """The settings of a text with llama-server's names.  ``most``: maximum number of its tokens."""
    s = sampling
    biases = [{"token": t, "bias": None if v == -math.inf else v} for t, v in s.logit_bias.items()]
    return {
        "n_predict": -1 if most is None else most,
        "max_tokens": -1 if most is None else most,
        "seed": RANDOM if s.seed is None else s.seed,
        "temperature": s.temperature,
        "dynatemp_range": s.dynamic_range,
        "dynatemp_exponent": s.dynamic_exponent,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "top_n_sigma": s.top_n_sigma,
        "typical_p": s.typical_p,
        "xtc_probability": s.xtc_probability,
        "xtc_threshold": s.xtc_threshold,
        "repeat_last_n": s.penalty_last_n,
        "repeat_penalty": s.repeat_penalty,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "dry_multiplier": s.dry_multiplier,
        "dry_base": s.dry_base,
        "dry_allowed_length": s.dry_allowed_length,
        "dry_penalty_last_n": s.dry_last_n,
        "dry_sequence_breakers": list(s.dry_breakers),
        "mirostat": s.mirostat,
        "mirostat_tau": s.mirostat_tau,
        "mirostat_eta": s.mirostat_eta,
        "adaptive_target": -1.0,  # that sampler is off
        "adaptive_decay": 0.0,
        "logit_bias": biases,
        "samplers": list(s.order),
        "lora": [],
    }


def defaults(writer: Writer) -> dict[str, Any]:
    """The settings of a text whose request says nothing."""
    given = writer.defaults
    return settings(Sampling(**given.settings, seed=given.seed), given.max_tokens)
