"""Encoder-decoders: models that read a whole source text, and write another text about it (arXiv:1910.10683)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, Unpack

import numpy as np
import numpy.typing as npt

import ggplug as gg
from ggplug.errors import ModelError
from ggplug.graph import Graph
from ggplug.scheduler import Scheduler
from ggplug.tensor import Tensor
from ggplug_models.chat.template import ChatTemplate
from ggplug_models.generation.detokenizer import GeneratedText
from ggplug_models.generation.loop import Options, generate
from ggplug_models.layers.attention import joined
from ggplug_models.layers.names import name_nodes
from ggplug_models.layers.patches import GraphChange, patched, scale_now
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Texts
from ggplug_models.state.memory import Memory
from ggplug_models.state.session import Session
from ggplug_models.state.steps import Outputs

Floats = npt.NDArray[np.float32]


class Source(Texts):
    """The graph that reads a source text of up to ``n_tok`` tokens, and stores keys and values of it in the memory of a
    session."""

    def __init__(self, n_tok: int, n_ctx: int, n_layer: int) -> None:
        super().__init__(1, n_tok, n_ctx, [0] * n_layer, 0.0)
        self.rows = gg.new_tensor(gg.I32, (n_tok,), "rows").set_input()
        self._writes: list[Tensor] = []
        self._scales: dict[tuple[GraphChange, float], Tensor] = {}

    def scale(self, of: GraphChange, times: float) -> Tensor:
        """See :class:`.Scales`."""
        key = of, times
        if key not in self._scales:
            self._scales[key] = gg.new_tensor(gg.F32, (1,), f"scale {len(self._scales)}").set_input()
        return self._scales[key]

    def store(self, held: Sequence[Tensor], *new: Tensor) -> None:
        """Stores keys and values, [d, n_head, n_tok] each, in tensors of the memory."""
        self._writes += [gg.set_rows(tensor, joined(each), self.rows) for tensor, each in zip(held, new, strict=True)]

    def finish_source(self, name: str, patches: Sequence[GraphChange]) -> None:
        """Makes the graph."""
        writes = patched(self._writes, [each.scaled(self) for each in patches]) if patches else self._writes
        self.graph = Graph(*writes, name=name)
        name_nodes(self.graph)

    def compute(
        self,
        scheduler: Scheduler,
        tokens: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int32],
        scales: Mapping[GraphChange, float | None],
    ) -> None:
        """Computes the graph for tokens, and stores their keys and values in ``rows``, then those of padding.

        ``scales``: the changes of the graph, with their scales.
        """
        scheduler.allocate(self.graph)
        self.fill([tokens], None)
        self.rows.set(rows)
        for (of, times), tensor in self._scales.items():
            tensor.set(np.array([scale_now(scales, of, times)], np.float32))
        scheduler.compute(self.graph)


class EncoderDecoder(Decoder):
    """A model whose encoder reads a source text, and whose decoder writes a text, with attention to both.

    A session has a source text for each sequence (:meth:`.Session.encode`).  The prompts of the methods that generate
    are source texts.  ``start``: the token with which every text begins.
    """

    n_encoder: int
    """Number of blocks of the encoder."""

    def read(self, hp: Hyperparameters) -> None:
        super().read(hp)
        self._start = hp.integer("decoder_start_token_id", None, at_least=0)

    @cached_property
    def start(self) -> int:
        """The token with which every text begins.  Raises ModelError if the file names none."""
        found = self.tokenizer.bos if self._start is None else self._start
        if found is None or found >= self.n_vocab:
            raise self.hyperparameters.refused("decoder_start_token_id", f"a token id below {self.n_vocab}")
        return found

    def encoded(self, source: Source) -> Tensor:
        """The vectors of the tokens of a source text, [n_embd, n_tok]."""
        raise NotImplementedError

    def store(self, source: Source, x: Tensor, memory: Memory) -> None:
        """Stores what the blocks read of a source text whose vectors are ``x``, by :meth:`Source.store`."""
        raise NotImplementedError

    def build_source(self, n_tok: int, memory: Memory, patches: Sequence[GraphChange] = ()) -> Source:
        source = Source(n_tok, self.n_ctx, self.n_encoder)
        self.store(source, self.encoded(source), memory)
        source.finish_source(f"{self.architecture} source {n_tok}", patches)
        return source

    def logits(self, tokens: Sequence[int], source: Sequence[int] = ()) -> Floats:
        """As :meth:`.Decoder.logits`, after the source text ``source``."""
        with self._session(tokens, source) as session:
            return session.decode({0: tokens}, Outputs.ALL)[0]

    def run(
        self,
        tokens: Sequence[int],
        collect: Iterable[str] = ("logits",),
        *,
        last: bool = False,
        source: Sequence[int] = (),
    ) -> dict[str, npt.NDArray[Any]]:
        """As :meth:`.Decoder.run`, after the source text ``source``; the nodes are those of the decoder."""
        with self._session(tokens, source) as session:
            return session.collect(tokens, collect, last=last)

    def _session(self, tokens: Sequence[int], source: Sequence[int]) -> Session:
        session = self.session(max(1, len(tokens), len(source)), cache_type="f32")
        try:
            session.encode(source)
            return session
        except BaseException:
            session.free()
            raise

    def generate_ids(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> Iterator[int]:
        """Yields the tokens of the text that the model writes about the source text ``prompt``."""
        self._check_session(session)
        of = self if session is None else session
        return generate(of, [self.start], max_tokens, end=self.tokenizer.ends, source=prompt, **options)

    def texts(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = None,
        *,
        begins: bool = True,
        **options: Any,
    ) -> GeneratedText:
        return super().texts(prompt, max_tokens, begins=True, **options)

    def chat(self, *args: object, **options: object) -> NoReturn:
        """Raises ModelError: the model does not chat."""
        raise self._no_chat()

    @property
    def template(self) -> ChatTemplate:
        """Raises ModelError: the model does not chat."""
        raise self._no_chat()

    def _no_chat(self) -> ModelError:
        return ModelError(
            f"{self.architecture} models write one text about a source text; they do not chat",
            got=self.architecture,
            remedy="use generate(text), or ggplug run --raw",
        )
