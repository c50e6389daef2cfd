"""Chats and completions of one language model, with their speed: what ``ggplug run`` does."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ggplug_models.chat.answer import Answer, AnswerPiece
from ggplug_models.chat.formats.format import Reasoning
from ggplug_models.chat.prepared import prepared
from ggplug_models.chat.template import ChatTemplate, Message
from ggplug_models.generation.detokenizer import Detokenizer, GeneratedText
from ggplug_models.generation.drafts import Drafts
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler
from ggplug_models.state.session import Session


@dataclass
class Timings:
    """How long the last answer took.

    ``prompt``: tokens of the prompt.  ``generated``: tokens of the answer.  ``first``: seconds until the first of them.
    ``rest``: seconds for the others.  ``accepted`` of the ``drafted`` draft tokens were right; None without a draft.
    """

    prompt: int = 0
    first: float = 0.0
    generated: int = 0
    rest: float = 0.0
    drafted: int | None = None
    accepted: int = 0

    def __str__(self) -> str:
        if not self.generated:
            return "stopped before the first token"
        texts = [f"prompt of {self.prompt} tokens in {self.first:.2f} s"]
        if self.generated > 1 and self.rest:
            texts.append(f"{self.generated} tokens generated, {(self.generated - 1) / self.rest:.1f} per second")
        if self.drafted is not None:
            texts.append(f"{self.accepted} of {self.drafted} draft tokens accepted")
        return ", ".join(texts)


class Chat:
    """Answers the messages of a chat, which it remembers, or completes texts.

    ``session``: must not be used by anything else.  ``system``: the system prompt.  ``template``: the chat template; by
    default the file's.  ``draft``: see :mod:`ggplug_models.generation.drafts`.  ``messages``: the chat so far.
    ``timings``: of the last answer or text.
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
        self.timings = Timings()
        self._system = system
        self.clear()

    def clear(self) -> None:
        """Forgets the messages, except for the system prompt."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def answer(self, text: str, max_tokens: int | None = None) -> Iterator[str]:
        """The answer to the user's message ``text``, in pieces; its reasoning is shown between the format's marks.

        Remembers both messages, also if the caller stops the answer.  Raises ModelError if there is no chat template;
        ContextFullError for a chat that is longer than the context.
        """
        if self.template is None:
            self.template = self.model.template
        messages = [*self.messages, {"role": "user", "content": text}]
        chat = prepared(self.template, messages)
        parser, answer = chat.parser(), Answer()
        kept = self.model.control.kept(chat.format.marks)
        try:
            for written in self._timed(self.model.tokenizer.prompt(chat.prompt), max_tokens, keep=kept):
                yield from _shown(parser.push(written), answer, chat.format.reasoning)
            yield from _shown(parser.finish(), answer, chat.format.reasoning)
        finally:
            if answer.content or answer.reasoning:
                self.messages = [*messages, answer.message]

    def complete(self, text: str, max_tokens: int | None = None) -> Iterator[str]:
        """The text that follows ``text``, in pieces."""
        prompt = self.model.tokenizer.prompt(text)
        return self._timed(prompt, max_tokens, begins=not text)

    def _timed(
        self, prompt: Sequence[int], max_tokens: int | None, *, begins: bool = True, keep: Collection[int] = ()
    ) -> Iterator[str]:
        timings = self.timings = Timings(len(prompt))
        draft, tokenizer = self.draft, self.model.tokenizer
        drafted, accepted = (0, 0) if draft is None else (draft.drafted, draft.accepted)
        # generate_ids gets the sampler itself, whose begin() it calls; the tokens are timed outside of it.
        tokens = self.model.generate_ids(prompt, max_tokens, choose=self.sampler, session=self.session, draft=draft)
        text = Detokenizer(tokenizer, begins=begins, keep=keep)
        try:
            yield from GeneratedText(text, _noting_times(tokens, timings), tokenizer.ends)
        finally:
            if draft is not None:
                timings.drafted, timings.accepted = draft.drafted - drafted, draft.accepted - accepted


def _shown(pieces: Iterable[AnswerPiece], answer: Answer, marks: Reasoning | None) -> Iterator[str]:
    """The text of pieces, with the marks of the reasoning.  ``answer``: what came before; the pieces are added."""
    for piece in pieces:
        if marks is not None and piece.reasoning and not answer.reasoning:
            yield f"{marks.start}\n"
        if marks is not None and piece.content and answer.reasoning and not answer.content:
            yield f"\n{marks.end}\n\n"
        answer.add(piece)
        yield piece.content or piece.reasoning


def _noting_times(tokens: Iterator[int], timings: Timings) -> Iterator[int]:
    """Yields the tokens and notes in ``timings`` when they came."""
    start = time.perf_counter()
    for token in tokens:
        now = time.perf_counter() - start
        if not timings.generated:
            timings.first = now
        timings.generated += 1
        timings.rest = now - timings.first
        yield token
