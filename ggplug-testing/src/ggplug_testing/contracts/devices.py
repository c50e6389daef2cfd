"""The contract of devices: their descriptions, and the nodes and memories that they support."""

from __future__ import annotations

from ggplug.backend import Accept, Capabilities, Decline, Group, signature_of
from ggplug.errors import GGPlugError, ParameterError
from ggplug.host import HOST
from ggplug.ops.base import OPS, Op, apply
from ggplug.ops.copy import cont
from ggplug.ops.views import permute, reshape, transpose, view
from ggplug.sketches import EXTENTS, Outlines, first_sketch, maker
from ggplug.tensor import Tensor, like
from ggplug.types import DeviceKind
from ggplug_testing.contracts.clause import NotOffered, affordable, alloc_for, expect, expect_raises
from ggplug_testing.contracts.given import Given, clause
from ggplug_testing.contracts.sample import Sample, square
from ggplug_testing.running.placement import Placement


def foreign_node(x: Tensor) -> Tensor:
    """A node of an op that no device knows: its class is removed from the list of ops after the node was made."""
    name = "ggplug_testing.unknown"
    space = {"name": name, "result": lambda self, x: like(x), "__doc__": "An op that no device has."}
    cls: type[Op] = type("Unknown", (Op,), space)
    del OPS[name]
    return apply(cls(), (x,))


@clause
def a_device_describes_itself(given: Given) -> None:
    """A device has name, description and kind; ``memory`` is None or two consistent numbers; ``props`` agrees."""
    device = given.device
    expect(isinstance(device.name, str) and device.name, "a device has a name")
    expect(isinstance(device.description, str) and device.description, "a device has a description")
    expect(isinstance(device.kind, DeviceKind), f"kind must be a DeviceKind, got {device.kind!r}")
    expect(
        isinstance(device.capabilities, Capabilities), f"capabilities must be Capabilities, got {device.capabilities!r}"
    )
    free, total = device.memory()
    for value in (free, total):
        expect(value is None or (isinstance(value, int) and value >= 0), f"memory must be bytes or None, got {value!r}")
    expect(free is None or total is None or free <= total, f"free memory {free} exceeds the total {total}")
    props = device.props()
    expect(props.name == device.name and props.kind is device.kind, "props says what the device says")
    expect(props.device_id == device.device_id, "props has the device id")
    if device.registration is not None:
        listed, again = list(device.registration.devices()), list(device.registration.devices())
        expect(any(each is device for each in listed), "the registration lists the device")
        expect(all(a is b for a, b in zip(listed, again, strict=True)), "devices are always the same objects")


@clause
def every_answer_has_its_reason(given: Given) -> None:
    """``supports_op`` returns Accept or a Decline with a reason, the same one each time; views are always accepted."""
    device, x = given.device, square("x")
    for shown in (reshape(x, 64, 16), view(x, 8, 8, nb=(128,)), permute(x, 1, 0), transpose(x)):
        expect(device.supports_op(shown), f"view ops are supported, {shown!r} is not")
    node = foreign_node(x)
    answer = device.supports_op(node)
    expect(isinstance(answer, Decline), f"an op that no device knows is declined, got {answer!r}")
    expect(getattr(answer, "reason", ""), "a Decline has a reason")
    expect(device.supports_op(node) == answer, "supports_op returns the same for the same node")
    expect(isinstance(device.supports_op(Sample(device).y), Accept), "a yes is an Accept")


@clause
def support_depends_on_the_node_alone(given: Given) -> None:
    """``supports_op`` and ``match`` of equal nodes are equal, whether or not their sources have places."""
    device = given.device
    sample = Sample(device)
    before = device.supports_op(sample.y)
    found = [isinstance(device.match(Group((each.y,))), Decline) for each in (sample, sample, Sample(device))]
    expect(found == [not before] * 3, "match() returns the same for equal groups each time")
    with Given(device) as own:
        own.buffer(size=affordable(device, 1 << 22))
        own.sample().compute(own.stream())
        expect(device.supports_op(sample.y) == before, "a computation does not change what supports_op returns")
        now = isinstance(device.match(Group((sample.y,))), Decline)
        expect(now is not bool(before), "match() returns the same while memory is in use")
    expect(device.supports_op(Sample(device).y) == before, "supports_op returns the same for equal nodes")


@clause
def support_goes_by_nothing_but_the_signature(given: Given) -> None:
    """``match`` still accepts a node when its tensors have names or places, or are results of other nodes."""
    device = given.device
    for op in OPS.values():
        sketch = first_sketch(op)
        make = None if sketch is None or op.is_view else maker(op, sketch, EXTENTS, sketch.layouts())
        if make is None or not device.supports_op(make(Outlines())):
            continue
        named, placed = make(Outlines()), make(Outlines())
        for tensor in (named, *_sources(named)):
            tensor.name = "blk.0.the quick brown fox jumps over the lazy dog.weight"
        computed = _of_results(make(Outlines()))
        with Given(device) as own:
            for source in {each.root for each in _sources(placed)}:
                source.place(own.use(alloc_for(given.kind, source)), 0)
            for node, what in ((named, "have names"), (placed, "lie in its memory"), (computed, "are results")):
                answer = Accept() if node is None else device.match(Group((node,)))
                reason = answer.reason if isinstance(answer, Decline) else ""
                expect(not reason, f"{op.name} is supported, and declined if its tensors {what}: {reason}")


def _of_results(node: Tensor) -> Tensor | None:
    """The same node of sources that are computed, or None where its signature would be another one."""
    assert node.op is not None
    try:
        found = apply(node.op, tuple(None if each is None else cont(each) for each in node.src))
    except GGPlugError:  # it takes leafs only
        return None
    return found if signature_of(found) == signature_of(node) else None


def _sources(node: Tensor) -> list[Tensor]:
    return [each for each in node.src if each is not None]


@clause
def a_device_works_in_its_own_memory(given: Given) -> None:
    """``supports_buffer_type`` is true for the device's own types; host memory only if it is in the tensors' layout."""
    device = given.device
    for kind in (device.buffer_type, *device.extra_buffer_types):
        expect(device.supports_buffer_type(kind), f"a device works in the memory that it offers, {kind.name}")
    if device.supports_buffer_type(HOST):
        sample, stream = Sample(device), given.stream()
        placement = given.use(Placement(sample.graph, HOST))
        placement.write_all(sample.inputs(1))
        stream.compute(sample.graph, placement.allocation)
        stream.synchronize()
        sample.check(placement.read(sample.y), 1, "computed in host memory")


@clause
def parameters_that_a_stream_does_not_have_are_refused(given: Given) -> None:
    """``init`` raises ParameterError for a parameter that the device does not have."""
    with expect_raises(ParameterError, "a stream with a parameter that no device has"):
        given.device.init(no_device_has_this_parameter=1)


@clause
def memory_that_is_freed_is_free_again(given: Given) -> None:
    """``free`` gives memory back: where a device counts it, ``memory`` reports less while a buffer is there, and
    then as much as before."""
    device = given.device
    size, counted = affordable(device, 3 << 20), []
    for _ in range(3):
        before = device.memory().free
        with given.kind.alloc(size):
            during, total = device.memory()
            expect(during is None or total is None or during <= total, f"{during} bytes of {total} are free")
        after = device.memory().free
        if before is None or during is None or after is None or not size <= before - during < 2 * size:
            raise NotOffered("the device does not report memory in use")  # other processes use its memory, too
        counted.append(before - after)
    expect(min(map(abs, counted)) < size, f"{size} bytes that were freed are not free again: {counted[0]} are missing")
