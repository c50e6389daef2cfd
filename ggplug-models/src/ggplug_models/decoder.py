"""Language models: from tokens to logits of the next."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import ggplug as gg
from ggplug.backend import Device
from ggplug.graph import Graph
from ggplug.tensor import Tensor
from ggplug_models.cache.cells import Cells
from ggplug_models.cache.memory import KeysValues, Kind, Memory, State
from ggplug_models.layers.linear import linear
from ggplug_models.network import Network
from ggplug_models.steps import Asked, Shape, Step


class Decoder(Network):
    """A language model.  A family says in :attr:`kinds` what each block remembers of the tokens before."""

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What each block remembers."""
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """Logits of the next token, [n_vocab, ...]; a file without an output matrix uses the table of embeddings."""
        return linear(self.w, "output" if "output.weight" in self.w else "token_embd", x, self.n_vocab)

    # -- graphs ------------------------------------------------------------------------------------

    def build(self, shape: Shape, memory: Memory, cells: Mapping[int, Cells], n_ctx: int) -> Step:
        """The graph of the steps of a shape, over what a session remembers."""
        step = Step(shape, memory, cells, n_ctx)
        x = self.forward(step)
        result = None
        if shape.asked is not Asked.NONE:
            result = self.hidden(x)
            result = result if shape.hidden else self.logits(result)
        step.finish(result, f"{self.architecture} {shape.n_seq}x{shape.n}")
        return step

    def cells(self, n_seq: int, n_ctx: int, n_step: int) -> dict[int, Cells]:
        """By window of the model's blocks, where a session keeps positions."""
        windows = {kind.window for kind in self.kinds if isinstance(kind, KeysValues)}
        return {window: Cells(n_seq, n_ctx, n_step, window) for window in sorted(windows)}

    @property
    def keeps_states(self) -> bool:
        """Whether there are blocks with a state, which has no way back to earlier tokens."""
        return any(isinstance(kind, State) for kind in self.kinds)

    def sample(self) -> Graph:
        """The step of 64 tokens of one sequence, without memory of its own."""
        n = min(64, self.n_ctx)
        cells = self.cells(1, n, n)
        memory = Memory(self.kinds, None, 1, {window: each.count for window, each in cells.items()}, gg.F32)
        spans = tuple((window, each.span(n)) for window, each in cells.items())
        graph = self.build(Shape(0, 1, n, spans, Asked.ALL), memory, cells, self.n_ctx).graph
        assert graph is not None
        return graph

    def device_of(self, number: int) -> Device:
        """Where a block is computed: the device that holds its weights."""
        prefix = self.w.block(number).prefix
        placed = (t.buffer_type for t in self.weights if t.name.startswith(prefix) and t.buffer_type is not None)
        found = next(placed, None)
        device = self.devices[0] if found is None else found.device
        return device if device in self.devices else self.devices[-1]
