"""Steps of a model whose layers are on several devices are under way at the same time; the results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip
from oracles.packed import model_file

import ggplug as gg
import ggplug_models
from ggplug import trace
from ggplug.errors import ComputeError, ParameterError
from ggplug_models import LayerSplit, Outputs, Session
from ggplug_models.state.batching import divided
from ggplug_testing import FakeDevice

TEXT = [int(x) for x in np.random.default_rng(7).integers(3, 70, 90)]
MODELS = ("qwen3", "gemma3", "mamba", "falcon-h1", "mixtral")
"""A line of cells, rings, states, both, and experts."""

Results = list[Mapping[int, np.ndarray]]


def split(name: str, execution: str = "thread", **how: Any) -> Any:
    """A recorded model whose first layers are on a fake device, and the others on the CPU."""
    cpu = gg.device("CPU")
    fake = FakeDevice(execution=execution, order="shuffled", inner=cpu)  # type: ignore[arg-type]
    return ggplug_models.load(model_file(name), [fake, cpu], placement=LayerSplit(), **how)


def computed(session: Session) -> Results:
    """The results of prompts in pieces, of generated tokens, of a rewound and a new sequence."""
    results: Results = [session.decode({0: TEXT[:50], 1: TEXT[10:31], 3: TEXT[:17]})]
    results += [session.decode({seq: [TEXT[seq + step]] for seq in (0, 1, 3)}) for step in range(2)]
    session.rewind(40, 0)
    results.append(session.decode({0: TEXT[:20], 2: TEXT[40:75]}, Outputs.ALL))
    results.append(session.decode({2: TEXT[:12], 1: TEXT[:12]}, hidden=True))
    results.append({seq: np.array(session.tokens(seq)) for seq in range(session.n_seq)})
    return results


def same(found: Results, wanted: Results) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for seq, values in other.items():
            np.testing.assert_array_equal(one[seq], values)


@pytest.mark.parametrize(("name", "execution"), [("qwen3", "late"), *((name, "thread") for name in MODELS)])
def test_results_do_not_depend_on_how_many_steps_are_under_way(name: str, execution: str) -> None:
    with split(name, execution) as model:
        found = {}
        for n_copies in (1, 3):
            model.n_copies = n_copies
            with Session(model, 128, 4, "f32", micro_batch=12) as session:
                assert session.n_copies == n_copies
                found[n_copies] = computed(session)
    same(found[3], found[1])


def test_the_same_on_opencl_and_the_cpu() -> None:
    opencl = device_or_skip("OpenCL0")
    with ggplug_models.load(model_file("qwen3"), [opencl, "CPU"], placement=LayerSplit()) as model:
        with Session(model, 128, 4, micro_batch=12) as session:
            assert session.n_copies == 2
            found = computed(session)
        model.n_copies = 1
        with Session(model, 128, 4, micro_batch=12) as session:
            same(found, computed(session))


def test_it_is_used_where_several_devices_have_layers_and_there_is_more_than_one_step() -> None:
    def threads(decode: Callable[[Session], object], **how: Any) -> set[str]:
        """The threads that computed."""
        with split("qwen3", **how) as model, Session(model, 64, 2, micro_batch=8) as session:
            with trace.recording() as recording:
                decode(session)
            return {span.track for span in recording.spans if span.track.startswith("host")}

    def long(session: Session) -> object:
        return session.decode({0: TEXT[:24]})

    def several(session: Session) -> object:
        return session.decode({0: TEXT[:9], 1: TEXT[:10]})

    both = {"host: MainThread", "host: ggplug-pipeline-1"}
    assert threads(long) == threads(several) == both
    assert threads(long, n_copies=3) == both | {"host: ggplug-pipeline-2"}
    assert threads(long, n_copies=1) == {"host: MainThread"}
    assert threads(lambda session: session.decode({0: TEXT[:8]})) == {"host: MainThread"}
    assert threads(lambda session: session.decode({0: [1], 1: [2]})) == {"host: MainThread"}


def test_a_model_on_one_device_computes_one_step_after_the_other(model: Any) -> None:
    with Session(model, 64, 2) as session:
        assert session.n_copies == 1


@pytest.mark.parametrize("n_copies", [2, 3])
def test_each_step_that_is_under_way_has_memory_of_its_own_which_fit_counts(n_copies: int) -> None:
    fake, cpu = FakeDevice(inner=gg.device("CPU")), gg.device("CPU")
    how: dict[str, Any] = {"placement": LayerSplit(), "n_copies": n_copies}
    fit = ggplug_models.fit(model_file("qwen3"), [fake, cpu], n_ctx=64, n_seq=3, **how)
    with ggplug_models.load(model_file("qwen3"), [fake, cpu], **how) as model, model.session(64, 3) as session:
        session.decode(dict.fromkeys(range(3), TEXT[:60]))
        assert 0.95 * fit.holdings[0].total <= fake.used <= fit.holdings[0].total
    assert fake.used == 0


def test_n_copies_is_a_positive_number() -> None:
    with pytest.raises(ParameterError, match="n_copies"):
        split("qwen3", n_copies=0)


@pytest.fixture
def failing() -> Iterator[tuple[Any, FakeDevice]]:
    cpu = gg.device("CPU")
    fake = FakeDevice(inner=cpu)
    with ggplug_models.load(model_file("qwen3"), [fake, cpu], placement=LayerSplit()) as model:
        yield model, fake


@pytest.mark.parametrize("nth", [1, 3, 4])
@pytest.mark.parametrize("error", [ComputeError("of the device"), KeyboardInterrupt()], ids=repr)
def test_after_an_error_each_sequence_has_what_was_computed_and_goes_on(failing: Any, nth: int, error: Any) -> None:
    model, fake = failing
    batch = {0: TEXT[:30], 1: TEXT[30:50], 2: TEXT[50:60]}
    with Session(model, 64, 3, "f32", micro_batch=10) as session, Session(model, 64, 3, "f32", micro_batch=10) as whole:
        wanted = whole.decode(batch)
        fake.fail("compute", nth, error)
        with pytest.raises(type(error)):
            session.decode(batch)
        assert all(session.tokens(seq) == tuple(tokens[: session.length(seq)]) for seq, tokens in batch.items())
        assert all(session.length(seq) % 10 == 0 for seq in batch)
        left = {seq: tokens[session.length(seq) :] for seq, tokens in batch.items()}
        found = session.decode({seq: tokens for seq, tokens in left.items() if tokens})
        for seq, logits in found.items():
            np.testing.assert_array_equal(logits, wanted[seq])
        assert found


def test_states_are_not_kept_after_an_error_in_their_step() -> None:
    cpu = gg.device("CPU")
    fake = FakeDevice(inner=cpu)
    batch = {0: TEXT[:20], 1: TEXT[:10]}
    split = ggplug_models.load(model_file("mamba"), [fake, cpu], placement=LayerSplit())
    with split as model, Session(model, 64, 2, micro_batch=10) as session:
        wanted = session.decode(batch)
        session.clear()
        fake.fail("compute", 2)
        with pytest.raises(ComputeError):
            session.decode(batch)
        assert session.length(0) == 0
        left = {seq: tokens for seq, tokens in batch.items() if not session.length(seq)}
        for seq, logits in session.decode(left).items():
            np.testing.assert_array_equal(logits, wanted[seq])


# -- embeddings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_embeddings_do_not_depend_on_how_many_batches_are_under_way(name: str) -> None:
    texts = [TEXT[start : start + 20 + start % 4] for start in range(24)]
    with split(name) as model:
        found = {}
        for n_copies in (1, 2):
            model.n_copies = n_copies
            told: list[int] = []
            found[n_copies] = model.embed_ids(texts, batch=8, progress=told.append)
            assert sum(told) == len(texts)
    np.testing.assert_array_equal(found[2], found[1])


def test_steps_of_several_sequences_are_divided_into_parts_of_64_tokens_or_more() -> None:
    counts = dict.fromkeys(range(9), 32)
    assert divided([([*range(9)], 32)], counts, 1) == [([*range(9)], 32)]
    assert divided([([*range(9)], 32)], counts, 4) == [([0, 1, 2], 32), ([3, 4, 5], 32), ([6, 7, 8], 32)]
    assert divided([([*range(9)], 32)], counts, 9) == [([0, 1], 32), ([2, 3], 32), ([4, 5], 32), ([6, 7, 8], 32)]
    ones = dict.fromkeys(range(32), 1)
    assert divided([([*range(32)], 1)], ones, 4) == [([*range(32)], 1)]
    assert divided([([0], 512), ([0], 100)], {0: 612}, 4) == [([0], 512), ([0], 100)]
