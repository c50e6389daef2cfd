"""What clients get: the OpenAI API's objects of completions and chats, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

from ggplug_models.serve.answers import Answers, Piece
from ggplug_models.serve.log_probabilities import LogProbability
from ggplug_models.tokenizers import Tokenizer


class Reply:
    """The objects of one answer of the model ``model``."""

    PREFIX: ClassVar[str]
    WHOLE: ClassVar[str]
    CHUNK: ClassVar[str]

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.id = f"{self.PREFIX}-{secrets.token_hex(12)}"
        self.model = model
        self.created = int(time.time())
        self._tokenizer = tokenizer

    def whole(self, pieces: Sequence[Piece], answers: Answers) -> dict[str, Any]:
        """The answer that consists of these pieces."""
        choices = []
        for index in range(len(answers.texts)):
            own = [piece for piece in pieces if piece.index == index]
            scores = [score for piece in own for score in piece.scores]
            choice = self.text("".join(piece.text for piece in own))
            log_probabilities = None if answers.texts[index].scores is None else self.scores(scores, index)
            choices.append({"index": index, **choice, "logprobs": log_probabilities, "finish_reason": own[-1].finish})
        return self._object(self.WHOLE, choices) | {"usage": usage(answers)}

    def begin(self, index: int) -> dict[str, Any] | None:
        """The chunk that a text begins with."""
        raise NotImplementedError

    def chunk(self, piece: Piece, *, scored: bool) -> dict[str, Any]:
        """The chunk of a piece."""
        choice = {"index": piece.index, **self.delta(piece.text)}
        scores = self.scores(piece.scores, piece.index) if scored else None
        return self._object(self.CHUNK, [{**choice, "logprobs": scores, "finish_reason": piece.finish}])

    def last(self, answers: Answers) -> dict[str, Any]:
        """The chunk that tells how many tokens there were."""
        return self._object(self.CHUNK, []) | {"usage": usage(answers)}

    def text(self, text: str) -> dict[str, Any]:
        """A whole text, in its choice."""
        raise NotImplementedError

    def delta(self, text: str) -> dict[str, Any]:
        """A part of it."""
        raise NotImplementedError

    def scores(self, scores: Sequence[LogProbability], index: int) -> dict[str, Any]:
        """How probable the tokens that come next in the text with the number ``index`` were."""
        raise NotImplementedError

    def token(self, token: int) -> str:
        """The text of a token."""
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class CompletionReply(Reply):
    """Of ``/v1/completions``."""

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

    def scores(self, scores: Sequence[LogProbability], index: int) -> dict[str, Any]:
        tokens = [self.token(score.token) for score in scores]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens, "token_logprobs": [score.value for score in scores], "text_offset": offsets,
            "top_logprobs": [{self.token(other): value for other, value in score.others} for score in scores],
        }  # fmt: skip


class ChatReply(Reply):
    """Of ``/v1/chat/completions``."""

    PREFIX, WHOLE, CHUNK = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._object(self.CHUNK, [choice])

    def text(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def scores(self, scores: Sequence[LogProbability], index: int) -> dict[str, Any]:
        content = [
            self._score(score.token, score.value) | {"top_logprobs": [self._score(*other) for other in score.others]}
            for score in scores
        ]
        return {"content": content, "refusal": None}

    def _score(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self.token(token), "logprob": value, "bytes": list(self._tokenizer.piece(token))}


def usage(answers: Answers) -> dict[str, Any]:
    """How many tokens there were."""
    return {
        "prompt_tokens": answers.prompt_tokens,
        "completion_tokens": answers.written,
        "total_tokens": answers.prompt_tokens + answers.written,
        "prompt_tokens_details": {"cached_tokens": min(answers.reused_tokens, answers.prompt_tokens)},
    }
