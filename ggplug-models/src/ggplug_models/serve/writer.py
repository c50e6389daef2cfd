"""Generates texts for many clients: converts what they ask for to texts that the batcher generates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ggplug.errors import DeviceLostError, FreedError, ParameterError
from ggplug_models.chat.answer import AnswerPiece
from ggplug_models.chat.template import KEY, ChatTemplate
from ggplug_models.generation.detokenizer import Detokenizer
from ggplug_models.generation.drafts import Drafts
from ggplug_models.layers.patches import Patching
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Chooses, Constraint, Sampler, Sampling, breakers_of
from ggplug_models.sampling.penalties import Breakers
from ggplug_models.serve.batcher import LEAST, Batcher, Counts
from ggplug_models.serve.bodies.asked import Asked
from ggplug_models.serve.bodies.parameters import MOST_TEXTS
from ggplug_models.serve.bodies.prompts import Prompt, ids_of
from ggplug_models.serve.log_probabilities import LogProbabilities, PromptScores
from ggplug_models.serve.problems import Problem
from ggplug_models.serve.request import Shift
from ggplug_models.serve.slot_drafts import SlotDrafts
from ggplug_models.state.adapting import Lora
from ggplug_models.state.session import Session

LOG = logging.getLogger("ggplug.serve")

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
"""The chat template for a model whose file has none."""


@dataclass(frozen=True)
class Defaults:
    """What applies where a request says nothing: settings of the sampler, and the largest number of tokens.

    ``thinks``: whether answers in chats begin with a reasoning, if the template allows it.  ``shifts``: whether texts
    go on when the context is full, without a part of it.  ``verbose``: whether responses have all that is known about a
    text.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    thinks: bool = True
    shifts: bool = False
    verbose: bool = False


class Parses(Protocol):
    """Splits a text into content, reasoning, and calls of tools, as it comes."""

    def push(self, text: str) -> Iterable[AnswerPiece]:
        """Adds text, and returns the pieces that are certain now."""

    def finish(self) -> Iterable[AnswerPiece]:
        """Ends the text, and returns what was held back."""


@dataclass
class Text:
    """A text to generate: its prompt, how tokens are chosen, and their conversion to text.

    ``sampling``: the settings of its sampler.  ``parser``: splits it; None: all of it is content.  ``scores`` and
    ``prompt_scores`` record log probabilities.
    """

    prompt: list[int]
    choose: Chooses
    sampling: Sampling
    max_tokens: int | None
    detokenizer: Detokenizer
    ends: frozenset[int]
    parser: Parses | None = None
    scores: LogProbabilities | None = None
    prompt_scores: PromptScores | None = None
    slot: int = -1
    shift: Shift | None = None
    reports: bool = False
    lora: Lora | None = None


