"""``copy`` and ``pickle`` copy values, and refuse what holds memory, handles or locks of this process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import ggplug as gg
from ggplug import errors
from ggplug.errors import SerializationError, TensorStateError
from ggplug.host import HOST, HostBufferType
from ggplug.memory import GraphAllocator, TensorAllocator
from ggplug.scheduler.feed import Feed
from ggplug.tensor import Spec


def sent(thing: Any) -> Any:
    """What another process would get."""
    return pickle.loads(pickle.dumps(thing))


COPIES = [copy.copy, copy.deepcopy, sent]


@pytest.mark.parametrize("kind", sorted(errors.__all__))
def test_an_error_is_sent_with_what_belongs_to_no_process(kind: str) -> None:
    node = gg.neg(gg.tensor(np.ones(3, np.float32)))
    error = getattr(errors, kind)("it fails", remedy="do this", tensor=node, got=[(3, "x")], device=gg.device("CPU"))
    found = sent(error)
    assert (type(found), str(found)) == (type(error), "it fails (do this)")
    assert (found.tensor, found.device, found.got) == (repr(node), repr(error.device), [(3, "x")])
    assert found.fields.keys() == error.fields.keys()


def test_an_error_in_a_process_of_a_pool_is_raised_by_its_result() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(TensorStateError, match="has no bytes"):
                pool.submit(fails).result()


def fails() -> None:
    gg.neg(gg.tensor(np.ones(3, np.float32))).numpy()


@pytest.mark.parametrize("made", COPIES)
@pytest.mark.parametrize("type", ["f32", "bf16", "q4_0", "i32"])
def test_a_copied_tensor_has_its_values_in_memory_of_its_own(made: Callable[[gg.Tensor], gg.Tensor], type: str) -> None:
    values = np.arange(64).reshape(2, 32)
    tensor = gg.tensor(values, type, name="x").set_input()
    copied = made(tensor)
    assert copied is not tensor
    assert copied.buffer is not tensor.buffer
    assert (copied.name, copied.type, copied.shape, copied.flags) == ("x", tensor.type, (2, 32), tensor.flags)
    assert copied.tobytes() == tensor.tobytes()
    copied.set(0)
    assert tensor.numpy()[1, 31] != 0
    assert tensor.buffer is not None
    tensor.buffer.free()
    assert not copied.numpy().any()


@pytest.mark.parametrize("made", COPIES)
def test_read_only_strided_and_empty_tensors_are_copied(
    made: Callable[[gg.Tensor], gg.Tensor],
) -> None:
    array = np.arange(6, dtype="f")
    array.flags.writeable = False
    assert made(gg.tensor(array, copy=False)).set(1).numpy().sum() == 6
    assert not array[0]
    strided = gg.Tensor(Spec(gg.F32, (3, 2, 1, 1), 2, (4, 16, 32, 32)))
    strided.place(HOST.alloc(strided.nbytes))
    strided.set([[0, 1, 2], [3, 4, 5]])
    copied = made(strided)
    assert copied.nb == strided.nb
    assert copied.numpy().tolist() == strided.numpy().tolist()
    assert made(gg.tensor(np.empty((0, 3), "f"))).shape == (0, 3)


def test_tensors_that_are_the_same_are_so_in_a_copy() -> None:
    tensor = gg.tensor([1.0, 2.0])
    first, second = copy.deepcopy([tensor, tensor])
    assert first is second


def doubled(tensor: gg.Tensor) -> gg.Tensor:
    return gg.tensor(gg.compute(gg.scale(tensor, 2.0)).numpy())


def test_a_pool_of_processes_takes_and_returns_tensors() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(doubled, gg.tensor([1.0, 2.0])).result().numpy().tolist() == [2, 4]


class OwnLayout(HostBufferType):
    """Memory whose bytes only whole tensors convert."""

    has_own_layout = True


def others() -> dict[str, Any]:
    device = gg.device("CPU")
    x = gg.tensor([1.0, 2.0])
    y = gg.scale(x, 2.0).set_output()
    graph = gg.Graph(y)
    scheduler = gg.Scheduler([device])
    scheduler.compute(graph)
    allocator = GraphAllocator([HOST])
    stream = scheduler.backends[0]
    packed = gg.new_tensor("f32", 2)
    packed.place(OwnLayout("own").alloc(8))
    assert x.buffer is not None
    return {
        "a buffer": x.buffer,
        "a result": y,
        "a view": gg.view(x, (1,)),
        "a leaf without a place": gg.new_tensor("f32", 2),
        "a tensor in memory with a layout of its own": packed,
        "a graph": graph,
        "a context": gg.Context("weights"),
        "a scheduler": scheduler,
        "a run": graph.run,
        "an allocation": allocator.allocate(graph),
        "a graph allocator": allocator,
        "a tensor allocator": TensorAllocator(x.buffer),
        "a stream": stream,
        "a plan": stream.plan(graph),
        "an event": device.event(),
        "a feed": Feed(scheduler, graph, [], [y]),
    }


@pytest.mark.parametrize("made", COPIES)
def test_what_holds_memory_handles_or_locks_is_not_copied(made: Callable[[Any], Any]) -> None:
    for what, thing in others().items():
        with pytest.raises(SerializationError, match="cannot be copied or sent to another process") as seen:
            made(thing)
        assert isinstance(seen.value, TypeError)
        assert seen.value.got is thing, what
        assert seen.value.remedy


def test_a_tensor_without_a_value_is_not_copied() -> None:
    context = gg.Context("weights")
    tensor = context.new_tensor("f32", 2, "w")
    gg.allocate(context, gg.device("CPU"))
    with pytest.raises(TensorStateError, match=r"'w'.* has no value"):
        copy.deepcopy(tensor)
    assert copy.deepcopy(tensor.set([1, 2])).numpy().tolist() == [1, 2]


def test_a_device_and_its_kinds_of_memory_are_one_object_however_they_are_copied() -> None:
    device = gg.device("CPU")
    for thing in (device, device.buffer_type, device.registration, HOST):
        assert copy.copy(thing) is thing
        assert copy.deepcopy([thing])[0] is thing
        with pytest.raises(SerializationError, match="cannot be sent to another process"):
            pickle.dumps(thing)
