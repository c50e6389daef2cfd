"""A chat or a text with one language model, and how fast it went: what ``ggplug run`` does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ggplug_models.chat.template import ChatTemplate, Message
from ggplug_models.generation.drafts import Drafts
from ggplug_models.generation.written import GeneratedText, Written
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler
from ggplug_models.state.session import Session


@dataclass
class Pace:
    """``read`` tokens and the first of ``written`` ones took ``first`` seconds, the others ``rest`` seconds.

    ``accepted`` of the ``drafted`` tokens were right; None without a draft.
    """

    read: int = 0
    first: float = 0.0
    written: int = 0
    rest: float = 0.0
    drafted: int | None = None
    accepted: int = 0

    def __str__(self) -> str:
        if not self.written:
            return "stopped before the first token"
        texts = [f"{self.read} tokens read in {self.first:.2f} s"]
        if self.written > 1 and self.rest:
            texts.append(f"{self.written} written, {(self.written - 1) / self.rest:.1f} a second")
        if self.drafted is not None:
            texts.append(f"{self.accepted} of {self.drafted} guesses right")
        return ", ".join(texts)


class Talk:
    """Goes on with texts, or answers messages and remembers them.

    ``template``: by default the file's own, where it has one.  ``messages``: the chat so far, which a ``system``
    message may begin.  ``pace``: of the last text or answer.  ``draft``: guesses tokens, see
    :mod:`ggplug_models.generation.drafts`.  It uses ``session`` alone.
    """

    def __init__(
        self,
        model: Decoder,
        session: Session,
        sampler: Sampler,
        *,
        system: str | None = None,
        template: ChatTemplate | None = None,
        draft: Drafts | None = None,
    ) -> None:
        self.model, self.session, self.sampler, self.draft = model, session, sampler, draft
        self.template = template
        self.messages: list[Message] = []
        self.pace = Pace()
        self._system = system
        self.forget()

    def forget(self) -> None:
        """Begins a new chat."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def answer(self, text: str, max_tokens: int | None = None) -> Iterator[str]:
        """The answer to ``text``, in pieces.  What was said of it is remembered, also if the caller stops it.

        Raises ModelError where there is no template; ContextFullError for a chat that has become too long.
        """
        if self.template is None:
            self.template = self.model.template
        messages = [*self.messages, {"role": "user", "content": text}]
        said: list[str] = []
        try:
            for piece in self._timed(self.template.encode(messages), max_tokens):
                said.append(piece)
                yield piece
        finally:
            if said:
                self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]

    def go_on(self, text: str, max_tokens: int | None = None) -> Iterator[str]:
        """The text that follows ``text``, in pieces."""
        prompt = self.model.tokenizer.prompt(text)
        return self._timed(prompt, max_tokens, begins=not text)

    def _timed(self, prompt: Sequence[int], max_tokens: int | None, *, begins: bool = True) -> Iterator[str]:
        pace = self.pace = Pace(len(prompt))
        draft, tokenizer = self.draft, self.model.tokenizer
        drafted, accepted = (0, 0) if draft is None else (draft.drafted, draft.accepted)
        # The sampler itself, not what measures it: it has to know where a text begins.
        tokens = self.model.generate_ids(prompt, max_tokens, choose=self.sampler, session=self.session, draft=draft)
        try:
            yield from GeneratedText(Written(tokenizer, begins=begins), _paced(tokens, pace), tokenizer.ends)
        finally:
            if draft is not None:
                pace.drafted, pace.accepted = draft.drafted - drafted, draft.accepted - accepted


def _paced(tokens: Iterator[int], pace: Pace) -> Iterator[int]:
    """The tokens, measured as they come."""
    start = time.perf_counter()
    for token in tokens:
        now = time.perf_counter() - start
        if not pace.written:
            pace.first = now
        pace.written += 1
        pace.rest = now - pace.first
        yield token
