"""The responses of the OpenAI API for completions and chats, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

from ggplug_models.serve.answers import Answers, Delta
from ggplug_models.serve.log_probabilities import Scored
from ggplug_models.tokenizers import Tokenizer


class Reply:
    """Makes the JSON objects of the answers to one request.  ``model``: the name of the model."""

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.id = f"{self.PREFIX}-{secrets.token_hex(12)}"
        self.model = model
        self.created = int(time.time())
        self._tokenizer = tokenizer

    def whole(self, deltas: Sequence[Delta], answers: Answers) -> dict[str, Any]:
        """The whole response, from all its pieces."""
        choices = []
        for index in range(len(answers.texts)):
            own = [delta for delta in deltas if delta.index == index]
            scores = [score for delta in own for score in delta.scores]
            choice = self.text("".join(delta.text for delta in own))
            log_probabilities = None if answers.texts[index].scores is None else self.scores(scores, index)
            choices.append({"index": index, **choice, "logprobs": log_probabilities, "finish_reason": own[-1].finish})
        return self._object(self.WHOLE, choices) | {"usage": usage(answers)}

    def begin(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a text; None if there is no such chunk."""
        raise NotImplementedError

    def chunk(self, delta: Delta, *, scored: bool) -> dict[str, Any]:
        """The chunk for a piece of a text.  ``scored``: whether it has log probabilities."""
        choice = {"index": delta.index, **self.delta(delta.text)}
        scores = self.scores(delta.scores, delta.index) if scored else None
        return self._object(self.CHUNK, [{**choice, "logprobs": scores, "finish_reason": delta.finish}])

    def last(self, answers: Answers) -> dict[str, Any]:
        """The last chunk, with the numbers of tokens."""
        return self._object(self.CHUNK, []) | {"usage": usage(answers)}

    def text(self, text: str) -> dict[str, Any]:
        """The part of a choice with a whole text."""
        raise NotImplementedError

    def delta(self, text: str) -> dict[str, Any]:
        """The part of a choice with a piece of a text."""
        raise NotImplementedError

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        """The log probabilities of the next tokens of the text with the number ``index``."""
        raise NotImplementedError

    def others(self, scored: Scored) -> list[tuple[bytes, float]]:
        """The most probable tokens at a position, as bytes (control tokens: their names), and log probabilities."""
        pieces = [(self._tokenizer.piece(token), value) for token, value in scored.score.others]
        return [(piece.removeprefix(b" "), value) for piece, value in pieces] if scored.token_text.bare else pieces

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class CompletionReply(Reply):
    """The responses of ``/v1/completions``."""

    PREFIX, WHOLE, CHUNK = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(model, tokenizer)
        self._offsets: defaultdict[int, int] = defaultdict(int)

    def begin(self, index: int) -> dict[str, Any] | None:
        return None

    def text(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        tokens = [scored.token_text.text for scored in scores]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        best: list[dict[str, float]] = [{} for _ in scores]
        for found, scored in zip(best, scores, strict=True):
            for data, value in self.others(scored):
                found.setdefault(_text(data), value)  # of tokens with the same text, the most probable one
        return {
            "tokens": tokens,
            "token_logprobs": [scored.score.value for scored in scores],
            "text_offset": offsets,
            "top_logprobs": best,
        }


class ChatReply(Reply):
    """The responses of ``/v1/chat/completions``."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._object(self.CHUNK, [choice])

    def text(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def scores(self, scores: Sequence[Scored], index: int) -> dict[str, Any]:
        content = []
        for scored in scores:
            others = [_score(_text(data), value, data) for data, value in self.others(scored)]
            own = _score(scored.token_text.text, scored.score.value, scored.token_text.data)
            content.append(own | {"top_logprobs": others})
        return {"content": content, "refusal": None}


def _score(text: str, value: float, data: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(data)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def usage(answers: Answers) -> dict[str, Any]:
    """The numbers of tokens of a request."""
    return {
        "prompt_tokens": answers.prompt_tokens,
        "completion_tokens": answers.generated_tokens,
        "total_tokens": answers.prompt_tokens + answers.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": min(answers.reused_tokens, answers.prompt_tokens)},
    }
