"""``/v1/completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from ggplug_models.generation.detokenizer import TokenText
from ggplug_models.serve.answers import Answers, Delta, Written
from ggplug_models.serve.apis.infill import gap
from ggplug_models.serve.apis.openai import OpenAIReply, ResponseFormat, StreamOptions, as_text, others
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.asking import asked
from ggplug_models.serve.bodies.body import Whole
from ggplug_models.serve.bodies.parameters import MOST_SCORES, MOST_TEXTS, TextBody
from ggplug_models.serve.bodies.prompts import Texts, several
from ggplug_models.serve.log_probabilities import Scored
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.reply import Served
from ggplug_models.serve.writer import Writer

MOST_TOKENS = 16
"""Number of tokens that a completion has if the request does not say it, as in the OpenAI API."""


def _number(value: Any) -> Any:
    """A number of log probabilities; true and false are what newer clients send."""
    return int(value) if value is True else None if value is False else value


class CompletionBody(TextBody):
    """The body of ``/v1/completions``."""

    prompt: Texts
    logprobs: Annotated[Annotated[Whole, Field(ge=0, le=MOST_SCORES)] | None, BeforeValidator(_number)] = None
    echo: bool = False
    suffix: str | None = None
    best_of: Annotated[Whole, Field(ge=1, le=MOST_TEXTS)] | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> CompletionBody:
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError("best_of must be at least n")
        if self.best_of is not None and self.best_of > self.n and self.stream:
            raise ValueError("best_of cannot be combined with stream: true")
        return self


def ask(writer: Writer, body: CompletionBody) -> Asked:
    """What a completion asks for.  Raises Problem, ParameterError, ModelError."""
    n = body.best_of or body.n
    given = several(body.prompt, "prompt")
    if body.suffix:
        if not all(isinstance(each, str) for each in given):
            raise Problem(400, "suffix needs a prompt that is text", param="suffix", code="invalid_value")
        given = [gap(writer, str(each), body.suffix, param="suffix") for each in given]
    prompts = writer.prompts(given, n)
    ranked = body.best_of is not None and body.best_of > body.n
    most = body.max_tokens if "max_tokens" in body.model_fields_set else MOST_TOKENS
    return asked(
        body,
        prompts,
        n=n,
        begins=not body.prompt,
        max_tokens=most,
        form=None if body.response_format is None else body.response_format.form,
        scores=0 if ranked and body.logprobs is None else body.logprobs,
        echo=body.echo,
        usage_in_stream=body.stream_options is not None and body.stream_options.include_usage,
    )


class CompletionReply(OpenAIReply):
    """The replies of ``/v1/completions``."""

    PREFIX, WHOLE, CHUNK = "cmpl", "text_completion", "text_completion"

    def __init__(self, served: Served, body: Any, asked: Asked, answers: Answers) -> None:
        super().__init__(served, body, asked, answers)
        self._offsets: defaultdict[int, int] = defaultdict(int)

    def whole(self) -> dict[str, Any]:
        found = super().whole()
        best_of, n = self.body.best_of or 0, self.body.n
        if best_of > n:  # of the texts of each prompt, those whose tokens were the most probable
            kept = []
            for start in range(0, len(found["choices"]), best_of):
                ranked = sorted(range(start, start + best_of), key=self._improbability)
                kept += [found["choices"][index] for index in ranked[:n]]
            found["choices"] = [{**choice, "index": index} for index, choice in enumerate(kept)]
            if self.body.logprobs is None:
                for choice in found["choices"]:
                    choice["logprobs"] = None
        return found

    def _improbability(self, index: int) -> float:
        scores = self.answers.written[index].scores
        return -sum(each.score.value for each in scores) / max(len(scores), 1)

    def begin(self) -> Iterator[bytes]:
        for index in range(len(self.answers.texts) if self.asked.echo else 0):
            text = self._echoed(index)
            yield self.event(self._chunk({"index": index, "text": text, "logprobs": None, "finish_reason": None}))
            self._offsets[index] = len(text)

    def text(self, written: Written, index: int) -> dict[str, Any]:
        return {"text": self._echoed(index) + written.content}

    def delta(self, delta: Delta) -> dict[str, Any]:
        return {"text": "".join(piece.content for piece in delta.pieces)}

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        text = self.answers.texts[index]
        parts: list[Scored | TokenText] = [*scores]
        if self.asked.echo and not self.asked.stream and text.prompt_scores is not None:
            texts = self._prompt_texts(text.prompt)
            parts = [texts[0], *map(Scored, text.prompt_scores.found, texts[1:]), *scores]
            written = self.answers.written[index]
            if text.scores is not None and text.scores.found and written.finish != "length" and written.stop is None:
                # The end token has a place, too: lm-eval counts one for each that it asked for.
                parts.append(Scored(text.scores.found[0], TokenText("", b"", False)))
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
        for each in parts:
            scored = each if isinstance(each, Scored) else None
            token = each.token_text.text if isinstance(each, Scored) else each.text
            found["tokens"].append(token)
            found["token_logprobs"].append(None if scored is None else scored.score.value)
            found["text_offset"].append(self._offsets[index])
            found["top_logprobs"].append(None if scored is None else self._best(scored))
            self._offsets[index] += len(token)
        return found

    def _best(self, scored: Scored) -> dict[str, float]:
        best: dict[str, float] = {}
        for _, data, value in others(self.served.tokenizer, scored):
            best.setdefault(as_text(data), value)  # of tokens with the same text, the most probable one
        return best

    def _echoed(self, index: int) -> str:
        """The text of a prompt, if the request asks for it."""
        if not self.asked.echo:
            return ""
        return "".join(each.text for each in self._prompt_texts(self.answers.texts[index].prompt))

    def _prompt_texts(self, prompt: Sequence[int]) -> list[TokenText]:
        """The parts of a prompt's text that its tokens stand for; control tokens stand for none."""
        stream = self.served.tokenizer.stream(skip_special=True)
        found = [TokenText(stream.push(token), stream.bytes_of(token), False) for token in prompt]
        found[-1] = found[-1]._replace(text=found[-1].text + stream.finish())
        return found
