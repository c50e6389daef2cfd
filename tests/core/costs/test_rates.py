"""Times that were measured: what they say about other work, and how they are kept."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

import ggplug as gg
from ggplug.costs import kept
from ggplug.costs.kept import keep, path_of, rates_of
from ggplug.costs.measuring import measure, measure_copies
from ggplug.costs.rates import Rates
from ggplug.costs.work import Work, work_of
from ggplug.host import HOST
from ggplug_testing import FakeDevice, ReferenceDevice


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring a kernel takes less than a millisecond."""
    monkeypatch.setattr("ggplug.costs.measuring.SECONDS", 0.5)
    monkeypatch.setattr("ggplug.costs.measuring.LONG", 0.0)


def leaf(*ne: int, type: str = "f32") -> gg.Tensor:
    return gg.new_tensor(type, ne)


def kernel(what: str, flops: int, nbytes: int, ne: str = "") -> Work:
    """The work of a kernel; without extents, those of the same size are the same."""
    return Work(what, flops, nbytes, ne or f"{flops},{nbytes}")


def test_the_work_of_a_node_is_its_op_its_types_and_its_cost() -> None:
    product = work_of([gg.mul_mat(leaf(64, 10, type="f16"), leaf(64, 5))])
    extents = "64x10x1x1,64x5x1x1,10x5x1x1"
    assert product == ("mul_mat f16,f32 f32", 2 * 64 * 10 * 5, 2 * 640 + 4 * 320 + 4 * 50, extents)
    assert work_of([gg.cont(gg.transpose(leaf(4, 2)))]).what == "cont f32* f32"
    assert work_of([gg.soft_max(leaf(4))]).what == "soft_max f32,-,- f32"


def test_a_group_moves_what_it_reads_and_its_last_result() -> None:
    w, x = leaf(64, 10), leaf(64, 5)
    product = gg.mul_mat(w, x)
    result = gg.silu(product)
    assert work_of([product, result])[:3] == ("mul_mat+silu f32,f32 f32", 6400 + 50, 4 * (640 + 320 + 50))
    assert work_of([product, result]).ne == work_of([product]).ne


def test_a_kernel_that_was_measured_takes_what_it_took() -> None:
    rates = Rates()
    rates.note(kernel("add f32,f32 f32", 100, 1200), 5e-6)
    assert rates.kernel(kernel("add f32,f32 f32", 100, 1200)) == pytest.approx(5e-6)


def test_kernels_of_the_same_size_and_other_extents_are_told_apart() -> None:
    rates = Rates()
    wide, tall = (kernel("norm f32 f32", 4096, 32768, ne) for ne in ("4096x1", "1x4096"))
    rates.note(wide, 9e-6)
    rates.note(tall, 3e-6)
    assert (rates.kernel(wide), rates.kernel(tall)) == (9e-6, 3e-6)


def test_a_kernel_that_was_measured_is_not_predicted_by_a_larger_one_that_took_less_time() -> None:
    rates = Rates()
    small, large = kernel("norm f32 f32", 100, 800), kernel("norm f32 f32", 200, 1600)
    rates.note(small, 9e-6)
    rates.note(large, 3e-6)
    assert rates.kernel(small) == 9e-6


def test_a_larger_kernel_takes_longer_and_a_smaller_one_at_least_a_launch() -> None:
    rates = Rates()
    rates.note_split(1e-5, 1e-6)
    rates.note(kernel("add f32,f32 f32", 1000, 12000), 5e-6)
    assert rates.kernel(kernel("add f32,f32 f32", 10000, 120000)) == pytest.approx(1e-6 + 4e-6 * 10, rel=1e-2)
    assert rates.kernel(kernel("add f32,f32 f32", 1, 12)) == pytest.approx(1e-6, rel=0.01)


def test_the_same_op_with_other_types_says_more_than_another_op() -> None:
    rates = Rates()
    rates.note(kernel("mul_mat f16,f32 f32", 1000, 1000), 3e-6)
    rates.note(kernel("add f32,f32 f32", 1000, 1000), 1e-6)
    assert rates.kernel(kernel("mul_mat q8_0,f32 f32", 1000, 1000)) == pytest.approx(3e-6)
    assert rates.kernel(kernel("silu f32 f32", 1000, 1000)) is None
    assert rates.any_kernel(kernel("silu f32 f32", 1000, 1000)) is not None


def test_a_device_that_became_slower_is_noticed() -> None:
    rates, work = Rates(), kernel("add f32,f32 f32", 1000, 12000)
    for _ in range(20):
        rates.note(work, 1e-6)
    for _ in range(20):
        rates.note(work, 9e-6)
    assert rates.kernel(work) == pytest.approx(9e-6, rel=0.05)


def test_one_measurement_that_was_disturbed_changes_little() -> None:
    rates, work = Rates(), kernel("add f32,f32 f32", 1000, 12000)
    for seconds in (1e-6, 5e-3):
        rates.note(work, seconds)
    assert rates.kernel(work) == pytest.approx(1.25e-6)


