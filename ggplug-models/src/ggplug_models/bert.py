"""BERT encoders: text to embeddings (Devlin et al. 2018; sentence embeddings after Reimers and Gurevych 2019)."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ModelError, ParameterError
from ggplug.graph import Graph
from ggplug.tensor import Context, Tensor
from ggplug_models.hyperparameters import Hyperparameters
from ggplug_models.long_text import LongText
from ggplug_models.model import Model, architecture
from ggplug_models.tokenizers.encoders import TextTokenizer, from_metadata

Floats = npt.NDArray[np.float32]


class Pooling(enum.IntEnum):
    """How a text's token vectors become one vector (llama.cpp's ``pooling_type``)."""

    MEAN = 1
    CLS = 2


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gg.gelu_erf,
    "gelu_new": gg.gelu,
    "gelu_pytorch_tanh": gg.gelu,
    "relu": gg.relu,
    "silu": gg.silu,
}
"""Activation by its Hugging Face name.  "gelu" is the erf form."""


@dataclass(frozen=True)
class BertConfig:
    """Hyperparameters under ``bert.*``.

    ``hidden_activation`` is absent in files that llama.cpp wrote; it computes the tanh form of GELU, so that is the
    default.
    """

    n_embd: int
    n_layer: int
    n_head: int
    n_ff: int
    n_ctx: int
    eps: float
    pooling: Pooling
    activation: str

    @classmethod
    def of(cls, hp: Hyperparameters) -> BertConfig:
        """From metadata.  Raises ModelError for what is missing, out of range or not supported."""
        if hp.boolean("attention.causal", False):
            raise ModelError("bert.attention.causal is true; an encoder attends in both directions")
        pooling = hp.integer("pooling_type", Pooling.MEAN, at_least=0)
        if pooling not in set(Pooling):
            raise hp.refused("pooling_type", "1 (mean) or 2 (first token)")
        config = cls(
            n_embd=hp.integer("embedding_length"),
            n_layer=hp.integer("block_count"),
            n_head=hp.integer("attention.head_count"),
            n_ff=hp.integer("feed_forward_length"),
            n_ctx=hp.integer("context_length"),
            eps=hp.number("attention.layer_norm_epsilon", at_least=0),
            pooling=Pooling(pooling),
            activation=hp.text("hidden_activation", "gelu_pytorch_tanh", one_of=ACTIVATIONS),
        )
        if config.n_embd % config.n_head:
            raise hp.refused("embedding_length", f"a multiple of {hp.prefix}attention.head_count ({config.n_head})")
        return config


class Batch(NamedTuple):
    """A graph for ``n_seq`` texts of up to ``n_tok`` tokens, with its inputs and results."""

    graph: Graph
    ids: Tensor
    positions: Tensor
    mask: Tensor
    pool: Tensor
    hidden: Tensor
    pooled: Tensor


@architecture("bert")
class BertEncoder(Model):
    """Embeds texts.  ``config``: hyperparameters; ``tokenizer``: text to ids."""

    ROUND = 4
    """Batches are padded to a multiple of this many tokens, so that few different graphs occur."""

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        super().__init__(weights, metadata, devices)
        self.config = BertConfig.of(self.hyperparameters)
        self._tokenizer: TextTokenizer | None = None
        self._batches: OrderedDict[tuple[int, int], Batch] = OrderedDict()
        self.build(1, self.ROUND)  # a file that lacks a tensor is refused now

    @property
    def tokenizer(self) -> TextTokenizer:
        """The file's tokeniser, made when it is first needed."""
        if self._tokenizer is None:
            self._tokenizer = from_metadata(self.metadata, self.config.n_ctx, self._vocabulary().ne[1])
        return self._tokenizer

    # -- the graph ---------------------------------------------------------------------------------

    def build(self, n_seq: int, n_tok: int) -> Batch:
        """The graph of ``n_seq`` texts padded to ``n_tok`` tokens; kept for the next batch of that size.

        What computes it belongs into a :meth:`turn`.
        """
        key = (n_seq, n_tok)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = self._build(n_seq, n_tok)
            if len(self._batches) > self.GRAPHS:
                self._batches.popitem(last=False)
        else:
            self._batches.move_to_end(key)
        return batch

    def sample(self) -> Graph:
        """One text of 64 tokens, or of as many as the model takes."""
        return self._build(1, min(64, self.config.n_ctx)).graph

    def _build(self, n_seq: int, n_tok: int) -> Batch:
        c = self.config
        ids = gg.new_tensor(gg.I32, (n_tok * n_seq,), "ids").set_input()
        positions = gg.new_tensor(gg.I32, (n_tok * n_seq,), "positions").set_input()
        mask = gg.new_tensor(gg.F32, (n_tok, n_tok, 1, n_seq), "mask").set_input()
        pool = gg.new_tensor(gg.F32, (n_tok, 1, n_seq), "pool").set_input()

        x = gg.get_rows(self._vocabulary(), ids)
        x = x + gg.view(self._weight_rows("token_types.weight", c.n_embd), c.n_embd)
        x = x + gg.get_rows(self.weight("position_embd.weight", c.n_embd, c.n_ctx), positions)
        x = self._norm(x, "token_embd_norm")
        for layer in range(c.n_layer):
            x = self._layer(x, f"blk.{layer}", mask, n_seq, n_tok)
        hidden = gg.reshape(x, c.n_embd, n_tok, n_seq, name="hidden").set_output()
        rows = gg.cont(gg.permute(hidden, 1, 0, 2))
        pooled = gg.reshape(gg.mul_mat(rows, pool), c.n_embd, n_seq, name="pooled").set_output()
        return Batch(Graph(hidden, pooled, name=f"bert {n_seq}x{n_tok}"), ids, positions, mask, pool, hidden, pooled)

    def _layer(self, x: Tensor, block: str, mask: Tensor, n_seq: int, n_tok: int) -> Tensor:
        c = self.config
        head = c.n_embd // c.n_head

        def heads(name: str) -> Tensor:  # [head, n_head, n_tok, n_seq]
            return gg.reshape(self._linear(x, f"{block}.{name}", c.n_embd, c.n_embd), head, c.n_head, n_tok, n_seq)

        q = gg.permute(heads("attn_q"), 0, 2, 1, 3)
        k = gg.permute(heads("attn_k"), 0, 2, 1, 3)
        v = gg.cont(gg.permute(heads("attn_v"), 1, 2, 0, 3))  # [n_tok, head, n_head, n_seq]
        weights = gg.soft_max(gg.mul_mat(k, q), mask, scale=head**-0.5)
        mixed = gg.cont(gg.permute(gg.mul_mat(v, weights), 0, 2, 1, 3))
        mixed = gg.reshape(mixed, c.n_embd, n_tok * n_seq)
        attended = self._linear(mixed, f"{block}.attn_output", c.n_embd, c.n_embd) + x
        x = self._norm(attended, f"{block}.attn_output_norm")

        up = self._linear(x, f"{block}.ffn_up", c.n_embd, c.n_ff)
        down = self._linear(ACTIVATIONS[c.activation](up), f"{block}.ffn_down", c.n_ff, c.n_embd)
        return self._norm(down + x, f"{block}.layer_output_norm")

    def _linear(self, x: Tensor, name: str, n_in: int, n_out: int) -> Tensor:
        y = gg.mul_mat(self.weight(f"{name}.weight", n_in, n_out), x, name=name)
        return y + self.weight(f"{name}.bias", n_out) if f"{name}.bias" in self.weights else y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        n = self.config.n_embd
        return gg.norm(x, eps=self.config.eps) * self.weight(f"{name}.weight", n) + self.weight(f"{name}.bias", n)

    def _vocabulary(self) -> Tensor:
        return self._weight_rows("token_embd.weight", self.config.n_embd)

    def _weight_rows(self, name: str, n_in: int) -> Tensor:
        found = self.weights.get(name)
        return self.weight(name, n_in, max(found.ne[1], 1) if found is not None else 1)

    # -- running it --------------------------------------------------------------------------------

    def embed(
        self,
        texts: Sequence[str | LongText],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """One vector per text: float32 of shape ``(len(texts), n_embd)``, in the order of ``texts``.

        Texts longer than the model takes are truncated; a :class:`LongText` is read only as far as needed.
        ``batch``: texts computed together; ``progress(n)`` is called when ``n`` more are done, and an exception that it
        raises ends the call.  ``normalize``: to length 1.  Raises ParameterError; ModelError for a tokeniser that does
        not work; FreedError for a model that was freed; and what a LongText's callable raises.
        """
        if isinstance(texts, str):
            raise ParameterError("embed takes a sequence of texts, got one string", got=type(texts))
        _check_sequence(texts, "texts")
        for position, text in enumerate(texts):
            if not isinstance(text, (str, LongText)):
                raise ParameterError(f"texts[{position}] is {type(text).__name__}, not a string", got=type(text))
        with self.call():
            return self.embed_ids(self.tokenizer.encode(texts), batch=batch, normalize=normalize, progress=progress)

    def embed_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        batch: int = 32,
        normalize: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Floats:
        """As :meth:`embed`, for token ids with their special tokens."""
        if not isinstance(batch, (int, np.integer)) or isinstance(batch, bool) or batch < 1:
            raise ParameterError(f"batch must be an integer of at least 1, got {batch!r}", got=batch)
        _check_sequence(ids, "ids")
        with self.call():
            return self._embed_ids([self._checked(each, f"ids[{n}]") for n, each in enumerate(ids)], int(batch),
                                   normalize=normalize, progress=progress)

    def _embed_ids(
        self, ids: Sequence[npt.NDArray[np.int32]], batch: int, *, normalize: bool,
        progress: Callable[[int], None] | None,
    ) -> Floats:  # fmt: skip
        out = np.empty((len(ids), self.config.n_embd), np.float32)
        for chosen in batches([len(tokens) for tokens in ids], batch):
            with self.turn():
                out[chosen] = self._compute([ids[i] for i in chosen]).pooled.numpy()
            if progress is not None:
                progress(len(chosen))
        if normalize:
            out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
        return out

    def _checked(self, tokens: Any, what: str) -> npt.NDArray[np.int32]:
        """The token ids of one text, as an array.  Raises ParameterError for what cannot be such."""
        try:
            found = np.asarray(tokens)
        except (TypeError, ValueError):  # lists in lists, of several lengths
            found = np.empty(0, object)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu") or isinstance(tokens, (str, bytes, dict)):
            raise ParameterError(f"{what} is {tokens!r}, not a sequence of token ids", got=tokens)
        longest, n_vocab = self.config.n_ctx, self._vocabulary().ne[1]
        if not 1 <= found.size <= longest:
            raise ParameterError(f"{what} has {found.size} tokens, the model takes 1 to {longest}", got=found.size)
        outside = np.flatnonzero((found < 0) | (found >= n_vocab))
        if outside.size:
            raise ParameterError(
                f"{what}[{outside[0]}] is {found[outside[0]]}; the vocabulary has the tokens 0 to {n_vocab - 1}",
                got=int(found[outside[0]]), wanted=n_vocab,
            )  # fmt: skip
        return found.astype(np.int32)

    def hidden_states(self, ids: Sequence[int]) -> Floats:
        """The last layer's vector of every token of one text: float32 of shape ``(len(ids), n_embd)``.

        Raises ParameterError, FreedError.
        """
        checked = self._checked(ids, "ids")
        with self.turn():
            states: Floats = self._compute([checked]).hidden.numpy()[0, : len(ids)]
        return states

    def _compute(self, texts: Sequence[npt.NDArray[np.int32]]) -> Batch:
        lengths = np.array([len(tokens) for tokens in texts])
        n_seq, n_tok = len(texts), min(-(-int(lengths.max()) // self.ROUND) * self.ROUND, self.config.n_ctx)
        batch = self.build(n_seq, n_tok)
        present = np.arange(n_tok) < lengths[:, None]

        ids = np.zeros((n_seq, n_tok), np.int32)
        ids[present] = np.concatenate([np.asarray(tokens, np.int32) for tokens in texts])
        mask = np.where(present, np.float32(0), np.float32(-np.inf))[:, None, None, :]
        if self.config.pooling is Pooling.MEAN:
            pool = present / lengths[:, None]
        else:
            pool = np.broadcast_to(np.arange(n_tok) == 0, present.shape)

        self.scheduler.allocate(batch.graph)
        batch.ids.set(ids.reshape(-1))
        batch.positions.set(np.tile(np.arange(n_tok, dtype=np.int32), n_seq))
        batch.mask.set(np.broadcast_to(mask, (n_seq, 1, n_tok, n_tok)))
        batch.pool.set(pool.astype(np.float32)[:, None, :])
        self.scheduler.compute(batch.graph)
        return batch


def _check_sequence(values: Any, what: str) -> None:
    """Raises ParameterError for what has no length and order: generators, numbers, dicts, sets."""
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, (str, bytes)):
        raise ParameterError(f"{what} must be a sequence, got {type(values).__name__}", got=type(values))


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Positions of texts that are computed together: of similar length, so that little is padded; longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), size):
        yield order[start : start + size]
