"""The example backend of docs/write-a-backend.md is found, conforms, and takes part in a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from example_backends import example_device

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug_testing import BackendSuite


@pytest.fixture(scope="module")
def blas() -> Iterator[Device]:
    with example_device("ggplug-blas", "BLAS") as device:
        yield device


class TestBlas(BackendSuite):
    @pytest.fixture
    def device(self, blas: Device) -> Device:
        return blas


def test_the_scheduler_gives_it_large_products_and_the_rest_to_the_cpu(blas: Device) -> None:
    rng = np.random.default_rng(7)
    w, x = rng.standard_normal((48, 64)), rng.standard_normal((40, 64))
    product = gg.mul_mat(gg.tensor(w), gg.tensor(x), name="product")
    result = gg.soft_max(product, name="result").set_output()
    graph = gg.Graph(result)
    scheduler = gg.Scheduler([blas.init(), gg.device("CPU").init()])
    scheduler.compute(graph)
    where = {row.name: row.device for row in scheduler.explain(graph).rows}
    assert where == {"product": "BLAS", "result": "CPU"}
    wanted = np.exp(x @ w.T)
    np.testing.assert_allclose(result.numpy(), wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-4)


def test_it_declines_products_of_few_columns_with_the_reason(blas: Device) -> None:
    few = gg.mul_mat(gg.new_tensor("f32", (64, 48)), gg.new_tensor("f32", (64, 4)))
    answer = blas.supports_op(few)
    assert not answer
    assert "4 columns" in answer.reason


def test_it_runs_minilm_beside_the_cpu_with_the_references_cosines(
    blas: Device, minilm: Any, minilm_reference: dict[str, Any]
) -> None:
    with ggplug_models.load(minilm("F32"), [blas.name, "CPU"]) as model:
        found, wanted = model.embed(minilm_reference["texts"][:6]), minilm_reference["embeddings"][:6]
    cosines = np.sum(found * wanted, -1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(wanted, axis=-1)
    assert cosines.min() >= 0.99999
