"""Generates texts for many clients: converts request bodies to texts that the batcher generates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ggplug.errors import ParameterError
from ggplug_models.chat.template import KEY, ChatTemplate
from ggplug_models.generation.detokenizer import Detokenizer
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Chooses, Constraint, Sampler, Sampling, breakers_of
from ggplug_models.sampling.penalties import Breakers
from ggplug_models.serve.batcher import LEAST, Batcher
from ggplug_models.serve.bodies import MOST_TEXTS, ChatBody, CompletionBody, TextBody, check_length, ids_of, several
from ggplug_models.serve.log_probabilities import LogProbabilities
from ggplug_models.serve.problems import Problem

if TYPE_CHECKING:
    from ggplug_models.sampling.grammar import Grammars

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
"""The chat template for a model whose file has none."""


@dataclass
class Text:
    """A text to generate: its prompt, how tokens are chosen, and their conversion to text."""

    prompt: list[int]
    choose: Chooses
    max_tokens: int | None
    detokenizer: Detokenizer
    scores: LogProbabilities | None = None


class Writer:
    """A language model with a session and a batcher.

    ``slots``: number of texts generated at the same time.  ``context``: context length of each; None: the default of a
    session.  ``waiting``: maximum number of waiting requests.  ``template``: a Jinja template to use instead of the
    file's.  Call :meth:`close` to release the memory.  Raises ParameterError, ModelError, OutOfMemoryError.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        slots: int = 4,
        context: int | None = None,
        cache_type: str = "f16",
        waiting: int = 64,
        template: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.has_template = template is not None or KEY in model.metadata
        if template is None and self.has_template:
            self.template = model.template
        else:
            self.template = ChatTemplate(template or PLAIN, self.tokenizer)
        self.slots = slots
        self._lock = threading.Lock()
        self._breakers: Breakers | None = None
        self.session = model.session(context, slots, cache_type)
        has_experts = model.hyperparameters.integer("expert_count", 0, at_least=0)
        self.batcher = Batcher(self.session, waiting=waiting, least=None if has_experts else LEAST)

    def close(self) -> None:
        """Cancels all texts and frees the session; the caller frees the model."""
        self.batcher.close()
        self.session.free()

    # -- requests -----------------------------------------------------------------------------------

    def completion(self, body: CompletionBody) -> list[Text]:
        """The texts of a completion, ``n`` for each prompt.  Raises Problem, ParameterError, ModelError."""
        prompts = several(body.prompt)
        if not 1 <= len(prompts) * body.n <= MOST_TEXTS:
            raise Problem(
                400,
                f"prompt: {len(prompts)} prompts times n = {body.n} texts; 1 to {MOST_TEXTS} texts are allowed",
                param="prompt",
                code="invalid_value",
            )
        found = []
        for number, prompt in enumerate(prompts):
            what = f"prompt[{number}]" if len(prompts) > 1 else "prompt"
            if isinstance(prompt, str):
                self._check_text(prompt, what)
                ids = self._fitting(self.tokenizer.prompt(prompt), what)
            else:
                ids = ids_of(prompt, self.session.n_ctx, self.model.n_vocab, what, self._limit)
            found += self._texts(ids, body, body.max_tokens, body.logprobs, begins=not prompt)
        return found

    def chat(self, body: ChatBody) -> list[Text]:
        """The ``n`` answers to a chat.  Raises Problem, ParameterError, ModelError."""
        text = self.template.render([message.for_template() for message in body.messages])
        self._check_text(text, "messages")
        ids = self._fitting(self.tokenizer.prompt(text), "messages")
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        scores = body.top_logprobs or 0 if body.logprobs else None
        return self._texts(ids, body, most, scores)

    @property
    def _limit(self) -> str:
        return f"the context length is {self.session.n_ctx} tokens, for the prompt and the answer together"

    def _check_text(self, text: str, what: str) -> None:
        """Raises Problem for a text that is certainly too long, before it is tokenized."""
        check_length(self.tokenizer.at_least(text), self.session.n_ctx, what, self._limit, at_least=True)

    def _fitting(self, ids: list[int], what: str) -> list[int]:
        if not ids:
            raise Problem(400, f"{what} has no tokens", param=what.partition("[")[0], code="invalid_value")
        check_length(len(ids), self.session.n_ctx, what, self._limit)
        return ids

    def _texts(
        self, prompt: list[int], body: TextBody, most: int | None, scores: int | None, *, begins: bool = True
    ) -> list[Text]:
        """The ``n`` texts of one prompt; each further one uses the next seed."""
        found = []
        for number in range(body.n):
            choose: Chooses = self._sampler(body, number)
            kept = None if scores is None else LogProbabilities(choose, scores)
            detokenizer = Detokenizer(self.tokenizer, body.stops, begins=begins, keep_texts=kept is not None)
            found.append(Text(prompt, kept or choose, most, detokenizer, kept))
        return found

    # -- sampling -----------------------------------------------------------------------------------

    def _sampler(self, body: TextBody, number: int) -> Sampler:
        seed = None if body.seed is None else (body.seed + number) % 2**64
        sampling = Sampling(**body.settings, logit_bias=self._biases(body.logit_bias or {}), seed=seed)
        breakers = self._dry_breakers(sampling.dry_breakers) if sampling.dry_multiplier else None
        return Sampler(sampling, breakers=breakers, constraint=self._constraint(body))

    def _biases(self, biases: dict[str, float]) -> dict[int, float]:
        found = {}
        longest = len(str(self.model.n_vocab))
        for token, value in biases.items():
            known = token.isdecimal() and token.isascii() and len(token) <= longest
            if not known or int(token) >= self.model.n_vocab:
                raise ParameterError(
                    f"logit_bias has the token {token!r:.40}; token ids are 0 to {self.model.n_vocab - 1}"
                )
            found[int(token)] = value
        return found

    def _constraint(self, body: TextBody) -> Constraint | None:
        wanted = body.response_format
        if wanted is None or wanted.type == "text":
            return None
        with self._lock:
            grammars = self._grammars
        return grammars.json_schema(None if wanted.json_schema is None else wanted.json_schema.schema_)

    @cached_property
    def _grammars(self) -> Grammars:
        from ggplug_models.sampling.grammar import Grammars

        return Grammars(self.tokenizer, self.model.n_vocab)

    def _dry_breakers(self, strings: Sequence[str]) -> Breakers:
        with self._lock:
            if self._breakers is None:
                self._breakers = breakers_of(self.tokenizer, strings)
            return self._breakers
