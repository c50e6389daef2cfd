"""A model in training: its parameters, the state of its optimiser, and graphs that change both on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggplug import memory, ops, registry
from ggplug.backend import Backend, Device
from ggplug.errors import ModelError, ParameterError, TrainingError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.gguf.format import ValueType
from ggplug.gradients import Expansion
from ggplug.gradients.rules import ones
from ggplug.graph import Graph
from ggplug.opt.datasets import Batch, Dataset
from ggplug.opt.epochs import Epoch, as_metadata, from_metadata
from ggplug.opt.losses import Loss, cross_entropy
from ggplug.opt.optimisers import AdamW, Optimiser
from ggplug.scheduler import Scheduler
from ggplug.scheduler.feed import Feed
from ggplug.tensor import Context, Tensor, new_tensor
from ggplug.values.arrays import as_array

Array = npt.NDArray[Any]

ARCHITECTURE = "ggplug-training"


class Result(NamedTuple):
    """The loss of a model, the mean over datapoints, and how many of its predictions are the labels' (ggml_opt_result).

    ``accuracy``: None where labels are no probabilities of classes.
    """

    loss: float
    accuracy: float | None


class Training:
    """A model in training (ggml_opt_init).

    ``function(parameters, data)``: the outputs; the last extent of ``data`` is the number of datapoints.
    ``parameters``: initial values by name, which become F32 on the device.  ``backends``: streams or devices in order
    of priority, by default the best device; parameters lie on the first one.  ``period``: the number of batches whose
    gradients are added up for a step.  ``clip``: the largest norm of all gradients together; larger ones are scaled
    down.  0: any.

    ``steps``: of the optimiser, so far.  ``epochs``: what :func:`~ggplug.opt.fit` knows of those that are done.
    """

    def __init__(
        self,
        function: Callable[[Mapping[str, Tensor], Tensor], Tensor],
        parameters: Mapping[str, Any],
        loss: Loss = cross_entropy,
        optimiser: Optimiser | None = None,
        *,
        backends: Sequence[Backend | Device] | None = None,
        period: int = 1,
        clip: float = 0.0,
    ) -> None:
        if period < 1 or not 0 <= clip < math.inf:
            raise ParameterError(f"period must be positive and clip not negative, got {period} and {clip}")
        self.function, self.loss, self.period, self.clip = function, loss, period, clip
        self.optimiser: Optimiser = AdamW() if optimiser is None else optimiser
        self.steps = 0
        self.epochs: list[Epoch] = []
        self._batches = 0
        """Of the current step, whose gradients are in the accumulators."""
        self._feeds: dict[tuple[Any, ...], Feed] = {}
        self._context = Context("training")
        values = {name: as_array(given).astype(np.float32) for name, given in parameters.items()}
        self.parameters = {name: self._kept(name, value.shape) for name, value in values.items()}
        self._moments = {
            name: [self._kept(f"{name}.{each}", value.shape) for each in self.optimiser.moments]
            for name, value in values.items()
        }
        self._accumulators = {
            name: self._kept(f"{name}.grad", value.shape) for name, value in values.items() if period > 1
        }
        self._settings = self._kept("settings", self.optimiser.settings(0).shape)
        streams = [registry.init_best()] if backends is None else list(backends)
        self.scheduler = Scheduler(streams)
        memory.allocate(self._context, streams[0], zeroed=True)
        for name, value in values.items():
            self.parameters[name].set(value)

    def _kept(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._context.new_tensor("f32", shape[::-1], name)

    def free(self) -> None:
        """Frees the memory of parameters, of the optimiser's state, and of graphs."""
        self._feeds.clear()
        self.scheduler.free()
        self._context.free()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    # -- computing ---------------------------------------------------------------------------------

    def step(self, data: Any, labels: Any = None) -> float:
        """Learns from a batch, and returns its loss before that.

        Parameters change with the last batch of each period.  Raises TrainingError if the loss is NaN or infinite; then
        the parameters may be, too.
        """
        self._settings.set(self.optimiser.settings(self.steps))
        loss = float(self._computed("learn", Batch(*_batch(data, labels)))[0])
        self._batches += 1
        if self._batches == self.period:
            if self.period > 1:
                self._feed("update", (), None)([])
            self._batches = 0
            self.steps += 1
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} in step {self.steps}",
                got=loss,
                remedy="a smaller alpha, clip, or a checkpoint from before",
            )
        return loss

    def predict(self, data: Any) -> Array:
        """The outputs for some datapoints (ggml_opt_outputs)."""
        found: Array = self._computed("predict", Batch(*_batch(data, None)))[0]
        return found

    def evaluate(self, dataset: Dataset, batch: int = 64) -> Result:
        """Loss and accuracy over a dataset, without learning (ggml_opt_eval)."""
        losses, right = [], 0
        for each in dataset.batches(batch):
            loss, outputs = self._computed("evaluate", each)
            losses.append(float(loss) * len(each.data))
            if self._classifies(each.labels):
                right += int((outputs.argmax(axis=-1) == _classes(each.labels)).sum())
        count = max(1, len(dataset))
        return Result(math.fsum(losses) / count, right / count if self._classifies(dataset.labels) else None)

    def _classifies(self, labels: Array | None) -> bool:
        return self.loss is cross_entropy and labels is not None and labels.ndim == 2

    def _computed(self, what: str, batch: Batch) -> list[Array]:
        inputs = [each for each in batch if each is not None]
        shapes = tuple((each.shape, each.dtype.str) for each in inputs)
        feed = self._feed(what, shapes, batch)
        return feed(inputs)

    def _feed(self, what: str, shapes: tuple[Any, ...], batch: Batch | None) -> Feed:
        """The graph that computes this for such a batch, made once."""
        key = what, shapes
        if key not in self._feeds:
            graph, inputs, outputs = self._update_graph() if batch is None else self._batch_graph(what, batch)
            self._feeds[key] = Feed(self.scheduler, graph, inputs, outputs)
        return self._feeds[key]

    def _batch_graph(self, what: str, batch: Batch) -> tuple[Graph, list[Tensor], list[Tensor]]:
        inputs = [new_tensor(_type(each), each.shape[::-1]).set_input() for each in batch if each is not None]
        outputs = self.function(self.parameters, inputs[0]).set_output()
        if what == "predict":
            return Graph(outputs), inputs, [outputs]
        loss = self.loss(outputs, inputs[1] if len(inputs) > 1 else None).set_output()
        graph = Graph(loss, outputs, *inputs)  # a loss need not read the labels
        if what == "evaluate":
            return graph, inputs, [loss, outputs]
        expansion = Expansion(graph, self.parameters.values())
        expansion.run({loss: ones(loss.ne)})
        gradients = {name: expansion.wanted(tensor) for name, tensor in self.parameters.items()}
        if self.period == 1:
            self._change(graph, gradients)
        else:
            for name, gradient in gradients.items():
                graph.expand(ops.add_inplace(self._accumulators[name], gradient))
        return graph, inputs, [loss]

    def _update_graph(self) -> tuple[Graph, list[Tensor], list[Tensor]]:
        """A step by the mean of the gradients in the accumulators, which are zero afterwards."""
        graph = Graph()
        self._change(graph, {name: ops.scale(each, 1 / self.period) for name, each in self._accumulators.items()})
        for each in self._accumulators.values():
            graph.expand(ops.fill_inplace(each, 0.0))
        return graph, [], []

    def _change(self, graph: Graph, gradients: Mapping[str, Tensor]) -> None:
        """Adds the optimiser's step by these gradients to a graph."""
        if self.clip:
            norm = ops.sqrt(_total([ops.sum(ops.sqr(ops.cont(each))) for each in gradients.values()]))
            # At most 1, also if all gradients are zero.
            factor = ops.clamp(ops.div(ops.scale(ones((1, 1, 1, 1)), self.clip), norm), 0.0, 1.0)
            gradients = {name: ops.mul(each, factor) for name, each in gradients.items()}
        for name, gradient in gradients.items():
            plain = gradient if gradient.nb[0] == 4 or gradient.ne[0] == 1 else ops.cont(gradient)
            graph.expand(self.optimiser.step(self.parameters[name], plain, self._moments[name], self._settings))

    # -- files -------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint as GGUF: parameters by their names, and all that training goes on from bit for bit.

        The file is complete or not there.  Raises OSError.
        """
        with GGUFWriter(path, arch=ARCHITECTURE) as writer:
            writer.add("training.steps", self.steps)
            writer.add("training.batches", self._batches)
            for key, values in as_metadata(self.epochs).items():
                writer.add(key, values, (ValueType.ARRAY, ValueType.FLOAT64))
            for tensor in self._context:
                if tensor is not self._settings:
                    writer.add_tensor(tensor.name, tensor.numpy())

    def load(self, path: str | Path) -> None:
        """Continues from a checkpoint.  Raises ModelError if it is that of another model, GGUFError."""
        with GGUFReader(path) as reader:
            wanted = [tensor for tensor in self._context if tensor is not self._settings]
            for tensor in wanted:
                info = reader.tensors.get(tensor.name)
                if info is None or info.shape != tensor.shape or info.type is not tensor.type:
                    raise ModelError(f"{path} has no {tensor.name!r} of the shape {tensor.shape}", tensor=tensor)
            for tensor in wanted:
                tensor.set(reader.array(tensor.name))
            self.steps = int(reader.metadata["training.steps"])  # type: ignore[arg-type]
            self._batches = int(reader.metadata["training.batches"])  # type: ignore[arg-type]
            self.epochs = from_metadata(reader.metadata)


def _total(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = ops.add(total, term)
    return total


def _batch(data: Any, labels: Any) -> tuple[Array, Array | None]:
    found = Dataset(data, labels)
    return found.data, found.labels


def _classes(labels: Array | None) -> Array:
    assert labels is not None
    found: Array = labels.argmax(axis=-1)
    return found


def _type(array: Array) -> str:
    return "i32" if array.dtype.kind == "i" else "f32"
