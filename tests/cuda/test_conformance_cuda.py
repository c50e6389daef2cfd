"""The CUDA device conforms, on a stand-in for CuPy whose kernels run on the processor."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug_models.weights.placement import alternating
from ggplug_testing import BackendSuite
from ggplug_testing.contracts import CLAUSES
from ggplug_testing.vectors import Recording, replay, report

pytest.importorskip("ggplug_cuda")

from cupy_stand_in import Gpu, StandIn, can_run
from cupy_stand_in.registration import devices

if not can_run():
    pytest.skip("install ziglang", allow_module_level=True)

IDS = [[2, 9, 33, 120, 7, 3], [2, 250, 11, 3]]


@functools.cache
def cuda() -> StandIn:
    """Two GPUs for all tests, so that each program is compiled once."""
    return StandIn(Gpu(), Gpu(pci=(0, 2, 0), peers=frozenset({0})))


@functools.cache
def gpus() -> Sequence[Device]:
    return devices(cuda())


@pytest.fixture
def device() -> Device:
    return gpus()[0]


@pytest.fixture(autouse=True)
def _no_mistakes() -> Iterator[None]:
    yield
    cuda().verify()
    cuda().forget()


COMPILES_EVERY_KERNEL = "every op of a held stream keeps its order"
"""The clause that takes most of a minute; ``nox -s long`` has it."""


class TestContract(BackendSuite):
    """What takes seconds: the contract, and graphs of many ops."""

    test_op = None
    test_groups = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "clause" in metafunc.fixturenames:
            long = {COMPILES_EVERY_KERNEL: [pytest.mark.long]}
            each = [pytest.param(clause, id=clause.name, marks=long.get(clause.name, [])) for clause in CLAUSES]
            metafunc.parametrize("clause", each)

    @pytest.fixture
    def device(self) -> Device:
        return gpus()[0]


# Some hundred kernels are compiled, which takes a minute or more.
@pytest.mark.long
class TestCuda(BackendSuite):
    test_contract = None
    test_graphs = None

    @pytest.fixture
    def device(self) -> Device:
        return gpus()[0]


@pytest.mark.long
def test_recorded_cases_of_ggml_pass(device: Device, shared: Path | None, data: Path) -> None:
    file = data / "ggml_ops_compact.npz" if shared is None else shared / "vectors" / "ggml_ops.npz"
    found = report(replay(Recording(file), device))
    assert found["failed"] == []
    assert found["passed"] >= (100 if shared is None else 501)


def test_a_model_gives_the_cpus_result_on_one_device_and_with_alternating_layers(data: Path) -> None:
    pytest.importorskip("ggplug_cpu")
    cpu = gg.device("CPU")
    with ggplug_models.load(data / "bert.gguf", [cpu]) as model:
        wanted = model.embed_ids(IDS)
    for chosen, placement in (([gpus()[0]], None), ([gpus()[0], cpu], alternating), ([*gpus(), cpu], alternating)):
        with ggplug_models.load(data / "bert.gguf", chosen, placement=placement) as model:
            first, again = model.embed_ids(IDS), model.embed_ids(IDS)
        # Weights of blocks and halves meet activations of ten bits of mantissa: see ggplug_simt.kernels.matrix.
        np.testing.assert_allclose(first, wanted, rtol=0, atol=5e-4)
        np.testing.assert_array_equal(first, again)
