"""Language models: from tokens to logits of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Unpack

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ModelError, ParameterError
from ggplug.graph import Graph
from ggplug.tensor import Tensor
from ggplug.types import Type
from ggplug_models.chat.template import ChatTemplate, Message
from ggplug_models.checks.arguments import check_progress, check_sequence
from ggplug_models.checks.ids import token_ids
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.embedding.reading import vectors_of
from ggplug_models.embedding.vectors import check_batch, check_texts, normalized
from ggplug_models.generation.loop import Options, TextOptions, generate
from ggplug_models.generation.detokenizer import GeneratedText, Detokenizer
from ggplug_models.layers.linear import linear
from ggplug_models.metadata.values import short_repr
from ggplug_models.networks.network import Network
from ggplug_models.state.cells import Cells
from ggplug_models.state.memory import KeysValues, Kind, Memory, State
from ggplug_models.state.session import Session
from ggplug_models.state.steps import Outputs, Shape, Step
from ggplug_models.tokenizers import Tokenizer, load_tokenizer
from ggplug_models.tokenizers.encoders import VocabularyTokenizer
from ggplug_models.tokenizers.long_text import LongText

Floats = npt.NDArray[np.float32]


class Decoder(Network):
    """A language model.  A family says in :attr:`kinds` what each block remembers of the tokens before."""

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What each block remembers."""
        raise NotImplementedError

    @property
    def most_positions(self) -> int | None:
        """How many positions there are, where the file has a vector for each; None: any number."""
        return None

    def is_long(self, n_ctx: int) -> bool:
        """Whether contexts of so many tokens are computed in another way than short ones."""
        return False

    def scores(self, x: Tensor) -> Tensor:
        """Logits of the next token, [n_vocab, ...]; a file without an output matrix uses the table of embeddings."""
        return linear(self.w, "output" if "output.weight" in self.w else "token_embd", x, self.n_vocab)

    # -- texts -------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokeniser, made when it is first needed.

        Raises ModelError, also where the vocabulary lacks tokens that the weights have logits for: one of these could
        be chosen and has no text.
        """
        found = load_tokenizer(self.metadata)
        if found.n_vocab < self.n_vocab:
            raise ModelError(
                f"tokenizer.ggml.tokens has {found.n_vocab} tokens and the weights have {self.n_vocab}; convert the "
                "model again with a vocabulary of as many",
                got=found.n_vocab,
                wanted=self.n_vocab,
            )
        return found

    def session(
        self, n_ctx: int | None = None, n_seq: int = 1, cache_type: str | Type = "f16", micro_batch: int = 512
    ) -> Session:
        """New sequences for this model; see :class:`~ggplug_models.state.session.Session`."""
        return Session(self, n_ctx, n_seq, cache_type, micro_batch)

    def logits(self, tokens: Sequence[int]) -> Floats:
        """The logits after each of ``tokens``: float32 of shape ``(len(tokens), n_vocab)``.

        Raises ParameterError, FreedError.
        """
        with self.session(max(1, len(tokens)), cache_type="f32") as session:
            return session.decode({0: tokens}, Outputs.ALL)[0]

    def generate_ids(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> Iterator[int]:
        """The tokens that follow those of ``prompt``, up to one that ends texts; see :func:`.loop.generate`.

        ``session``: where the tokens are remembered, by default in one that is made for this.  ``choose``, ``draft``:
        see :class:`.Options`.  Raises ParameterError for a session of another model too.
        """
        if session is not None and (not isinstance(session, Session) or session.model is not self):
            what = "one of another model" if isinstance(session, Session) else short_repr(session)
            raise ParameterError(
                f"session must be one of this model, got {what}", got=session, remedy="make it by model.session()"
            )
        return generate(self if session is None else session, prompt, max_tokens, end=self.tokenizer.ends, **options)

    def generate(self, text: str, max_tokens: int | None = None, **options: Unpack[TextOptions]) -> GeneratedText:
        """The text that follows ``text``, in pieces that never end within a character; see :meth:`generate_ids`.

        Names of special tokens in ``text`` are these tokens, so that a chat can be written down by hand.
        ``choose``, ``draft``, ``stop``, ``session``: see :class:`.TextOptions`.  What is returned says in ``finish``
        why the text ended.
        """
        return self.texts(self.tokenizer.prompt(text), max_tokens, begins=not text, **options)

    def chat(
        self,
        messages: Sequence[Message],
        max_tokens: int | None = None,
        *,
        template: ChatTemplate | None = None,
        **options: Unpack[TextOptions],
    ) -> GeneratedText:
        """The answer to the last of ``messages``, in pieces; see :meth:`generate`.

        ``template``: by default the file's own.  Raises ModelError for a file without one.
        """
        return self.texts((template or self.template).encode(messages), max_tokens, **options)

    @cached_property
    def template(self) -> ChatTemplate:
        """The file's chat template.  Raises ModelError where there is none."""
        return ChatTemplate.of(self.metadata, self.tokenizer)

    def texts(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = None,
        *,
        stop: Sequence[str] = (),
        begins: bool = True,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> GeneratedText:
        """As :meth:`generate`, behind token ids.  ``begins``: see :class:`.Detokenizer`."""
        written = Detokenizer(self.tokenizer, stop, begins=begins)
        tokens = self.generate_ids(prompt, max_tokens, session=session, **options)
        return GeneratedText(written, tokens, self.tokenizer.ends)

    def embed(
        self,
        texts: Sequence[str | LongText],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector for each text, as :meth:`embed_ids` makes it; a text that the model has no room for is cut off."""
        check_texts(texts)
        with self.call():
            ids = VocabularyTokenizer(self.tokenizer, self.n_ctx, self.n_vocab).encode(texts)
            return self.embed_ids(ids, batch=batch, normalize=normalize, progress=progress)

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector for each text: float32 of shape ``(len(ids), n_embd)``, of length 1 if ``normalize``.

        The normed vectors of a text's tokens become one as the file says (``pooling_type``), by default that of the
        last token, which has seen all others.  ``batch``: texts computed together at most; long ones are fewer.
        ``progress(n)``: called when ``n`` more are done.  Raises ParameterError, FreedError.
        """
        batch = check_batch(batch)
        check_progress(progress)
        check_sequence(ids, "ids")
        found = self.hyperparameters.integer("pooling_type", Pooling.LAST, at_least=0)
        pooling = Pooling(found) if found in set(Pooling) else Pooling.LAST
        outputs = Outputs.LAST if pooling is Pooling.LAST else Outputs.ALL
        with self.call():
            checked = [token_ids(each, self.n_vocab, f"ids[{n}]") for n, each in enumerate(ids)]
            out = np.empty((len(checked), self.n_embd), np.float32)
            for chosen, vectors in vectors_of(self, checked, batch, outputs):
                for position, each in zip(chosen, vectors, strict=True):
                    rows = each.reshape(-1, self.n_embd)
                    out[position] = pooling.shares(np.ones((1, len(rows)), bool))[0] @ rows
                if progress is not None:
                    progress(len(chosen))
        return normalized(out) if normalize else out

    # -- graphs ------------------------------------------------------------------------------------

    def build(self, shape: Shape, memory: Memory, cells: Mapping[int, Cells], n_ctx: int) -> Step:
        """The graph of the steps of a shape, over what a session remembers."""
        step = Step(shape, memory, cells, n_ctx)
        x = self.forward(step)
        result = None
        if shape.outputs is not Outputs.NONE:
            result = self.hidden(x)
            result = result if shape.hidden else self.scores(result)
        step.finish(x, result, f"{self.architecture} {shape.n_seq}x{shape.n}")
        return step

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """By window of the model's blocks, where a session keeps positions."""
        windows = {kind.window for kind in self.kinds if isinstance(kind, KeysValues)}
        return {window: Cells(n_seq, n_ctx, n_step, window) for window in sorted(windows)}

    @cached_property
    def keeps_states(self) -> bool:
        """Whether there are blocks with a state, which has no way back to earlier tokens."""
        return any(isinstance(kind, State) for kind in self.kinds)

    def sample(self) -> Graph:
        """The step of 64 tokens of one sequence, without memory of its own."""
        n = min(64, self.n_ctx)
        cells = self.cells(1, n, n)
        memory = Memory(self.kinds, None, 1, {window: each.count for window, each in cells.items()}, gg.F32)
        spans = tuple((window, each.span(n)) for window, each in cells.items())
        graph = self.build(Shape(0, 1, n, spans, Outputs.ALL), memory, cells, self.n_ctx).graph
        assert graph is not None
        return graph

    def device_of(self, number: int) -> Device:
        """Where a block is computed: the device that holds its weights."""
        prefix = self.w.block(number).prefix
        placed = (t.buffer_type for t in self.weights if t.name.startswith(prefix) and t.buffer_type is not None)
        found = next(placed, None)
        device = self.devices[0] if found is None else found.device
        return device if device in self.devices else self.devices[-1]
