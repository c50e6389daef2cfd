"""Language models: from tokens to logits of the next token."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError, ParameterError
from ggplug.graph import Graph
from ggplug.tensor import Tensor
from ggplug.types import Type
from ggplug_models.chat.constraint import constraint_of
from ggplug_models.chat.prepared import prepared
from ggplug_models.chat.template import ChatTemplate, Message
from ggplug_models.chat.text import ChatAnswer
from ggplug_models.chat.tools import AnyTool
from ggplug_models.checks.arguments import check_progress, check_sequence
from ggplug_models.checks.ids import token_ids
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.embedding.reading import vectors_of
from ggplug_models.embedding.vectors import check_batch, normalized
from ggplug_models.generation.detokenizer import Detokenizer, GeneratedText
from ggplug_models.generation.loop import Options, TextOptions, generate, greedy
from ggplug_models.layers.linear import output
from ggplug_models.layers.patches import GraphChange
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.metadata.values import short_repr
from ggplug_models.networks.ranking import check_no_instruction, soft_max
from ggplug_models.networks.texts import TextModel
from ggplug_models.sampling.constrained import constrained
from ggplug_models.sampling.control_tokens import ControlTokens
from ggplug_models.state.cells import Cells
from ggplug_models.state.memory import Kind, Memory, State, cells_of
from ggplug_models.state.sample_graph import sample_graph
from ggplug_models.state.session import Session, SourceStep
from ggplug_models.state.steps import VECTORS, Outputs, Shape, Step
from ggplug_models.tokenizers import Tokenizer, load_tokenizer
from ggplug_models.tokenizers.encoders import VocabularyTokenizer

if TYPE_CHECKING:
    from ggplug_models.sampling.grammar import Grammars

Floats = npt.NDArray[np.float32]

RERANK_PROMPT = "tokenizer.chat_template.rerank"
"""Key of the prompt of a reranker, which has ``{query}`` and ``{document}``."""

INSTRUCTION = re.compile("(?<=<Instruct>: ).*")
"""What the prompt of a reranker says that a document has to do."""

PLACES = re.compile(r"\{(?:query|document|instruction)\}")
"""What is replaced in the prompt of a reranker, all at once: texts may have such words, too."""


class Decoder(TextModel):
    """A language model.  A family lists in :attr:`kinds` what sessions keep for each block."""

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What a session keeps for each block: keys and values, a recurrent state, or nothing."""
        raise NotImplementedError

    @property
    def most_positions(self) -> int | None:
        """Number of positions, if the file has an embedding for each; None: no limit."""
        return None

    def is_long(self, n_ctx: int) -> bool:
        """Whether contexts of ``n_ctx`` tokens are computed differently from short ones."""
        return False

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if not hp.boolean("attention.causal", True):
            raise ModelError(
                f"{hp.prefix}attention.causal is false, but {self.architecture} models attend to earlier tokens only"
            )
        pooling = hp.integer("pooling_type", Pooling.LAST, at_least=0)
        self.pooling = Pooling(pooling) if pooling in set(Pooling) else Pooling.LAST

    def scores(self, x: Tensor) -> Tensor:
        """The logits of the next token, [n_vocab, ...]."""
        return self.w.named("output", output(self.w, x, self.n_vocab))

    # -- texts -------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file, made at the first use.

        Raises ModelError, also if the vocabulary has fewer tokens than the model has logits: a token without a text
        could be chosen.
        """
        found = load_tokenizer(self.metadata)
        if found.n_vocab < self.n_vocab:
            raise ModelError(
                f"tokenizer.ggml.tokens has {found.n_vocab} tokens, but the weights have {self.n_vocab}; convert the "
                "model again with a complete vocabulary",
                got=found.n_vocab,
                wanted=self.n_vocab,
            )
        return found

    def session(
        self, n_ctx: int | None = None, n_seq: int = 1, cache_type: str | Type = "f16", micro_batch: int = 512
    ) -> Session:
        """Creates a session; see :class:`~ggplug_models.state.session.Session`."""
        return Session(self, n_ctx, n_seq, cache_type, micro_batch)

    def logits(self, tokens: Sequence[int]) -> Floats:
        """The logits after each of ``tokens``: float32 of shape ``(len(tokens), n_vocab)``.

        Raises ParameterError, FreedError.
        """
        with self.session(max(1, len(tokens)), cache_type="f32") as session:
            return session.decode({0: tokens}, Outputs.ALL)[0]

    def run(
        self, tokens: Sequence[int], collect: Iterable[str] = ("logits",), *, last: bool = False
    ) -> dict[str, npt.NDArray[Any]]:
        """Computes ``tokens`` and returns the values of nodes by name; see :meth:`.Session.collect`.

        Raises ParameterError, FreedError.
        """
        with self.session(max(1, len(tokens)), cache_type="f32") as session:
            return session.collect(tokens, collect, last=last)

    def generate_ids(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> Iterator[int]:
        """Yields the tokens that follow ``prompt``, up to an end token; see :func:`.loop.generate`.

        ``session``: by default one is made for this generation.  ``choose``, ``draft``, ``lora``: see
        :class:`.Options`.  Also raises ParameterError for a session of another model.
        """
        self._check_session(session)
        return generate(self if session is None else session, prompt, max_tokens, end=self.tokenizer.ends, **options)

    def _check_session(self, session: Session | None) -> None:
        """Raises ParameterError for what is neither None nor a session of this model."""
        if session is not None and (not isinstance(session, Session) or session.model is not self):
            what = "a session of another model" if isinstance(session, Session) else short_repr(session)
            raise ParameterError(
                f"session must be a session of this model, got {what}",
                got=session,
                remedy="create it by model.session()",
            )

    def generate(self, text: str, max_tokens: int | None = None, **options: Unpack[TextOptions]) -> GeneratedText:
        """Generates the text that follows ``text``: an iterator over pieces, which never end within a character.

        Names of special tokens in ``text`` become these tokens, so it may be a chat in the model's own format.
        ``max_tokens``: maximum number of tokens; None: until the text ends or the context is full.  ``choose``,
        ``draft``, ``lora``, ``stop``, ``session``: see :class:`.TextOptions`.  The iterator's ``finish`` is the reason
        why the text ended.  Raises as :func:`.loop.generate` does.
        """
        return self.texts(self.tokenizer.prompt(text), max_tokens, begins=not text, **options)

    def chat(
        self,
        messages: Sequence[Message],
        max_tokens: int | None = None,
        *,
        template: ChatTemplate | None = None,
        tools: Sequence[AnyTool] | None = None,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        reasoning_budget: int | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[TextOptions],
    ) -> ChatAnswer:
        """Generates the answer to the last of ``messages``; see :meth:`generate` for the options.

        Iterating gives the pieces of the answer's text; its ``answer`` also has the reasoning and the calls.

        ``messages``: dicts with ``role`` and ``content``.  ``template``: by default the chat template of the file.
        ``tools``: Python functions, or dicts as in the OpenAI API, that the model may call; what it writes as their
        arguments matches their schemas.  ``tool_choice``, ``parallel_tool_calls``, ``reasoning_effort``: see
        :func:`.prepared`.  ``reasoning_budget``: maximum number of tokens of the reasoning.  ``variables``: variables
        of the template, such as ``{"enable_thinking": False}``.

        Raises ModelError if there is no chat template, or if ``llguidance`` is missing and there are tools.
        """
        chat = prepared(
            template or self.template,
            messages,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            reasoning_effort=reasoning_effort,
            variables=variables,
        )
        constraint = constraint_of(chat, self, reasoning_budget=reasoning_budget)
        choose, draft = options.get("choose"), options.get("draft")
        if constraint is not None:
            choose = constrained(choose, constraint)
        detokenizer = Detokenizer(self.tokenizer, options.get("stop", ()), keep=self.control.kept(chat.format.marks))
        prompt, session = self.tokenizer.prompt(chat.prompt), options.get("session")
        lora = options.get("lora")
        tokens = self.generate_ids(prompt, max_tokens, session=session, choose=choose or greedy, draft=draft, lora=lora)
        return ChatAnswer(chat.parser(), detokenizer, tokens, self.tokenizer.ends)

    @cached_property
    def grammars(self) -> Grammars:
        """Makes constraints to grammars.  Raises ModelError if ``llguidance`` is missing."""
        from ggplug_models.sampling.grammar import Grammars

        return Grammars(self.tokenizer, self.n_vocab)

    @cached_property
    def control(self) -> ControlTokens:
        """The control tokens of the vocabulary."""
        return ControlTokens(self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the file.  Raises ModelError if there is none."""
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
        """As :meth:`generate`, but the prompt is token ids.  ``begins``: see :class:`.Detokenizer`."""
        detokenizer = Detokenizer(self.tokenizer, stop, begins=begins)
        tokens = self.generate_ids(prompt, max_tokens, session=session, **options)
        return GeneratedText(detokenizer, tokens, self.tokenizer.ends)

    @cached_property
    def text_tokenizer(self) -> VocabularyTokenizer:
        return VocabularyTokenizer(self.tokenizer, self.text_length, self.n_vocab)

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector for each text: float32 of shape ``(len(ids), n_embd)``, of length 1 if ``normalize``.

        The vectors of a text's tokens are pooled by :attr:`pooling`; by default, the vector of the last token is used,
        which attends to all others.  ``batch``: maximum number of texts computed together; it is smaller
        for long ones.  ``progress(n)``: called when ``n`` more texts are done.  Raises ParameterError, FreedError.
        """
        batch = check_batch(batch)
        check_progress(progress)
        check_sequence(ids, "ids")
        last = (Pooling.NONE, Pooling.RANK)  # the last token attends to all others
        pooling = Pooling.LAST if self.pooling in last else self.pooling
        outputs = Outputs.LAST if pooling is Pooling.LAST else Outputs.ALL
        with self.call():
            checked = [token_ids(each, self.n_vocab, f"ids[{n}]", self.n_ctx) for n, each in enumerate(ids)]
            out = np.empty((len(checked), self.n_embd), np.float32)
            for chosen, vectors in vectors_of(self, checked, batch, outputs):
                for position, each in zip(chosen, vectors, strict=True):
                    rows = each.reshape(-1, self.n_embd)
                    out[position] = pooling.weights(np.ones((1, len(rows)), bool))[0] @ rows
                if progress is not None:
                    progress(len(chosen))
        return normalized(out) if normalize else out

    def hidden_states(self, ids: Sequence[int]) -> Floats:
        """The last block's vector of every token of one text, normalised by its norm: float32 ``(len(ids), n_embd)``.

        Raises ParameterError, FreedError.
        """
        with self.session(max(1, len(ids)), cache_type="f32") as session:
            return session.decode({0: ids}, Outputs.ALL, hidden=True)[0]

    def pair(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        prompt = self.metadata.get(RERANK_PROMPT)
        if not isinstance(prompt, str):
            check_no_instruction(instruction)
            return self.text_tokenizer.pair(query, document)
        texts = {"{query}": query, "{document}": document}
        if instruction is not None:
            prompt, count = INSTRUCTION.subn("{instruction}", prompt, 1)
            check_no_instruction(None if count else instruction)
            texts["{instruction}"] = instruction
        return self.text_tokenizer.prompt(PLACES.sub(lambda place: texts.get(place[0], place[0]), prompt))

    def scored(self, x: Floats) -> Floats:
        return soft_max(x) if x.shape[1] > 1 else x  # probabilities of the answers, such as yes and no

    # -- graphs ------------------------------------------------------------------------------------

    def build(
        self,
        shape: Shape,
        memory: Memory,
        cells: Mapping[int, Cells],
        n_ctx: int,
        collect: Sequence[str] = (),
        patches: Sequence[GraphChange] = (),
    ) -> Step:
        """The step with the graph for this shape, over the memory of a session; see :meth:`.Step.finish`."""
        step = Step(shape, memory, cells, n_ctx)
        before = self.input_of_last(step)
        x = step.outputs(self.output_of(self.n_layer - 1, before, step, is_last=True))
        result = vectors = None
        if shape.outputs is not Outputs.NONE:
            result = vectors = self.hidden(x).named("result_norm")
            result = result if shape.hidden else self.scores(result).named("result_output")
        if VECTORS not in collect or self.keeps_states:
            vectors = None
        elif vectors is None or vectors.ne[1] != step.n_tokens:
            # Results are computed from the columns that they need, as without vectors: so they are equal bit by bit.
            of_all = x if vectors is None else self.output_of(self.n_layer - 1, before, step)
            vectors = self.hidden(of_all).named("result_norm")
        name = f"{self.architecture} {shape.n_seq}x{shape.n}"
        step.finish(x, result, name, patches=patches, collect=collect, vectors=vectors)
        return step

    def build_source(self, n_tok: int, memory: Memory, patches: Sequence[GraphChange] = ()) -> SourceStep | None:
        """The step that reads a source text of ``n_tok`` tokens, with ``patches``; None: the model reads none."""
        return None

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """The cells of a session, by the windows of the model's blocks."""
        return cells_of(self.kinds, n_seq, n_ctx, n_step)

    @cached_property
    def keeps_states(self) -> bool:
        """Whether there are blocks with a recurrent state, which cannot be rewound."""
        return any(isinstance(kind, State) for kind in self.kinds)

    def sample(self) -> Graph:
        """The graph of a step of 64 tokens of one sequence; its KV cache has no memory."""
        return sample_graph(self)
