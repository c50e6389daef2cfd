"""The base class of encoders and language models: a table of embeddings, blocks, and a norm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ggplug.backend import Device
from ggplug.errors import PlacementError
from ggplug.graph import Graph
from ggplug.ops import PythonCall
from ggplug.tensor import Context, Tensor
from ggplug_models.adapters.control_vector import ControlVector
from ggplug_models.adapters.lora import LoraAdapter, LoraFile, check_used
from ggplug_models.layers.collecting import check_matches
from ggplug_models.layers.linear import rows
from ggplug_models.layers.norms import Norm, RmsNorm
from ggplug_models.layers.patches import Change, GraphChange, Patch, Patching, patched
from ggplug_models.metadata.hyperparameters import Hyperparameters
from ggplug_models.networks.model import Model
from ggplug_models.state.steps import Step
from ggplug_models.weights.rules import is_expert
from ggplug_models.weights.weights import Weights, check_blocks

MOST_BLOCKS = 1 << 16

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


class Inputs(Protocol):
    """The inputs of a graph: the tokens of a step of a language model, or whole texts."""

    @property
    def tokens(self) -> Tensor:
        """The token ids, I32 [T], sequence after sequence."""

    @property
    def positions(self) -> Tensor:
        """The positions, I32 [T]."""

    def outputs(self, x: Tensor) -> Tensor:
        """The columns of ``x`` [n, T] for which results are returned."""

    @property
    def attend(self) -> Callable[..., Tensor]:
        """A function ``attend(number, q, k, v, scale=...)``: the attention of block ``number``, [d_v n_head, T]."""

    @property
    def n_ctx(self) -> int:
        """The context length."""

    def of_positions(self, name: str, values: Callable[[Ints], Floats]) -> Tensor:
        """An input F32 [1, 1, T] that ``values`` computes from the positions."""

    def of_pairs(self, values: Callable[[Ints], npt.NDArray[Any]]) -> Tensor:
        """An input I32 [keys, queries, ...] that ``values`` computes from how far each key lies behind each query."""

    @property
    def shared(self) -> dict[str, Tensor]:
        """Nodes that later blocks read, by name."""


@dataclass(frozen=True)
class Block:
    """A block of a model while its graph is made.  ``inputs``: those of the graph."""

    number: int
    weights: Weights
    is_last: bool
    inputs: Inputs = field(repr=False)

    @property
    def positions(self) -> Tensor:
        """The positions of the tokens, I32 [T]."""
        return self.inputs.positions

    @property
    def step(self) -> Step:
        """The step that the graph is made for, which blocks with a recurrent state use.  Only for language models."""
        assert isinstance(self.inputs, Step)
        return self.inputs

    def outputs(self, *xs: Tensor) -> Iterator[Tensor]:
        """In the last block the columns of each x [n, T] for which results are returned, in others all columns."""
        return (self.inputs.outputs(x) if self.is_last else x for x in xs)

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, **how: Any) -> Tensor:
        """The attention of this block; see :attr:`Inputs.attend`."""
        w = self.weights
        for name, each in (("Qcur", q), ("Kcur", k), ("Vcur", v)):
            if each is not None:
                w.named(name, each)
        return w.named("kqv_out", self.inputs.attend(self.number, q, k, v, **how))

    def named(self, name: str, tensor: Tensor) -> Tensor:
        """A node of this block, after it got its name: ``blk.3.name``."""
        return self.weights.named(name, tensor)


class Network(Model):
    """A table of embeddings, blocks, and a norm.

    A family implements :meth:`read`, which reads the metadata, and :meth:`block`, which adds the nodes of a block.
    """

    norm_kind: ClassVar[type[Norm]] = RmsNorm
    """The norm of blocks and of the last one's output."""

    n_embd: int
    """Number of elements of a token's vector."""
    n_layer: int
    """Number of blocks."""
    n_ctx: int
    """The context length that the model supports."""

    def __init__(self, weights: Context, metadata: Mapping[str, Any], devices: Sequence[Device]) -> None:
        super().__init__(weights, metadata, devices)
        self.patches: tuple[GraphChange, ...] = ()
        """The patches and adapters that are in effect; see :meth:`patch`, :meth:`adapt`, :meth:`steer`."""
        self.read(self.hyperparameters)
        check_blocks((weight.name for weight in weights), metadata, self.architecture)
        self.n_vocab = self.w("token_embd.weight", self.n_embd, -1).ne[1]
        self.sample()  # so that a file without a tensor that it needs is refused now
        self.w.check_all_read(self.unread, self.n_layer)

    def sample(self) -> Graph:
        """A graph of typical size over the model's weights; see :meth:`.Model.sample`."""
        raise NotImplementedError

    def read(self, hp: Hyperparameters) -> None:
        """Reads the hyperparameters of the family from the metadata, without looking at tensors.  Raises ModelError."""
        self.n_embd = hp.integer("embedding_length")
        self.n_layer = hp.integer("block_count", at_most=MOST_BLOCKS)
        self.n_ctx = hp.integer("context_length")
        self.norm = self.norm_kind.of(hp)

    def node_names(self) -> list[str]:
        """The names of the nodes that all tokens need, in the order of computation."""
        return [node.name for node in self.sample().nodes]

    def patch(self, name: str, value: Change | npt.ArrayLike, *, add: bool = False) -> Patching:
        """Changes the values of nodes in all computations from now on, until the end of a ``with`` block.

        ``name``: of a node, or a pattern such as ``blk.*.l_out``.  ``value``: an array that takes the place of the
        value of each token, or with ``add`` is added to it (a steering vector); or a function that gets the value of a
        step, tokens first, as an array, and returns another one of the same shape.  A step may have padding tokens at
        the end.  Several patches of a node are applied one after the other.  Sessions keep what they computed before.

        Raises ParameterError if there is no such node, or its value cannot be changed so; PlacementError for a
        function, if none of the model's devices calls Python functions.
        """
        patch = Patch(name, value if callable(value) else np.array(value, np.float32), add)
        sample = self.sample()
        names = [node.name for node in sample.nodes]
        check_matches(name, [each for each in names if patch.matches(each)], names)
        changed = Graph(*patched(sample.outputs, [patch]))
        call = next((node for node in changed.nodes if isinstance(node.op, PythonCall)), None)
        if call is not None and not any(device.supports_op(call) for device in self.devices):
            where = " and ".join(device.name for device in self.devices)
            raise PlacementError(
                f"the function of the patch {name!r} cannot be called: the model is on {where} only, which does not "
                "call functions of Python",
                tensor=call,
                op=call.op,
                remedy='load the model with the CPU too, as load(path, [..., "CPU"]); or patch with an array',
            )
        return Patching(self, patch)

    def adapt(self, adapter: str | os.PathLike[str] | LoraFile, scale: float = 1.0) -> Patching:
        """Computes with a LoRA adapter from now on, until the end of a ``with`` block.

        ``adapter``: a file in llama.cpp's format.  ``scale``: what its changes are multiplied with, besides the
        adapter's own factor.  Several adapters add up.  The matrices lie on the devices of the weights that they
        change.  Sessions keep what they computed before.  A text or a sequence may have other scales than the model:
        ``generate(..., lora={adapter: 0.5})`` and :meth:`.Session.adapt` take what this returns.

        Raises ModelError if the file is no LoRA adapter of this model, GGUFError, ParameterError, OutOfMemoryError,
        OSError, FreedError.
        """
        file = adapter if isinstance(adapter, LoraFile) else LoraFile(adapter)
        file.check(self.architecture, {weight.name: weight.ne for weight in self.weights})
        check_used(file, self.sample().nodes)
        with self.locked():
            change = LoraAdapter(file, self.weights, scale)
        return Patching(self, change)

    def steer(
        self, vector: str | os.PathLike[str], scale: float = 1.0, *, first: int = 0, last: int | None = None
    ) -> Patching:
        """Adds the directions of a control vector to the outputs of blocks, until the end of a ``with`` block.

        ``vector``: a file in llama.cpp's format.  ``scale``: what they are multiplied with.  ``first``, ``last``: the
        blocks that are changed; by default all that the file has directions for.  Raises as :class:`.ControlVector`.
        """
        return Patching(self, ControlVector(vector, self.n_embd, self.n_layer, self.node_names(), scale, first, last))

    def embedding(self, inputs: Inputs) -> Tensor:
        """The input of the first block: [n_embd, T]."""
        return rows(self.w, "token_embd", self.n_embd, inputs.tokens)

    def block(self, x: Tensor, block: Block) -> Tensor:
        """The output of a block, [n_embd, T], for its input ``x`` [n_embd, T]."""
        raise NotImplementedError

    def hidden(self, x: Tensor) -> Tensor:
        """The vectors of tokens, [n_embd, ...], from the output of the last block."""
        return self.norm(self.w, "output_norm", x)

    def forward(self, inputs: Inputs) -> Tensor:
        """The output of the last block, [n_embd, T], or those of its columns for which results are returned."""
        x = self.input_of_last(inputs)
        return inputs.outputs(self.output_of(self.n_layer - 1, x, inputs, is_last=True))

    def input_of_last(self, inputs: Inputs) -> Tensor:
        """The input of the last block, [n_embd, T]."""
        x = self.embedding(inputs).named("inp_embd")
        for number in range(self.n_layer - 1):
            x = self.output_of(number, x, inputs)
        return x

    def output_of(self, number: int, x: Tensor, inputs: Inputs, *, is_last: bool = False) -> Tensor:
        """The output of the block ``number`` for its input ``x``; see :class:`Block` for ``is_last``."""
        block = Block(number, self.weights_of(number), is_last, inputs)
        return block.named("l_out", self.block(x, block))

    def weights_of(self, number: int) -> Weights:
        """The weights of the block ``number``."""
        return self.w.block(number)

    def cache_on(self, number: int) -> Device | None:
        """The device that a rule chose for a block's cache or state, and for its attention; None: no rule did."""
        return None if self.placement is None else self.placement.cache(number)

    @cached_property
    def devices_of_blocks(self) -> tuple[Device, ...]:
        """:meth:`device_of` each block that texts are computed with."""
        return tuple(self.device_of(number) for number in range(self.n_layer))

    def device_of(self, number: int) -> Device:
        """The device of a block's cache or state: the one that a rule chose, or that of the block's weights.

        Those of experts do not count: attention is not computed where they lie.
        """
        chosen = self.cache_on(number)
        if chosen is not None:
            return chosen
        prefix = self.weights_of(number).prefix
        of_block = (t for t in self.weights if t.name.startswith(prefix) and not is_expert(t.name))
        found = next((t.buffer_type for t in of_block if t.buffer_type is not None), None)
        device = self.devices[0] if found is None else found.device
        return device if device in self.devices else self.devices[-1]