class Writer:
    """A language model with a session and a batcher.

    ``slots``: number of texts generated at the same time.  ``context``: context length of each; None: the default of a
    session.  ``waiting``: maximum number of waiting requests.  ``template``: a Jinja template to use instead of the
    file's.  ``piece``: number of tokens of prompts that are computed between two tokens of other texts.  ``drafts``:
    those of each slot, for speculative decoding, which the caller releases.  ``adapters``: the LoRA adapters whose
    scales requests may choose; those that choose none have the scales of the model.  ``counts``: where work is counted.
    ``again``: loads the model and makes the drafts again, after a device was lost; ``replays``: see :class:`.Batcher`.
    Call :meth:`close` to release the memory.  Raises ParameterError, ModelError, OutOfMemoryError.
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
        defaults: Defaults | None = None,
        piece: int = 128,
        drafts: Sequence[Drafts] = (),
        adapters: Sequence[Patching] = (),
        counts: Counts | None = None,
        again: Callable[[], tuple[Decoder, Sequence[Drafts]]] | None = None,
        replays: bool = False,
    ) -> None:
        self.model = model
        self.adapters = adapters
        self.scales = {each: each.scale for each in adapters}
        """The scales of adapters for requests that choose none; they are replaced, not changed."""
        self.tokenizer = model.tokenizer
        self.defaults = defaults or Defaults()
        Sampling(**self.defaults.settings)  # so that wrong defaults are refused now
        self.has_template = template is not None or KEY in model.metadata
        if template is None and self.has_template:
            self.template = model.template
        else:
            self.template = ChatTemplate(template or PLAIN, self.tokenizer)
        self.slots = slots
        self._lock = threading.Lock()
        self._breakers: Breakers | None = None
        self._context, self._cache_type = context, cache_type
        self._load = again
        self.session = self._session()
        has_experts = model.hyperparameters.integer("expert_count", 0, at_least=0)
        self.batcher = Batcher(
            self.session,
            waiting=waiting,
            piece=piece,
            least=None if has_experts else LEAST,
            at_once=self.session.n_copies,
            drafts=self._slot_drafts(drafts),
            counts=counts,
            again=None if again is None else self._again,
            replays=replays,
        )

    def close(self) -> None:
        """Cancels all texts and frees the session; the caller frees the model."""
        self.batcher.close()
        self.session.free()

    def restore(self, error: DeviceLostError | FreedError, lost: object) -> None:
        """Has the model loaded again because of an error of the model ``lost``, unless that was done before.

        Raises the error if it is not that of a lost device, and what loading raises.
        """

        def restoring() -> None:
            if self.model is lost:
                if not isinstance(error, DeviceLostError):
                    raise error
                self.batcher.restore(error)

        self.batcher.call(restoring).result()

    def _again(self) -> tuple[Session, SlotDrafts | None]:
        assert self._load is not None
        self.session.free()
        self.model, drafts = self._load()
        self.session = self._session()
        return self.session, self._slot_drafts(drafts)

    def _session(self) -> Session:
        return self.model.session(self._context, self.slots, self._cache_type)

    def _slot_drafts(self, drafts: Sequence[Drafts]) -> SlotDrafts | None:
        return SlotDrafts(drafts, self.model.n_vocab) if drafts else None

    # -- requests -----------------------------------------------------------------------------------

    def prompts(self, prompts: Sequence[Prompt], n: int, what: str = "prompt") -> list[list[int]]:
        """The token ids of prompts, with ``n`` texts each.  Raises Problem, ParameterError, ModelError."""
        if not 1 <= len(prompts) * n <= MOST_TEXTS:
            raise Problem(
                400,
                f"{what}: {len(prompts)} prompts times n = {n} texts; 1 to {MOST_TEXTS} texts are allowed",
                param=what,
                code="invalid_value",
            )
        return [
            self.prompt(prompt, f"{what}[{number}]" if len(prompts) > 1 else what)
            for number, prompt in enumerate(prompts)
        ]

    def prompt(self, prompt: Prompt, what: str) -> list[int]:
        """The token ids of a prompt.  Raises Problem, ParameterError, ModelError."""
        limit = f"the context length is {self.session.n_ctx} tokens, for the prompt and the answer together"
        return ids_of(self.tokenizer, prompt, self.session.n_ctx, self.model.n_vocab, what, limit)

    def texts(self, asked: Asked) -> list[Text]:
        """The texts of a request, ``n`` for each prompt.  Raises Problem, ParameterError, ModelError."""
        lora = self._lora(asked.lora)
        return [self._text(asked, prompt, number, lora) for prompt in asked.prompts for number in range(asked.n)]

    def _text(self, asked: Asked, prompt: list[int], number: int, lora: Lora | None) -> Text:
        """One of the ``n`` texts of a prompt; each further one uses the next seed."""
        sampling = self._sampling(asked, number)
        sampler = self._sampler(asked, sampling)
        scores = None
        if asked.scores is not None:
            scores = LogProbabilities(sampler, asked.scores, sampler if asked.sampled else None)
        return Text(
            prompt,
            scores or sampler,
            sampling,
            self._most(asked.max_tokens),
            Detokenizer(
                self.tokenizer, asked.stops, begins=asked.begins, keep_texts=scores is not None, keep=self._kept(asked)
            ),
            self.tokenizer.ends,
            None if asked.chat is None else asked.chat.parser(),
            scores=scores,
            prompt_scores=PromptScores(prompt, asked.scores) if asked.echo and asked.scores is not None else None,
            slot=asked.slot,
            shift=self._shift(asked, prompt),
            reports=asked.progress,
            lora=lora,
        )

    def _lora(self, asked: Mapping[int, float] | None) -> Lora | None:
        """The scales of the adapters for the texts of a request.

        Raises ParameterError for an adapter that is not there.
        """
        if asked is None:
            return self.scales or None
        for number in asked:
            check_adapter(number, len(self.adapters))
        return {each: asked.get(number, 0.0) for number, each in enumerate(self.adapters)}

    def _most(self, asked: int | None) -> int | None:
        """The largest number of tokens of a text: what was asked for, or the server's default."""
        return self.defaults.max_tokens if asked is None else asked

    def _shift(self, asked: Asked, prompt: Sequence[int]) -> Shift | None:
        """What a full context drops.  The tokens that begin every text are kept, as llama-server does."""
        if not self.defaults.shifts:
            return None
        keep = len(prompt) if asked.keep < 0 else asked.keep + len(self.tokenizer.vocabulary.before)
        return Shift(keep, asked.discard)

    # -- sampling -----------------------------------------------------------------------------------

    def _sampler(self, asked: Asked, sampling: Sampling) -> Sampler:
        breakers = self._dry_breakers(sampling.dry_breakers) if sampling.dry_multiplier else None
        return Sampler(sampling, breakers=breakers, constraint=self._constraint(asked))

    def _sampling(self, asked: Asked, number: int) -> Sampling:
        seed = self.defaults.seed if asked.seed is None else asked.seed
        seed = None if seed is None else (seed + number) % 2**64
        biases = self._biases(asked.biases)
        if asked.ignore_ends:
            biases |= dict.fromkeys(self.tokenizer.ends, float("-inf"))
        return Sampling(**{**self.defaults.settings, **asked.settings}, logit_bias=biases, seed=seed)

    def _biases(self, biases: Sequence[tuple[int | str, float]]) -> dict[int, float]:
        """Biases by token id; that of a text holds for each of its tokens."""
        found: dict[int, float] = {}
        for token, value in biases:
            if isinstance(token, str) and not (token.isdecimal() and token.isascii()):
                found |= dict.fromkeys(self.tokenizer.encode(token[:1000]), value)
                continue
            if len(str(token)) > len(str(self.model.n_vocab)) or not 0 <= int(token) < self.model.n_vocab:
                raise ParameterError(
                    f"logit_bias has the token {str(token)!r:.40}; token ids are 0 to {self.model.n_vocab - 1}"
                )
            found[int(token)] = value
        return found

    def _kept(self, asked: Asked) -> frozenset[int]:
        """The control tokens whose names are a part of a text, because its parser needs them."""
        return frozenset() if asked.chat is None else self.model.control.kept(asked.chat.prepared.format.marks)

    def _constraint(self, asked: Asked) -> Constraint | None:
        form, chat = asked.form, asked.chat
        if form is None and (chat is None or not chat.is_constrained):
            return None
        with self._lock:  # the first use reads the whole vocabulary
            grammars = self.model.grammars
        if form is not None and form.kind == "grammar":
            if chat is not None and chat.prepared.choice.tools:
                raise Problem(400, "grammar and tools cannot both be given", param="grammar", code="invalid_value")
            return grammars.gbnf(form.value)
        schema = None if form is None else {"type": "object"} if form.value is None else form.value
        found = grammars.json_schema(schema, lenient=True) if chat is None else chat.constraint(self.model, schema)
        if warnings := getattr(found, "warnings", None):
            LOG.warning("parts of a JSON schema are ignored: %s", "; ".join(warnings)[:1000])
        return found

    def _dry_breakers(self, strings: Sequence[str]) -> Breakers:
        with self._lock:
            if self._breakers is None:
                self._breakers = breakers_of(self.tokenizer, strings)
            return self._breakers


def check_adapter(number: int, count: int) -> None:
    """Raises ParameterError if ``number`` is not that of one of ``count`` LoRA adapters."""
    if not 0 <= number < count:
        raise ParameterError(
            f"there is no LoRA adapter {number}; the server has {count}", got=number, remedy="start it with --lora FILE"
        )
