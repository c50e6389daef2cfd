"""What is said and what is left when an id is out of range: the same on every device."""

from __future__ import annotations

import numpy as np
import pytest

import ggplug as gg
from ggplug.backend import Device
from ggplug.errors import ComputeError, TensorStateError


@pytest.fixture(params=["CPU", "OpenCL0"])
def device(request: pytest.FixtureRequest) -> Device:
    try:
        return gg.device(request.param)
    except gg.DeviceNotFoundError:
        pytest.skip(f"there is no {request.param} here")


def ids_of(values: list[int], name: str = "") -> gg.Tensor:
    return gg.tensor(np.array(values, np.int32), name=name)


def test_the_error_of_an_id_names_the_tensors_the_position_and_the_limit(device: Device) -> None:
    context = gg.Context()
    table = context.new_tensor("f32", (4, 10), "token_embd")
    gg.allocate(context, device)
    with context:
        table.set(np.ones((10, 4)))
        ids = ids_of([3, 1, 50, 60], "user_ids")
        words = r"the id 50 at \[2\] of 'user_ids'.* less than 10, ne1 of 'token_embd'"
        with pytest.raises(ComputeError, match=words) as seen:
            gg.compute(gg.get_rows(table, ids), backends=[device])
        error = seen.value
        assert (error.got, error.wanted, error.position) == (50, 10, (2,))
        assert error.ids is ids
        assert error.indexed is table


def test_the_position_counts_in_both_dimensions_of_the_ids(device: Device) -> None:
    context = gg.Context()
    experts = context.new_tensor("f32", (4, 3, 2), "experts")
    x = context.new_tensor("f32", (4, 1, 3))
    chosen = context.new_tensor("i32", (2, 3))
    gg.allocate(context, device)
    with context:
        for tensor in (experts, x):
            tensor.set(1)
        chosen.set([[0, 1], [1, 0], [7, -1]])
        with pytest.raises(ComputeError, match=r"the id 7 at \[2, 0\] of 'ids'") as seen:
            gg.compute(gg.mul_mat_id(experts, x, chosen), backends=[device])
        assert seen.value.position == (2, 0)


def test_what_a_failed_computation_wrote_is_what_the_error_says(device: Device) -> None:
    context = gg.Context()
    cache, table = context.new_tensor("f32", (4, 8), "kv"), context.new_tensor("f32", (4, 10), "table")
    gg.allocate(context, device)
    with context, gg.Scheduler([device]) as scheduler:
        cache.set(-1)
        table.set(1)
        rows = gg.get_rows(table, ids_of([3, 50])).set_output()
        stored = gg.set_rows(cache, rows, ids_of([0, 1]))
        with pytest.raises(ComputeError, match="what nodes wrote into persistent tensors stays written"):
            scheduler.compute(gg.Graph(stored))
        assert cache.numpy()[:3, 0].tolist() == [1, 0, -1]
        with pytest.raises(TensorStateError, match="has no value, its computation failed: ComputeError"):
            rows.numpy()
        scheduler.compute(gg.Graph(gg.scale(cache, 2.0).set_output()))
