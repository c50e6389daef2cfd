"""Tensors without elements have values like all others: none, in their shape and type."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug import types
from ggplug.backend import BufferType
from ggplug.host import HOST
from ggplug.types import BF16, F32, Type
from ggplug_testing import FakeDevice

KINDS = [pytest.param(HOST, id="host"), pytest.param(FakeDevice().buffer_type, id="device")]


def extents(type: Type) -> list[tuple[int, ...]]:
    """Nothing in each dimension, of every rank that has dimensions."""
    found: list[tuple[int, ...]] = []
    for rank in range(1, 5):
        full = (2 * type.block_size, 3, 2, 2)[:rank]
        found += [tuple(0 if i == d else n for i, n in enumerate(full)) for d in range(rank)]
    return [*found, (0,) * 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type", types.TYPES, ids=lambda type: type.name)
def test_no_values_go_in_and_come_out(type: Type, kind: BufferType) -> None:
    for ne in extents(type):
        tensor = gg.new_tensor(type, ne)
        tensor.place(kind.alloc(kind.alignment), kind.alignment)
        got = tensor.numpy()
        assert (got.shape, got.dtype) == (ne[::-1], np.float32 if type.is_quantized or type is BF16 else type.dtype)
        assert tensor.tobytes() == b""
        for values in (np.empty(ne[::-1]), np.empty(ne[::-1], np.int64), 1, 1.5, got):
            assert tensor.set(values) is tensor
        assert tensor.set_bytes(b"") is tensor
        with pytest.raises(gg.ShapeError, match="do not fit"):
            tensor.set_bytes(b"\0")
        with pytest.raises(gg.ShapeError, match="cannot set"):
            tensor.set(np.empty((0, 9)))
        with pytest.raises(gg.ShapeError, match="has 0 elements, not one"):
            tensor.item()


@pytest.mark.parametrize("type", types.TYPES, ids=lambda type: type.name)
def test_no_values_are_shared_and_made_tensors(type: Type) -> None:
    for ne in extents(type):
        tensor = gg.tensor(np.empty(ne[::-1], np.float32), type)
        assert (tensor.type, tensor.shape) == (type, ne[::-1])
        shared = gg.asarray(tensor)
        assert shared.size == 0
        assert shared.dtype == type.dtype
        if not type.is_quantized:
            assert shared.shape == ne[::-1]


def test_views_without_elements_have_none() -> None:
    root = gg.tensor(np.ones((3, 64), np.float32), "q8_0")
    plain = gg.tensor(np.ones((3, 4), np.float32))
    for view, shape in (
        (gg.view(root, 0), (0,)),
        (gg.view(root, 32, 0, nb=(68,), offset=68), (0, 32)),
        (gg.view(plain, 4, 0, nb=(16,), offset=48), (0, 4)),
        (gg.transpose(gg.view(plain, 0, 3, nb=(16,))), (0, 3)),
        (gg.permute(gg.view(plain, 4, 0), 2, 0, 1), (4, 1, 0)),
    ):
        assert view.numpy().shape == shape
        assert view.set(np.empty(shape)) is view
    assert (plain.numpy() == 1).all()


def test_a_shared_array_without_elements() -> None:
    tensor = gg.tensor(np.empty((3, 0), np.float32), copy=False)
    assert tensor.type is F32
    assert tensor.numpy().shape == (3, 0)


def test_one_value_is_an_item_several_are_not() -> None:
    assert gg.tensor(2.5).item() == 2.5
    assert gg.tensor([[3]]).item() == 3
    with pytest.raises(gg.ShapeError, match="has 2 elements, not one"):
        gg.tensor([1, 2]).item()
    with pytest.raises(gg.ShapeError, match="has 32 elements"):
        gg.tensor(np.ones(32, np.float32), "q8_0").item()


@pytest.mark.parametrize("type", types.TYPES, ids=lambda type: type.name)
def test_a_tensor_without_elements_may_have_as_many_rows_as_an_array(type: Type) -> None:
    tensor = gg.new_tensor(type, (0, 2**53))
    tensor.place(HOST.alloc(0))
    assert tensor.numpy().shape == (2**53, 0)
    assert gg.asarray(tensor).size == 0
    with pytest.raises(gg.ShapeError, match="must be less than"):
        gg.new_tensor(type, (0, 2**54))
