"""Encoders: models that compute embeddings of texts (Reimers and Gurevych, arXiv:1908.10084)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ModelError, ParameterError, memory_errors_typed
from ggplug.graph import Graph
from ggplug.system.recent import Recent
from ggplug.tensor import Context, Tensor
from ggplug_models.checks.arguments import check_progress, check_sequence
from ggplug_models.checks.ids import token_ids
from ggplug_models.embedding.pooling import Pooling
from ggplug_models.embedding.vectors import check_batch, normalized
from ggplug_models.layers.attention import mixed
from ggplug_models.layers.collecting import Axes, axes_of_tokens, collected, of_tokens, patterns_of
from ggplug_models.layers.names import name_nodes
from ggplug_models.layers.patches import GraphChange, patched
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.ranking import check_no_instruction
from ggplug_models.networks.texts import TextModel
from ggplug_models.state.adapting import in_effect
from ggplug_models.tokenizers.encoders import TextTokenizer, VocabularyTokenizer, from_metadata

Floats = npt.NDArray[np.float32]

SCORES = 32 * 512**2
"""The most scores of a head that a batch of several texts computes: those of 32 texts of 512 tokens."""

AT_ONCE = 4
"""How many batches each scheduler of a pipeline computes before progress is reported and other threads may compute."""


class Texts:
    """The graph for ``n_seq`` texts padded to ``n_tok`` tokens, with its inputs and results.

    ``n_ctx``: the model's context length.  ``windows``: the width of the window around each token, for each block; 0:
    full attention.  ``max_bias``: of ALiBi; if not 0, masks hold the distances of tokens.
    """

    def __init__(self, n_seq: int, n_tok: int, n_ctx: int, windows: Sequence[int], max_bias: float) -> None:
        self.n_ctx = n_ctx
        self.n_seq = n_seq
        self.n_tok = n_tok
        self.windows = windows
        self.max_bias = max_bias
        self.tokens = gg.new_tensor(gg.I32, (n_tok * n_seq,), "ids").set_input()
        self.pool = gg.new_tensor(gg.F32, (n_tok, 1, n_seq), "pool").set_input()
        self._positions: Tensor | None = None
        self._masks: dict[int, Tensor] = {}
        self._pairs: tuple[Tensor, Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]] | None = None
        self.shared: dict[str, Tensor] = {}
        """Nodes that later blocks read, by name."""
        self.graph: Graph
        self.collected: dict[str, Tensor] = {}
        self.axes: Axes | None = None
        """The axes of tokens of what is collected, once they are known."""
        self.hidden: Tensor
        self.pooled: Tensor
        self.scores: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        """The positions, I32 [T]."""
        if self._positions is None:
            self._positions = gg.new_tensor(gg.I32, (self.n_tok * self.n_seq,), "positions").set_input()
        return self._positions

    def of_positions(self, name: str, values: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]) -> Tensor:
        """Not implemented: no encoder uses it."""
        raise NotImplementedError

    def of_pairs(self, values: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]) -> Tensor:
        """An input I32 [n_tok, n_tok] that ``values`` computes from how far each key lies behind each query."""
        tensor = gg.new_tensor(gg.I32, (self.n_tok, self.n_tok), "pairs").set_input()
        self._pairs = tensor, values
        return tensor

    def outputs(self, x: Tensor) -> Tensor:
        """All columns of ``x``: the pooled vector depends on every token."""
        return x

    def attend(
        self, number: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None = None, **how: Any
    ) -> Tensor:
        """The attention of block ``number`` among the tokens of each text: [d_v n_head, T].  ``bias``: see
        :func:`.mixed`."""
        window = self.windows[number]
        if window not in self._masks:
            shape = self.n_tok, self.n_tok, 1, self.n_seq
            self._masks[window] = gg.new_tensor(gg.F32, shape, f"mask {window}".removesuffix(" 0")).set_input()
        return mixed(
            q,
            k,
            v,
            self._masks[window],
            scale=scale,
            n_seq=self.n_seq,
            max_bias=self.max_bias,
            bias=bias,
        )

    def finish(
        self,
        hidden: Tensor,
        pooled: Callable[[Tensor], Tensor],
        name: str,
        *,
        scores: Callable[[Tensor], Tensor | None],
        patches: Sequence[GraphChange] = (),
        collect: Sequence[str] = (),
    ) -> None:
        """Makes the graph: pools the tokens' vectors ``hidden``, and applies ``pooled`` to the texts' vectors.

        ``scores``: computes logits of tokens from their vectors, or returns None.  ``patches``, ``collect``: see
        :meth:`.Step.finish`.
        """
        n_embd = hidden.ne[0]
        hidden = gg.reshape(hidden, n_embd, self.n_tok, self.n_seq, name="hidden")
        rows = gg.cont(gg.permute(hidden, 1, 0, 2))
        vectors = pooled(gg.reshape(gg.mul_mat(rows, self.pool), n_embd, self.n_seq)).named("pooled")
        logits = scores(hidden)
        found = [hidden, vectors] if logits is None else [hidden, vectors, logits]
        found = patched(found, patches) if patches else found
        self.hidden, self.pooled = found[:2]
        self.scores = None if logits is None else found[2]
        self.graph = Graph(*(each.set_output() for each in found), name=name)
        name_nodes(self.graph)
        self.collected = collected(self.graph, collect)

    def fill(self, texts: Sequence[npt.NDArray[np.int64]], pooling: Pooling | None) -> None:
        """Sets all inputs; ``pooling``: None if the graph pools nothing.  The graph must be allocated."""
        place = np.arange(self.n_tok)
        present = place < np.array([len(tokens) for tokens in texts])[:, np.newaxis]
        ids = np.zeros((self.n_seq, self.n_tok), np.int32)
        ids[present] = np.concatenate(texts)
        self.tokens.set(ids.reshape(-1))
        if self._positions is not None:
            self._positions.set(np.tile(place.astype(np.int32), self.n_seq))
        apart = place - place[:, np.newaxis]
        if self._pairs is not None:
            pairs, of = self._pairs
            pairs.set(of(apart).astype(np.int32))
        apart = np.abs(apart)
        for window, mask in self._masks.items():
            visible = present[:, np.newaxis, np.newaxis, :]
            if window:
                # Padding tokens attend to the whole text: a token that attends to nothing gets NaN, and NaN times its
                # pooling weight of 0 would make the text's vector NaN.
                visible = visible & ((apart <= window // 2) | ~present[:, np.newaxis, :, np.newaxis])
            bias = -apart if self.max_bias else np.zeros_like(apart)
            values = np.where(visible, bias.astype(np.float32), np.float32(-np.inf))
            mask.set(np.broadcast_to(values, (self.n_seq, 1, self.n_tok, self.n_tok)))
        if pooling is not None:
            self.pool.set(pooling.weights(present)[:, np.newaxis, :])


class Encoder(TextModel):
    """A model that computes embeddings; every token attends to those before and after it."""

    ROUND: ClassVar[int] = 4
    """Batches are padded to a multiple of this many tokens, so that few different graphs are needed."""

    CLASSIFIED: ClassVar[Pooling] = Pooling.CLS
    """What the classifier of a reranker reads, unless the file says it."""

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        self._tokenizer: TextTokenizer | VocabularyTokenizer | None = None
        self._batches: Recent[tuple[Hashable, ...], Texts] = Recent(self.GRAPHS)
        super().__init__(weights, metadata, devices)

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        if hp.boolean("attention.causal", False):
            raise ModelError(f"{hp.prefix}attention.causal is true, but encoders attend in both directions")
        pooling = hp.integer("pooling_type", Pooling.MEAN, at_least=0)
        if pooling not in set(Pooling):
            kinds = "0 (none), 1 (mean), 2 (first token), 3 (last token) or 4 (reranker)"
            raise hp.refused("pooling_type", kinds)
        self.pooling = Pooling(pooling)
        classified = hp.integer("classifier.pooling_type", self.CLASSIFIED)
        if classified not in (Pooling.MEAN, Pooling.CLS):
            raise hp.refused("classifier.pooling_type", "1 (mean) or 2 (first token)")
        self.classifier_pooling = Pooling(classified)
        self.windows = [0] * self.n_layer
        self.max_bias = 0.0

    @property
    def tokenizer(self) -> TextTokenizer | VocabularyTokenizer:
        """The tokenizer of the file, made at the first use."""
        if self._tokenizer is None:
            self._tokenizer = from_metadata(self.metadata, self.text_length, self.n_vocab)
        return self._tokenizer

    def pair(self, query: str, document: str, instruction: str | None = None) -> list[int]:
        check_no_instruction(instruction)
        return self.tokenizer.pair(query, document)

    @property
    def text_tokenizer(self) -> TextTokenizer | VocabularyTokenizer:
        return self.tokenizer

    # -- the graph ---------------------------------------------------------------------------------

    def hidden(self, x: Tensor) -> Tensor:
        return x

    def pooled(self, x: Tensor) -> Tensor:
        """The final vectors of texts, from their pooled vectors [n_embd, n_seq]."""
        return x

    def scores(self, x: Tensor) -> Tensor | None:
        """Hook for models that predict tokens; returns logits [n_vocab, ...], from vectors [n_embd, ...]."""
        return None

    def build(self, n_seq: int, n_tok: int, collect: tuple[str, ...] = (), copy: int = 0) -> Texts:
        """The graph for ``n_seq`` texts padded to ``n_tok`` tokens, which is kept for the next batch of that size.

        ``copy``: the number of the scheduler in :attr:`pipeline` that computes it.  The caller must have locked the
        model (:meth:`locked`).
        """
        changes = in_effect(None, self.patches)
        key = (copy, n_seq, n_tok, collect, tuple(changes.items()))
        return self._batches.of(key, lambda: self._build(n_seq, n_tok, tuple(changes), collect))

    def sample(self) -> Graph:
        """The graph for one text of 64 tokens, or of the context length if that is smaller."""
        return self._build(1, min(64, self.n_ctx)).graph

    def _build(self, n_seq: int, n_tok: int, patches: Sequence[GraphChange] = (), collect: Sequence[str] = ()) -> Texts:
        texts = Texts(n_seq, n_tok, self.n_ctx, self.windows, self.max_bias)
        hidden, name = self.hidden(self.forward(texts)), f"{self.architecture} {n_seq}x{n_tok}"
        texts.finish(hidden, self.pooled, name, scores=self.scores, patches=patches, collect=collect)
        return texts

    # -- running it --------------------------------------------------------------------------------

    @memory_errors_typed
    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """As :meth:`embed`, for texts as token ids, which include the special tokens."""
        batch = check_batch(batch)
        check_progress(progress)
        check_sequence(ids, "ids")
        if self.pooling is Pooling.NONE:
            raise ParameterError(
                "the file says that the vectors of tokens are not pooled (pooling_type 0)",
                got=self.pooling,
                remedy="set model.pooling to another kind, or use hidden_states(ids), one vector for each token",
            )
        with self.call():
            checked = [self._checked(each, f"ids[{n}]") for n, each in enumerate(ids)]
            out = np.empty((len(checked), self.n_embd), np.float32)
            n_copies = self.copies(self.devices_of_blocks)
            unread = deque(batches([self.padded(len(tokens)) for tokens in checked], batch))
            while unread:
                several = [unread.popleft() for _ in range(min(len(unread), AT_ONCE * n_copies if n_copies > 1 else 1))]
                with self.locked():
                    jobs = [partial(self._pooled, [checked[i] for i in chosen], chosen, out) for chosen in several]
                    self.pipeline.compute(jobs, n_copies)
                if progress is not None:
                    for chosen in several:
                        progress(len(chosen))
        return normalized(out) if normalize else out

    def _checked(self, tokens: Any, what: str) -> npt.NDArray[np.int64]:
        """The token ids of one text as an array.  Raises ParameterError."""
        return token_ids(tokens, self.n_vocab, what, self.n_ctx)

    def hidden_states(self, ids: Sequence[int]) -> Floats:
        """The last layer's vector of every token of one text: float32 of shape ``(len(ids), n_embd)``.

        Raises ParameterError, FreedError.
        """
        checked = self._checked(ids, "ids")
        with self.locked():
            states: Floats = self._compute([checked]).hidden.numpy()[0, : len(ids)]
        return states

    def _pooled(
        self, texts: Sequence[npt.NDArray[np.int64]], places: list[int], out: Floats, copy: int
    ) -> Callable[[], None]:
        """A job of :attr:`pipeline`: sets the rows ``places`` of ``out`` to the vectors of texts."""
        batch = self._filled(texts, copy=copy)

        def compute() -> None:
            self.pipeline.schedulers[copy].compute(batch.graph)
            out[places] = batch.pooled.numpy()

        return compute

    def _compute(self, texts: Sequence[npt.NDArray[np.int64]]) -> Texts:
        batch = self._filled(texts)
        self.scheduler.compute(batch.graph)
        return batch

    def prepared(self, tokens: Sequence[int]) -> Graph:
        """The graph that embeds a text, with its inputs set, for tests and tools.  The caller has locked the model."""
        return self._filled([self._checked(tokens, "tokens")]).graph

    def run(
        self, tokens: Sequence[int], collect: Iterable[str] = ("hidden",), *, last: bool = False
    ) -> dict[str, npt.NDArray[Any]]:
        """Computes the tokens of one text, and returns the values of nodes by name; see :meth:`.Session.collect`.

        Raises ParameterError, FreedError.
        """
        checked, patterns = self._checked(tokens, "tokens"), patterns_of(collect)
        with self.locked():
            batch = self._filled([checked], patterns)
            if batch.axes is None:
                n, changes = batch.n_tok + 1, in_effect(None, self.patches)
                longer = self._build(1, n, [each.of_any_length() for each in changes])
                batch.axes = axes_of_tokens(batch.collected, longer.graph, {batch.n_tok: n})
            axes = batch.axes
            self.scheduler.compute(batch.graph)
            return {
                name: of_tokens(node.numpy(), axes[name], len(checked), last=last)
                for name, node in batch.collected.items()
            }

    def padded(self, longest: int) -> int:
        """The number of tokens that the texts of a batch are padded to, if the longest has ``longest``."""
        return min(-(-longest // self.ROUND) * self.ROUND, self.n_ctx)

    def largest(self, n_seq: int, longest: int) -> set[tuple[int, int]]:
        """Texts and tokens of the batches that need most memory, of at most ``n_seq`` texts and ``longest`` tokens."""
        padded = self.padded(longest)
        several = min(padded, int((SCORES / n_seq) ** 0.5) // self.ROUND * self.ROUND)
        return {(together(padded, n_seq), padded)} | ({(n_seq, several)} if several else set())

    def _filled(self, texts: Sequence[npt.NDArray[np.int64]], collect: tuple[str, ...] = (), copy: int = 0) -> Texts:
        longest = max(len(tokens) for tokens in texts)
        batch = self.build(len(texts), self.padded(longest), collect, copy)
        self.pipeline.schedulers[copy].allocate(batch.graph)
        batch.fill(texts, self.classifier_pooling if self.pooling is Pooling.RANK else self.pooling)
        return batch


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yields the indices of texts of similar length, which are computed together with little padding; longest first.

    There are at most ``size`` in a batch, and of long texts fewer (:func:`together`).
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        count = together(lengths[order[0]], size)
        yield order[:count]
        del order[:count]


def together(longest: int, most: int) -> int:
    """How many texts of a length are computed together: more would not be faster, and each has n x n scores."""
    return max(1, min(most, SCORES // longest**2))