def test_several_threads_may_note_times_while_another_lists_them() -> None:
    rates, errors, end = Rates(), [], threading.Event()

    def note() -> None:
        try:
            for i in range(4000):
                rates.note(Work(f"op{i % 1500} f32", 10, 10, str(i)), 1.0)
        except Exception as error:
            errors.append(error)

    def listed() -> None:
        try:
            while not end.is_set():
                rates.to_dict()
        except Exception as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        noting, listing = [threading.Thread(target=note) for _ in range(2)], threading.Thread(target=listed)
        for each in (*noting, listing):
            each.start()
        for each in noting:
            each.join()
        end.set()
        listing.join()
    finally:
        sys.setswitchinterval(before)
    assert not errors


def test_no_time_that_is_no_number_is_taken_over() -> None:
    rates, work = Rates(), kernel("add f32,f32 f32", 1000, 12000)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        rates.note(work, seconds)
    assert rates.kernel(work) is None


def test_copies_are_predicted_by_memory_and_size() -> None:
    rates = Rates()
    rates.note_copy("host", 1 << 20, 1e-3)
    rates.note_copy("host", 1 << 10, 1e-5)
    assert rates.copy("host", 1 << 22) == pytest.approx(4e-3, rel=1e-3)
    assert rates.copy("other", 1 << 20) is None
    assert rates.any_copy(1 << 20) == pytest.approx(1e-3)


def test_ops_splits_and_copies_of_a_device_are_measured_and_then_known() -> None:
    device, rates = ReferenceDevice("cpu"), Rates()
    with device.init() as stream:
        measure(stream, rates)
        assert rates.split is not None
        assert rates.split > 0
        assert rates.kernel(work_of([gg.add(leaf(16, 4), leaf(16, 4))])) is not None
    fake = FakeDevice("gpu")
    with fake.init() as stream:
        measure_copies(stream, fake.buffer_type, HOST, rates)
        changes = rates.changes
        measure_copies(stream, fake.buffer_type, HOST, rates)
    assert rates.changes == changes
    assert rates.copy(HOST.name, 1 << 16) is not None
    assert fake.used == 0


def test_a_device_that_declines_or_fails_is_measured_without_an_error() -> None:
    declining = FakeDevice("gpu", declines=lambda node: "nothing is built in")
    rates = Rates()
    with declining.init() as stream:
        measure(stream, rates)
    assert rates.split is None
    tiny, rates = FakeDevice("gpu", memory=1 << 10), Rates()
    with tiny.init() as stream:
        measure(stream, rates)
        measure_copies(stream, tiny.buffer_type, HOST, rates)
    assert tiny.used == 0


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a process that knows no times."""
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "_known", {})
    return tmp_path


def test_times_are_there_for_later_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = kernel("add f32,f32 f32", 1000, 12000)
    with ReferenceDevice("cpu").init() as stream:
        rates = rates_of(stream)
        rates.note_split(1e-5, 2e-6)
        rates.note(work, 5e-6)
        rates.note_copy("host", 100, 1e-5)
        keep(stream, rates)
        monkeypatch.setattr(kept, "_known", {})
        again = rates_of(stream)
    assert again is not rates
    assert again.to_dict() == rates.to_dict()
    assert (again.split, again.launch) == (1e-5, 2e-6)


def test_another_version_of_the_device_has_times_of_its_own(folder: Path) -> None:
    first, second = ReferenceDevice("cpu"), ReferenceDevice("cpu")
    second.description = "the same with another driver"
    with first.init() as one, second.init() as other:
        rates_of(one).note_split(1e-5, 1e-6)
        keep(one, rates_of(one))
        assert rates_of(other).split is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": 2, "device": DEVICE, "kernels": [], "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {"a": {"1": [1, 1, NaN]}}, "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {"a": {"1": [1, 1, -1]}}, "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {"a": {"1": [1, 1e999, 1]}}, "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {"a": {"1": [1]}}, "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {"a": [[1, 1, 1]]}, "copies": {}, "split": [1, 1, 0]}',
        '{"version": 2, "device": DEVICE, "kernels": {}, "copies": {}, "split": 1}',
        '{"version": 1, "device": DEVICE, "kernels": {}, "copies": {}, "split": [1, 1, 0]}',
    ],
)
def test_a_damaged_file_is_ignored(folder: Path, content: str) -> None:
    with ReferenceDevice("cpu").init() as stream:
        path = path_of(stream.device.identity)
        path.parent.mkdir()
        path.write_text(content.replace("DEVICE", json.dumps(stream.device.identity)))
        assert rates_of(stream).split is None


def test_a_link_in_place_of_the_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    with ReferenceDevice("cpu").init() as stream:
        path = path_of(stream.device.identity)
        path.parent.mkdir()
        target = tmp_path / "target"
        target.write_text("mine")
        path.symlink_to(target)
        keep(stream, Rates())
        assert target.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GGPLUG_CACHE_DIR", str(tmp_path / "file"))
    with ReferenceDevice("cpu").init() as stream:
        keep(stream, Rates())
