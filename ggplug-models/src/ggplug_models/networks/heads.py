"""Heads: small networks that guess the token after the next one, from the next token and what a language model has
computed of the token before (arXiv:2404.19737, arXiv:2412.19437).

A head reads a pair for each token of a text but the first: the token, and a vector that the model has computed of the
one before it.  It has a KV cache of its own, in a :class:`.Session`.  From the pairs of guessed tokens it guesses
further ones: their vectors are those that the head itself has computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.backend import BufferType, Device
from ggplug.errors import ModelError
from ggplug.tensor import Tensor
from ggplug.types import Type
from ggplug_models.layers.linear import linear, rows
from ggplug_models.layers.patches import GraphChange
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.transformer import Transformer
from ggplug_models.state.cells import Cells
from ggplug_models.state.memory import Kind, Memory, cells_of
from ggplug_models.state.sample_graph import sample_graph
from ggplug_models.state.session import Session
from ggplug_models.state.steps import VECTORS, Outputs, Shape, Step
from ggplug_models.tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]


class Head:
    """A head for ``model``, whose devices, scheduler and lock it uses; a :class:`.LanguageModel` for its sessions.

    ``names``: the nodes of the model whose values it reads.  ``kinds``: what its sessions keep for each block.
    """

    keeps_states = False
    patches: tuple[GraphChange, ...] = ()
    split: Mapping[str, BufferType] = MappingProxyType({})
    """Its sessions split nothing: their tensors have the names of others of the model's."""

    def __init__(self, model: Decoder, names: tuple[str, ...], kinds: tuple[Kind, ...]) -> None:
        self.model, self.names, self.kinds = model, names, kinds
        self.architecture, self.metadata = model.architecture, model.metadata
        self.paths = model.paths
        self.n_ctx, self.n_vocab, self.most_positions = model.n_ctx, model.n_vocab, model.most_positions
        self.scheduler, self.pipeline = model.scheduler, model.pipeline
        self.is_long, self.locked, self.call = model.is_long, model.locked, model.call
        self.cache_on, self.device_of = model.cache_on, model.device_of

    @property
    def digest(self) -> str:
        """That of the model's weights."""
        return self.model.digest

    @property
    def tokenizer(self) -> Tokenizer:
        """That of the model."""
        return self.model.tokenizer

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """See :meth:`.LanguageModel.cells`."""
        return cells_of(self.kinds, n_seq, n_ctx, n_step)

    def copies(self, devices: Collection[Device]) -> int:
        """Its steps are small, and computed one after the other."""
        return 1

    def build_source(self, n_tok: int, memory: Memory, patches: Sequence[GraphChange] = ()) -> None:
        """See :meth:`.LanguageModel.build_source`."""

    def session(self, n_ctx: int | None = None, n_seq: int = 1, cache_type: str | Type = "f16") -> Session:
        """A new session, whose sequences have a pair for each token."""
        return Session(self, n_ctx, n_seq, cache_type)

    def build(
        self,
        shape: Shape,
        memory: Memory,
        cells: Mapping[int, Cells],
        n_ctx: int,
        collect: Sequence[str] = (),
        patches: Sequence[GraphChange] = (),
    ) -> Step:
        """The step with the graph for this shape; it can collect the vectors for the next pairs (:data:`VECTORS`)."""
        step = Step(shape, memory, cells, n_ctx)
        x = step.outputs(self.forward(step))
        result = vectors = None
        if shape.outputs is not Outputs.NONE:
            result, vectors = self.results(x)
        wanted = vectors if VECTORS in collect else None
        step.finish(x, result, f"{self.architecture} head {shape.n_seq}x{shape.n}", collect=collect, vectors=wanted)
        return step

    def forward(self, step: Step) -> Tensor:
        """The output of the last block, [n, T], or those of its columns for which results are returned."""
        raise NotImplementedError

    def results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and the vectors for the next pairs, of columns that :meth:`forward` returned."""
        raise NotImplementedError

    def encoded(self, values: Sequence[Floats]) -> Floats:
        """The vectors of tokens, (n, n_in), from the values of the nodes."""
        return values[0]

    def token(self, number: int) -> int:
        """The token of a logit, by its place."""
        return number


class NextBlock(Head):
    """The first of the blocks that a file has after the last one of the model, with their own norms (``nextn``).

    Raises ModelError if the file has none, or the family's are computed otherwise.
    """

    def __init__(self, model: Decoder) -> None:
        self.number = model.n_layer
        self.w = model.w.block(self.number)
        if not isinstance(model, Transformer) or "nextn.eh_proj.weight" not in self.w:
            raise ModelError(
                f"{model!r} has no block that guesses further tokens (MTP): its file has no tensor "
                f"'{self.w.prefix}nextn.eh_proj.weight'",
                got=None,
                remedy="use a file that was converted with these blocks, or another kind of draft",
            )
        if not model.guesses:
            raise ModelError(
                f"{model!r} has a block that guesses further tokens (MTP), which is not supported for "
                f"{model.architecture}",
                got=model.architecture,
                remedy="use another kind of draft",
            )
        super().__init__(model, (VECTORS,), (*[None] * self.number, model.kind(self.number)))
        sample_graph(self)  # so that a file without a tensor that it needs is refused now

    def forward(self, step: Step) -> Tensor:
        model, w = self.model, self.w
        own = "nextn.embed_tokens.weight" in w
        e = rows(w, "nextn.embed_tokens", model.n_embd, step.tokens) if own else model.embedding(step)
        h = model.norm(w, "nextn.hnorm", step.vectors(model.n_embd))
        x = linear(w, "nextn.eh_proj", gg.concat(model.norm(w, "nextn.enorm", e), h, dim=0), model.n_embd)
        return model.output_of(self.number, x, step, is_last=True)

    def results(self, x: Tensor) -> tuple[Tensor, Tensor]:
        model, w = self.model, self.w
        own = "nextn.shared_head_norm.weight" in w
        x = model.norm(w, "nextn.shared_head_norm", x) if own else model.hidden(x)
        if "nextn.shared_head_head.weight" not in w:
            return model.scores(x), x
        return linear(w, "nextn.shared_head_head", x, self.n_vocab), x
