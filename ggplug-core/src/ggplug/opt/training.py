"""A model in training: its parameters, the state of its optimiser, and graphs that change both on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ggplug import memory, ops, registry
from ggplug.backend import Backend, Device
from ggplug.errors import GGPlugError, ModelError, ParameterError, ShapeError, TrainingError, TypeMismatchError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.gguf.format import MAX_NAME_BYTES, ValueType
from ggplug.gguf.values import utf8
from ggplug.gradients import Expansion
from ggplug.gradients.rules import ones
from ggplug.graph import Graph
from ggplug.opt.datasets import Batch, Dataset
from ggplug.opt.epochs import Epoch, as_metadata, from_metadata
from ggplug.opt.losses import Loss, cross_entropy
from ggplug.opt.optimisers import AdamW, Optimiser
from ggplug.scheduler import Scheduler
from ggplug.scheduler.feed import Feed
from ggplug.sharing import one_thread_at_a_time
from ggplug.system.recent import Recent
from ggplug.tensor import Context, Tensor, new_tensor
from ggplug.types import BufferUsage
from ggplug.values.arrays import as_values, whole_number
from ggplug.values.geometry import MAX_RANK

Array = npt.NDArray[Any]

ARCHITECTURE = "ggplug-training"
IDENTITY = "training.identity"

GRAPHS = 32
"""How many graphs a training keeps, each for batches of one shape; the least recently used one is dropped."""


class Result(NamedTuple):
    """The loss of a model, the mean over datapoints, and how many of its predictions are the labels' (ggml_opt_result).

    ``accuracy``: of the datapoints with labels, those whose row is not zero.  None where there are none, or where
    labels are no probabilities of classes.
    """

    loss: float
    accuracy: float | None


class Training:
    """A model in training (ggml_opt_init).

    ``function(parameters, data)``: the outputs; the last extent of ``data`` is the number of datapoints.
    ``parameters``: initial values by name, each with one extent or more, which become F32 on the device.
    ``backends``: streams or devices in order of priority, by default the best device; parameters lie on the first one.
    ``placement``: patterns of names of parameters, such as ``output.*``, and the one of ``backends`` on which those lie
    that match; the first pattern counts.  What reads a parameter is computed where it lies.
    ``period``: the number of batches whose gradients are added up for a step.  ``clip``: the largest norm of all
    gradients together; larger ones are scaled down.  0: any.

    ``steps``: of the optimiser, so far.  ``epochs``: what :func:`~ggplug.opt.fit` knows of those that are done.

    One thread at a time learns, saves or loads; others get BusyError.  Raises ParameterError, ShapeError and
    TypeMismatchError for parameters that cannot be trained or written to a file; they name the parameter.
    """

    def __init__(
        self,
        function: Callable[[Mapping[str, Tensor], Tensor], Tensor],
        parameters: Mapping[str, Any],
        loss: Loss = cross_entropy,
        optimiser: Optimiser | None = None,
        *,
        backends: Sequence[Backend | Device] | None = None,
        placement: Mapping[str, Backend | Device] | None = None,
        period: int = 1,
        clip: float = 0.0,
    ) -> None:
        period = whole_number(period, "period")
        if period < 1 or not 0 <= clip < math.inf:
            raise ParameterError(f"period must be positive and clip not negative, got {period} and {clip}")
        self.function, self.loss, self.period, self.clip = function, loss, period, clip
        self.optimiser: Optimiser = AdamW() if optimiser is None else optimiser
        self.steps = 0
        self.epochs: list[Epoch] = []
        self._batches = 0
        """Of the current step, whose gradients are in the accumulators."""
        self._sign = 1.0
        """What ``_marks`` are while no batch is computed; each batch changes the sign of all."""
        self._uncounted = False
        """Whether a batch may have been computed that is not counted, because of an error."""
        self._entered_by = 0
        self._feeds: Recent[tuple[Any, ...], Feed] = Recent(GRAPHS)
        suffixes = [*self.optimiser.moments, *(["grad"] if period > 1 else [])]
        values = _values(parameters, suffixes)
        streams = [registry.init_best()] if backends is None else list(backends)
        self._places = _places(values, placement or {}, streams)
        """For each parameter the number of its stream."""
        used = sorted({0, *self._places.values()})
        contexts = {place: Context("training") for place in used}
        controls = {place: Context("controls of training") for place in used}
        self._marks = [context.new_tensor("f32", 1, "mark") for context in controls.values()]
        """How far the graph of a batch has come on each of these streams: a mark doubles as parameters or accumulators
        begin to change, and is multiplied by -1/2 when all have changed."""
        self._settings = controls[0].new_tensor("f32", self.optimiser.settings(0).shape, "settings")
        self._owned = [*contexts.values(), *controls.values()]

        def kept(suffix: str = "") -> dict[str, Tensor]:
            return {
                name: contexts[self._places[name]].new_tensor("f32", value.shape[::-1], name + suffix)
                for name, value in values.items()
            }

        self.parameters = kept()
        moments = [kept(f".{each}") for each in self.optimiser.moments]
        self._moments = {name: [each[name] for each in moments] for name in values}
        self._accumulators = kept(".grad") if period > 1 else {}
        self.scheduler = Scheduler(streams, reorder=False)  # marks tell what was computed before them
        usage = BufferUsage.WEIGHTS if len(used) > 1 else BufferUsage.ANY
        for each in (contexts, controls):
            for place, context in each.items():
                memory.allocate(context, streams[place], usage, zeroed=True)
        for mark in self._marks:
            mark.set([self._sign])
        for name, value in values.items():
            self.parameters[name].set(value)

    def _written(self) -> list[Tensor]:
        """What files hold."""
        moments = [each for several in self._moments.values() for each in several]
        return [*self.parameters.values(), *moments, *self._accumulators.values()]

    def free(self) -> None:
        """Frees the memory of parameters, of the optimiser's state, and of graphs."""
        self._feeds.clear()
        self.scheduler.free()
        for context in self._owned:
            context.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    # -- computing ---------------------------------------------------------------------------------

    @one_thread_at_a_time
    def step(self, data: Any, labels: Any = None) -> float:
        """Learns from a batch, and returns its loss before that.

        Parameters change with the last batch of each period.  After another error, or an interrupt, the batch is either
        learned from and counted, or nothing has changed.  Only where a device stopped while it changed parameters, some
        of them have changed and the step counts; where it stopped while it added gradients, the period begins anew.
        Raises TrainingError if the loss is NaN or infinite; then the parameters may be, too.  ShapeError for a loss
        that is not one number.
        """
        self._settle()
        self._settings.set(self.optimiser.settings(self.steps))
        feed, inputs = self._prepared("learn" if self._ends_period() else "gather", _batch(data, labels))
        self._uncounted = True
        try:
            loss = float(feed(inputs)[0].item())
            self._count()
        except BaseException:
            self._settle()
            raise
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} in step {self.steps}",
                got=loss,
                remedy="a smaller alpha, clip, or a checkpoint from before",
            )
        return loss

    def _ends_period(self) -> bool:
        """Whether parameters change with the next batch."""
        return self._batches + 1 == self.period

    def _count(self) -> None:
        """Counts a batch that was computed.  It calls nothing, so an interrupt comes before all of it or after."""
        self._uncounted, self._sign = False, -self._sign
        self._batches += 1
        if self._batches == self.period:
            self._batches = 0
            self.steps += 1

    def _settle(self) -> None:
        """After an error, counts the batch if it was computed.

        If a part of it was computed, the gradients of the period are dropped.  A step then counts all the same: the
        corrections of AdamW stay those of its moments.  May itself be interrupted, and called again.
        """
        if not self._uncounted:
            return
        mark, *others = (float(each.numpy()[0]) for each in self._marks)
        if abs(mark) != 1 or any(each != mark for each in others):
            mark = -self._sign if self._ends_period() else self._sign
            for each in self._accumulators.values():
                each.set(np.zeros(each.shape, np.float32))
            if mark == self._sign:
                self._batches = 0
            for each in self._marks:
                each.set([mark])
        if mark == self._sign:
            self._uncounted = False
        else:
            self._count()

    def predict(self, data: Any) -> Array:
        """The outputs for some datapoints (ggml_opt_outputs)."""
        feed, inputs = self._prepared("predict", _batch(data, None))
        return feed(inputs)[0]

    def evaluate(self, dataset: Dataset, batch: int = 64) -> Result:
        """Loss and accuracy over a dataset, without learning (ggml_opt_eval)."""
        losses, right, labelled = [], 0, 0
        for each in dataset.batches(batch):
            feed, inputs = self._prepared("evaluate", each)
            loss, *outputs = feed(inputs)
            losses.append(float(loss.item()) * len(each.data))
            if outputs and each.labels is not None:
                has_label = each.labels.any(axis=-1)
                labelled += int(has_label.sum())
                right += int((has_label & (outputs[0].argmax(axis=-1) == each.labels.argmax(axis=-1))).sum())
        return Result(math.fsum(losses) / max(1, len(dataset)), right / labelled if labelled else None)

    def _counts(self, batch: Batch) -> bool:
        """Whether an evaluation compares outputs with labels: only then are they read."""
        return self.loss is cross_entropy and batch.labels is not None and batch.labels.ndim == 2

    def _prepared(self, what: str, batch: Batch) -> tuple[Feed, list[Array]]:
        """The graph that computes this for such a batch, made once, and its inputs."""
        inputs = [each for each in batch if each is not None]
        key = what, *((each.shape, each.dtype.str) for each in inputs)
        return self._feeds.of(key, lambda: Feed(self.scheduler, *self._graph(what, batch))), inputs

    def _graph(self, what: str, batch: Batch) -> tuple[Graph, list[Tensor], list[Tensor]]:
        inputs = [new_tensor(_type(each), each.shape[::-1]).set_input() for each in batch if each is not None]
        outputs = self.function(self.parameters, inputs[0])
        if what == "predict":
            return Graph(outputs.set_output()), inputs, [outputs]
        loss = self.loss(outputs, inputs[1] if len(inputs) > 1 else None)
        if loss.size != 1:
            raise ShapeError(f"a loss must be one number, got {loss!r}", tensor=loss, got=loss.shape)
        if loss.op is None or loss.is_view:
            loss = ops.cont(loss)  # it may lie in a parameter, and is read after that has changed
        loss.set_output()
        graph = Graph(loss, outputs, *inputs)  # a loss need not read the labels
        if what == "evaluate":
            return graph, inputs, [loss, outputs.set_output()] if self._counts(batch) else [loss]
        expansion = Expansion(graph, self.parameters.values())
        expansion.run({loss: ones(loss.ne)})
        gradients = {name: expansion.wanted(tensor) for name, tensor in self.parameters.items()}
        for mark in self._marks:
            graph.expand(ops.scale_inplace(mark, 2))
        if self.period > 1:
            gradients = {name: ops.add_inplace(self._accumulators[name], each) for name, each in gradients.items()}
            for each in gradients.values():
                graph.expand(each)
        if what == "learn":
            self._change(graph, {name: self._mean(each) for name, each in gradients.items()})
            for each in self._accumulators.values():
                graph.expand(ops.fill_inplace(each, 0.0))
        for mark in self._marks:
            graph.expand(ops.scale_inplace(mark, -0.5))
        return graph, inputs, [loss]

    def _mean(self, total: Tensor) -> Tensor:
        """The mean over the batches of a period."""
        return ops.scale(total, 1 / self.period) if self.period > 1 else total

    def _change(self, graph: Graph, gradients: Mapping[str, Tensor]) -> None:
        """Adds the optimiser's step by these gradients to a graph."""
        if self.clip:
            norm = ops.sqrt(_total([ops.sum(ops.sqr(ops.cont(each))) for each in gradients.values()]))
            # At most 1, also if all gradients are zero.
            factor = ops.clamp(ops.div(ops.scale(ones((1, 1, 1, 1)), self.clip), norm), 0.0, 1.0)
            gradients = {name: ops.mul(each, factor) for name, each in gradients.items()}
        # The last stream first: it has the last mark, so that fewer splits begin anew.
        for name in sorted(gradients, key=self._places.__getitem__, reverse=True):
            gradient = gradients[name]
            plain = gradient if gradient.nb[0] == 4 or gradient.ne[0] == 1 else ops.cont(gradient)
            graph.expand(self.optimiser.step(self.parameters[name], plain, self._moments[name], self._settings))

    # -- files -------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """What parameters of these names and shapes are of (default: nothing); checkpoints of others are refused."""
        return ""

    def values(self, tensor: Tensor) -> Array:
        """The values of a parameter or of the optimiser's state.  Raises TrainingError if one is NaN or infinite."""
        values = tensor.numpy()
        if not np.isfinite(values).all():
            raise TrainingError(
                f"{tensor.name!r} has values that are NaN or infinite after step {self.steps}",
                tensor=tensor,
                remedy="a smaller alpha, clip, or a checkpoint from before",
            )
        return values

    @one_thread_at_a_time
    def save(self, path: str | Path) -> None:
        """Writes a checkpoint as GGUF: parameters by their names, and all that training goes on from bit for bit.

        The file is complete, or stays as it was.  Raises TrainingError for values that are NaN or infinite, OSError.
        """
        self._settle()
        with GGUFWriter(path, arch=ARCHITECTURE) as writer:
            writer.add("training.steps", self.steps)
            writer.add("training.batches", self._batches)
            writer.add("training.period", self.period)
            if self.identity:
                writer.add(IDENTITY, self.identity)
            for key, values in as_metadata(self.epochs).items():
                writer.add(key, values, (ValueType.ARRAY, ValueType.FLOAT64))
            for tensor in self._written():
                writer.add_tensor(tensor.name, self.values(tensor))

    @one_thread_at_a_time
    def load(self, path: str | Path) -> None:
        """Continues from a checkpoint; a period begins anew if the checkpoint is in the midst of one of another length.

        Raises ModelError if it is no checkpoint, or that of other parameters or of another :attr:`identity`, and
        GGUFError.  After any error, nothing has changed.
        """
        self._settle()
        with GGUFReader(path) as reader:
            steps, batches = (_count_in(reader, key) for key in ("training.steps", "training.batches"))
            period = _count_in(reader, "training.period") if "training.period" in reader.metadata else self.period
            if period != self.period or batches >= period:
                batches = 0
            epochs = from_metadata(reader.metadata)
            gradients = {each.name for each in self._accumulators.values()} if not batches else ()
            written = self._written()
            values = [
                np.zeros(tensor.shape, np.float32) if tensor.name in gradients else _array_in(reader, tensor)
                for tensor in written
            ]
            self._check(reader)
            before = [tensor.numpy() for tensor in written]
            try:
                for tensor, value in zip(written, values, strict=True):
                    tensor.set(value)
                self.steps, self._batches, self.epochs = steps, batches, epochs
            except BaseException:
                for tensor, value in zip(written, before, strict=True):
                    tensor.set(value)
                raise

    def _check(self, reader: GGUFReader) -> None:
        """Raises ModelError for a checkpoint of more parameters, or of another identity; older ones have none."""
        known = self.parameters.keys()
        other = next((each for each in reader.tensors if not {each, each.rpartition(".")[0]} & known), None)
        if other is not None:
            raise ModelError(
                f"{reader.path} has {other!r}, which is no parameter of this training",
                got=other,
                wanted=tuple(known),
                remedy="train what the checkpoint is of, or begin with another file",
            )
        found = reader.metadata.get(IDENTITY, self.identity)
        if found != self.identity:
            raise ModelError(
                f"{reader.path} is a checkpoint of another training: {found!r:.200}, not {self.identity!r:.200}",
                got=found,
                wanted=self.identity,
                remedy="go on with the model and the settings that it was begun with, or begin with another file",
            )


def _count_in(reader: GGUFReader, key: str) -> int:
    found = reader.metadata.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ModelError(
            f"{reader.path} is no checkpoint of a training: {key} must be an integer from 0 on, got {found!r:.100}",
            got=found,
        )
    return found


def _array_in(reader: GGUFReader, tensor: Tensor) -> Array:
    info = reader.tensors.get(tensor.name)
    if info is None or info.shape != tensor.shape or info.type is not tensor.type:
        raise ModelError(f"{reader.path} has no {tensor.name!r} of the shape {tensor.shape}", tensor=tensor)
    return reader.array(info)


def _values(parameters: Mapping[str, Any], suffixes: Sequence[str]) -> dict[str, Array]:
    """Initial values as F32; with ``suffixes``, the names are those of tensors in files, too."""
    if not parameters:
        raise ParameterError("a training needs a parameter or more, got none")
    found: dict[str, Array] = {}
    owners: dict[str, str] = {}
    for name, given in parameters.items():
        for each in (name, *(f"{name}.{suffix}" for suffix in suffixes)):
            if len(utf8(each)) > MAX_NAME_BYTES:
                raise ParameterError(
                    f"the parameter {name!r}: {each!r} is longer than {MAX_NAME_BYTES} bytes", got=name
                )
            if each in owners:
                raise ParameterError(
                    f"the parameters {owners[each]!r} and {name!r} both need the name {each!r}", got=name
                )
            owners[each] = name
        try:
            found[name] = as_values(given).astype(np.float32)
        except (GGPlugError, TypeError, ValueError) as error:
            kind = type(error) if isinstance(error, GGPlugError) else TypeMismatchError
            raise kind(f"the parameter {name!r}: {error}", got=type(given)) from None
        if not 1 <= found[name].ndim <= MAX_RANK:
            raise ShapeError(
                f"the parameter {name!r} must have 1 to {MAX_RANK} extents, got the shape {found[name].shape}",
                got=found[name].shape,
            )
    return found


def _places(
    names: Iterable[str], placement: Mapping[str, Backend | Device], streams: Sequence[Backend | Device]
) -> dict[str, int]:
    """For each parameter the number of the stream on which it lies."""
    numbers: dict[str, int] = {}
    for pattern, where in placement.items():
        same = [where in (stream, getattr(stream, "device", None)) for stream in streams]
        if not any(same):
            raise ParameterError(
                f"the placement of {pattern!r} is {where!r}, which is none of the backends {streams}", got=where
            )
        numbers[pattern] = same.index(True)
    places = {name: next((pattern for pattern in placement if fnmatchcase(name, pattern)), None) for name in names}
    for pattern in placement:
        if pattern not in places.values():
            raise ParameterError(f"{pattern!r} is the first pattern of no parameter; they are {[*places]}", got=pattern)
    return {name: 0 if pattern is None else numbers[pattern] for name, pattern in places.items()}


def _total(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = ops.add(total, term)
    return total


def _batch(data: Any, labels: Any) -> Batch:
    found = Dataset(data, labels)
    return Batch(found.data, found.labels)


def _type(array: Array) -> str:
    return "i32" if array.dtype.kind == "i" else "f32"
