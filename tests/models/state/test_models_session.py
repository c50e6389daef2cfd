"""Sessions: several sequences, rewinding, copying and shifting; requested outputs, and arguments that are refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip
from oracles.packed import ORACLES, model_file

import ggplug_models
from ggplug import ops
from ggplug.errors import ContextFullError, ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.host import HostBuffer, HostBufferType
from ggplug_models import LayerSplit, Outputs, Session
from ggplug_models.checks.ids import listed_ids
from ggplug_models.generation.loop import generate
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.state.cells import Cells, ChunkedCells, CompressedCells, rounded

TEXT = [int(x) for x in np.random.default_rng(5).integers(3, 290, 60)]


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Any]:
    """Gemma 3: six blocks, five of them with a window of 12."""
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model:
        yield model


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 1e-4 * np.abs(b).max())


def test_sequences_of_different_lengths_give_what_each_gives_by_itself(model: Any) -> None:
    with Session(model, 128, n_seq=3, cache_type="f32") as session:
        together = session.decode({0: TEXT[:5], 2: TEXT[10:50]})
        together = {0: together[0], 2: session.decode({0: TEXT[5:7], 2: TEXT[50:53]})[2]}
        third = session.decode({0: TEXT[7:8]})[0]
    with Session(model, 128, cache_type="f32") as alone:
        assert near(together[0], alone.decode({0: TEXT[:5]})[0])
        assert near(third, alone.decode({0: TEXT[5:8]})[0])
        alone.clear()
        assert near(together[2], alone.decode({0: TEXT[10:53]})[0])


@pytest.mark.parametrize("devices", [["CPU"], ["OpenCL0"], ["OpenCL0", "CPU"]], ids="-".join)
def test_a_token_has_the_same_bits_alone_and_with_tokens_of_other_sequences(data: Path, devices: list[str]) -> None:
    for device in devices:
        device_or_skip(device)
    split = LayerSplit() if len(devices) > 1 else None
    prompts = {0: TEXT[:9], 1: TEXT[9:40], 2: TEXT[40:43]}

    def rows(steps: list[dict[int, list[int]]]) -> list[np.ndarray]:
        with Session(model, 64, n_seq=3) as session:
            for i, prompt in prompts.items():
                session.decode({i: prompt})
            return [row for step in steps for row in session.decode(step).values()]

    with ggplug_models.load(data / "qwen3.gguf", devices, placement=split) as model:
        together = rows([{0: [5], 1: [6], 2: [7]}])
        alone = rows([{0: [5]}, {1: [6]}, {2: [7]}])
    np.testing.assert_array_equal(together, alone)


def test_a_ring_forgets_what_no_window_reaches_and_nothing_else(model: Any) -> None:
    with Session(model, 512, cache_type="f32", micro_batch=8) as ring, Session(model, 512, cache_type="f32") as line:
        assert ring._cells[12].ring == 64 < ring._cells[0].ring
        long = TEXT * 3
        assert near(ring.decode({0: long})[0], line.decode({0: long})[0])


def test_a_sequence_is_rewound_as_far_as_windows_allow(model: Any) -> None:
    with Session(model, 256, cache_type="f32", micro_batch=8) as session:
        session.decode({0: TEXT})
        wanted = session.decode({0: [7]})[0]
        assert session.rewind(len(TEXT)) == len(TEXT)
        session.decode({0: [9, 9, 9]})
        assert session.rewind(len(TEXT)) == len(TEXT)
        assert near(session.decode({0: [7]})[0], wanted)
        session.decode({0: TEXT})
        assert session.rewind(3) == 0
        assert session.tokens() == ()
        with pytest.raises(ParameterError, match="cannot rewind to 1 tokens"):
            session.rewind(1)


def test_a_prefix_is_kept_and_a_copy_goes_on_by_itself(model: Any) -> None:
    with Session(model, 128, n_seq=2, cache_type="f32") as session:
        session.decode({0: TEXT[:20]})
        assert session.keep_prefix([*TEXT[:10], 1, 2]) == 10
        session.copy(0, 1)
        assert session.tokens(1) == tuple(TEXT[:10])
        found = session.decode({0: TEXT[10:12], 1: TEXT[20:23]})
    with Session(model, 128, cache_type="f32") as alone:
        assert near(found[0], alone.decode({0: TEXT[:12]})[0])
        alone.clear()
        assert near(found[1], alone.decode({0: TEXT[:10] + TEXT[20:23]})[0])


def test_a_full_context_is_an_error_before_anything_is_computed_and_a_shift_frees_cells(model: Any) -> None:
    with Session(model, 24, cache_type="f32") as session:
        session.decode({0: TEXT[:20]})
        with pytest.raises(ContextFullError, match="cannot take 5 more tokens: 20 of the 24") as caught:
            session.decode({0: TEXT[20:25]})
        assert (caught.value.got, caught.value.wanted) == (5, 4)
        assert session.length() == 20
        session.shift(keep=4, drop=10)
        assert session.tokens() == tuple(TEXT[:4] + TEXT[14:20])
        found = session.decode({0: TEXT[20:25]})[0]
        session.clear()
        assert near(found, session.decode({0: TEXT[:4] + TEXT[14:25]})[0])


@pytest.mark.parametrize(("kind", "least"), [("f16", 0.9999), ("q8_0", 0.999), ("q4_0", 0.95)])
def test_caches_of_fewer_bits_come_close(model: Any, kind: str, least: float) -> None:
    with Session(model, 128, cache_type="f32") as session:
        wanted = session.decode({0: TEXT})[0]
    with Session(model, 128, cache_type=kind) as session:
        found = session.decode({0: TEXT})[0]
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) >= least


def test_generation_goes_on_from_what_is_remembered(model: Any) -> None:
    with Session(model, 64, cache_type="f32") as session:
        first = list(generate(session, TEXT[:10], 6))
        again = list(generate(session, TEXT[:10] + first[:3], 3))
        assert again == first[3:]
        assert list(generate(session, TEXT[:10], 6, end={first[2]})) == first[:3]
        assert len(list(generate(session, TEXT[:60]))) == 5
        assert session.length() == 64


def test_the_loop_in_the_readme_writes_what_the_model_says_and_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[int] = []
    decode = Session.decode

    def counted(session: Session, batch: Any, *options: Any, **more: Any) -> Any:
        read.append(len(batch[0]))
        return decode(session, batch, *options, **more)

    readme = (data.parent.parent / "ggplug-models" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    shutil.copy(data / "qwen3.gguf", tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    ran: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(Session, "decode", counted)
        exec(compile(block, "README.md", "exec"), ran)
    shown = capsys.readouterr().out
    with ggplug_models.load(data / "qwen3.gguf") as whole, whole.session(1024) as session:
        tokenizer = whole.tokenizer
        prompt = tokenizer.encode("Once upon a time", add_special=True)
        again = Sampler(Sampling(temperature=0.8, top_p=0.9, seed=1))
        wanted = list(whole.generate_ids(prompt, 60, choose=again, session=session))
        assert ran["answer"] == wanted[:40]
        texts = []
        for part in (wanted[:40], wanted[40:]):
            text = tokenizer.stream()
            texts.append("".join(map(text.push, part)) + text.finish())
    assert shown == f"{texts[0]}\n{texts[1]}\n"
    assert ran["stop"].stopped is None
    assert (read[0], {*read[1:]}, len(read)) == (len(prompt), {1}, len(wanted))
    assert len(wanted) > 40


def test_a_step_returns_the_requested_outputs(model: Any) -> None:
    with Session(model, 64, cache_type="f32") as session:
        everything = session.decode({0: TEXT[:9]}, Outputs.ALL)[0]
        assert everything.shape == (9, 300)
        session.clear()
        assert session.decode({0: TEXT[:5]}, Outputs.NONE) == {}
        assert near(session.decode({0: TEXT[5:9]})[0], everything[-1])
        session.clear()
        assert session.decode({0: TEXT[:9]}, Outputs.ALL, hidden=True)[0].shape == (9, 64)


def test_wrong_input_is_named_and_changes_nothing(model: Any) -> None:
    with Session(model, 64) as session:
        for batch, message in (
            ({0: [5, 300]}, r"sequence 0\[1\] is 300; the token ids of the vocabulary are 0 to 299"),
            ({1: [5]}, "seq must be from 0 to 0, got 1"),
            ({0: []}, "sequence 0 has no tokens"),
            ({0: "text"}, "must be a sequence of token ids"),
        ):
            with pytest.raises(ParameterError, match=message):
                session.decode(batch)
        assert session.length() == 0
    with pytest.raises(ParameterError, match="n_ctx must be an integer of at least 1"):
        Session(model, 0)
    with pytest.raises(ParameterError, match="cache_type must be one of f32, f16"):
        Session(model, 64, cache_type="i32")


def test_few_different_numbers_of_cells_are_read() -> None:
    assert [rounded(n) for n in (1, 256, 257, 512, 513, 4097)] == [256, 256, 512, 512, 768, 4608]
    assert all(n <= rounded(n) <= max(256, 1.126 * n + 256) for n in range(1, 5000))


def test_a_step_sets_one_input_for_all_whole_numbers_and_a_mask_for_each_window(model: Any) -> None:
    with Session(model, 64, n_seq=2) as session:
        session.decode({0: TEXT[:3], 1: TEXT[:2]})
        session.decode({0: TEXT[3:4], 1: TEXT[2:3]})
        for step in session._steps.values():
            assert sorted(step._inputs) == ["mask 0", "mask 12", "numbers"]


def test_a_line_shows_every_position_up_to_a_token_and_writes_where_positions_are() -> None:
    cells = Cells(n_seq=3, n_ctx=100, n_step=4)
    positions = np.array([[7, 8], [5, -1]])
    shown = cells.mask(1, positions, np.array([9, 6]), 16)
    assert [[int((row == 0).sum()) for row in sequence[0]] for sequence in shown] == [[8, 9], [6, 0]]
    assert (shown[..., :6] == 0).sum() == 18
    assert cells.rows(1, positions).tolist() == [192 + 7, 192 + 8, 2 * 192 + 5, 2 * 192 + 129]
    assert cells.rows(0, positions[:1]).tolist() == [7, 8]


def test_a_compressed_cell_is_seen_and_written_when_all_its_positions_are_there() -> None:
    cells, ring = CompressedCells(3, 400, 4), Cells(3, 400, 8, 8)
    positions = np.array([[6, 7, 8, 9, 10, 11], [2, 3, -1, -1, -1, -1], [-1] * 6])
    shown = cells.mask(0, positions, np.array([12, 4, 0]), 5)
    assert [[int((row == 0).sum()) for row in sequence[0]] for sequence in shown] == [
        [1, 2, 2, 2, 2, 3],
        [0, 1, 0, 0, 0, 0],
        [0] * 6,
    ]
    assert cells.completed(positions).tolist() == [[1, 2], [0, -1], [-1, -1]]
    assert cells.rows(0, positions).tolist() == [1, 2, cells.count, cells.count + cells.ring + 1] + [
        2 * cells.count + cells.ring + each for each in (0, 1)
    ]
    sources = cells.sources(ring, 0, positions, 4)
    assert sources.shape == (3, 2, 8)
    assert sources[0].tolist() == [list(range(8)), list(range(4, 12))]
    assert sources[1, 0, 4:].tolist() == [ring.count + each for each in range(4)]
    assert (cells.span(3), cells.serves(400), cells.losable(300)) == (128, 4 * 129 - 1, (0, 0))


def test_compressed_keys_go_on_from_any_position_of_any_sequence(tmp_path: Path) -> None:
    with np.load(ORACLES / "deepseek4.npz") as recorded:
        text, rows = recorded["tokens_2"].tolist(), recorded["logits_f32_2"]
    how: dict[str, Any] = {"n_seq": 3, "cache_type": "f32", "micro_batch": 16}
    with ggplug_models.load(model_file("deepseek4"), ["CPU"]) as model, Session(model, 192, **how) as session:
        for first, last in ((0, 5), (5, 6), (6, 50), (50, 129)):
            found = session.decode({2: text[first:last], 0: text[: last - first]}, Outputs.ALL)
            assert near(found[2], rows[first:last])
            session.clear(0)
        assert session.rewind(126, 2) == 126
        assert near(session.decode({2: text[126:]}, Outputs.ALL)[2], rows[126:])
        session.copy(2, 1)
        assert session.rewind(138, 1) == 138
        session.save(tmp_path / "held.gguf")
        with Session(model, 192, **how) as other:
            other.restore(tmp_path / "held.gguf")
            assert near(other.decode({1: text[138:]}, Outputs.ALL)[1], rows[138:])
        assert session.rewind(20, 2) == 0
        session.decode({2: text}, Outputs.NONE)
        session.shift(1, 3, 2)
        with Session(model, 192, cache_type="f32") as other:
            wanted = other.decode({0: [text[0], *text[4:], 7]})[0]
        assert near(session.decode({2: [7]})[2], wanted)


@pytest.mark.parametrize("tokens", [[3, 4], list(range(20)), np.array([3, 4]), [np.int64(5)], (1, 2)])
def test_ids_are_listed_as_plain_integers(tokens: Any) -> None:
    found = listed_ids(tokens, 300, "text")
    assert found == list(tokens)
    assert found is not tokens
    assert all(type(each) is int for each in found)


@pytest.mark.parametrize("tokens", [[True], [300], [-1], [2.0], [], ["a"], None])
def test_what_is_no_id_is_refused_in_a_short_list_too(tokens: Any) -> None:
    with pytest.raises(ParameterError, match="text"):
        listed_ids(tokens, 300, "text")


@pytest.mark.parametrize("kind", [Cells, ChunkedCells])
def test_masks_show_what_lies_within_the_window_or_the_chunk(kind: type[Cells]) -> None:
    cells = kind(1, 512, 8, 12)
    cells.advance(0, 74)
    shown = cells.mask(0, np.array([[71, 72, 73, -1]]), np.array([74]), 64)[0, 0]
    held = np.array([max(p for p in range(74) if p % 64 == cell) for cell in range(64)])
    for row, position in enumerate((71, 72, 73)):
        within = held // 12 == position // 12 if kind is ChunkedCells else position - held < 12
        assert np.array_equal(shown[row] == 0, (held <= position) & within)
    assert np.all(np.isneginf(shown[3]))


def test_a_model_gives_logits_and_goes_on_with_a_text(model: Any) -> None:
    logits = model.logits(TEXT[:9])
    assert logits.shape == (9, 300)
    ids = list(model.generate_ids(TEXT[:9], 4))
    assert ids[0] == logits[-1].argmax()
    prompt = model.tokenizer.encode("hello", add_special=True)
    wanted = model.tokenizer.decode([*prompt, *model.generate_ids(prompt, 4)], skip_special=True)
    assert wanted.endswith("".join(model.generate("hello", 4)))


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_and_no_crash(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes((data / "qwen3.gguf").read_bytes())
    size = path.stat().st_size
    with ggplug_models.load(path, ["CPU"], pack=False) as cut, Session(cut, 64) as session:
        session.decode({0: [5, 6]})
        with path.open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(ModelError, match=rf"was truncated from {size} to 4096 bytes") as caught:
            session.decode({0: [7]})
        assert (caught.value.got, caught.value.wanted) == (4096, size)
        assert session.tokens() == (5, 6)


def test_a_tensor_of_other_extents_is_named_with_both(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "misshapen.gguf"
    with GGUFReader(data / "qwen3.gguf") as reader, GGUFWriter(path, "qwen3") as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            ne = info.ne
            if name == "blk.1.ffn_down.weight":
                ne = (ne[1], ne[0])
            writer.add_tensor(name, reader.data(name), info.type, ne)
        writer.write()
    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_down\.weight' has ne \(64, 160, 1, 1\).* \(160, 64, 1, 1\)"):
        ggplug_models.load(path, ["CPU"])


@pytest.mark.parametrize("name", ["rwkv7-heads", "lfm2"])
def test_states_go_on_in_pieces_and_know_no_earlier_token(name: str) -> None:
    with (
        ggplug_models.load(ORACLES / f"{name}.gguf", ["CPU"]) as model,
        Session(model, 64, cache_type="f32") as whole,
        Session(model, 64, n_seq=2, cache_type="f32", micro_batch=8) as pieces,
    ):
        text = [token % model.n_vocab for token in TEXT[:20]]
        wanted = whole.decode({0: text})[0]
        assert near(pieces.decode({0: text[:3], 1: text})[1], wanted)
        assert near(pieces.decode({0: text[3:]})[0], wanted)
        pieces.copy(0, 1)
        after = pieces.decode({0: [5], 1: [5]})
        assert near(after[0], after[1])
        assert pieces.rewind(20) == 0
        assert near(pieces.decode({0: text})[0], wanted)


@pytest.mark.parametrize(("name", "kind"), [("gemma3", "q8_0"), ("lfm2", "f32")])
def test_a_saved_session_goes_on_identically(name: str, kind: str, data: Path, tmp_path: Path) -> None:
    path = tmp_path / "held.gguf"
    how: dict[str, Any] = {"n_seq": 2, "cache_type": kind, "micro_batch": 16}
    with ggplug_models.load(model_file(name), ["CPU"]) as model:
        text = [token % model.n_vocab for token in TEXT[:40]]
        with Session(model, 64, **how) as session:
            session.decode({1: text})
            session.save(path)
            wanted = session.decode({1: [5, 6]})[1]
        with Session(model, 64, **how) as session:
            session.decode({0: [9]})
            session.restore(path)
            assert session.tokens(0) == ()
            assert session.tokens(1) == tuple(text)
            assert np.array_equal(session.decode({1: [5, 6]})[1], wanted)
        with Session(model, 32, **how) as other, pytest.raises(ModelError, match="2x64 16"):
            other.restore(path)
    with (
        ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as another,
        Session(another, 64, **how) as session,
        pytest.raises(ModelError, match="model is"),
    ):
        session.restore(path)


def test_a_restored_session_knows_which_cells_of_a_ring_were_overwritten(data: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"cache_type": "f32", "micro_batch": 4}
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model, Session(model, 200, **how) as session:
        session.decode({0: [3 + i % 90 for i in range(100)]})
        assert session.rewind(70) == 70
        session.save(tmp_path / "held.gguf")
        with Session(model, 200, **how) as other:
            other.restore(tmp_path / "held.gguf")
            assert other.rewind(20) == session.rewind(20) == 0


def test_a_shift_that_drops_nothing_changes_nothing(model: Any) -> None:
    with Session(model, 64, cache_type="f32") as session:
        session.decode({0: [5, 6, 7, 8]})
        session.shift(1, 0)
        assert session.tokens() == (5, 6, 7, 8)
        session.shift(1, 2)
        assert session.tokens() == (5, 8)


def test_what_memory_held_before_makes_no_difference(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = np.random.default_rng(3).integers(0, model.n_vocab, 140).tolist()
    with Session(model, 256, 2) as session:
        wanted = session.decode({1: prompt})[1]

    allocated = HostBufferType._alloc

    def dirty(kind: HostBufferType, size: int) -> HostBuffer:
        buffer = allocated(kind, size)
        buffer.memset(0, size, 0xFF)  # which is NaN
        return buffer

    monkeypatch.setattr(HostBufferType, "_alloc", dirty)
    with Session(model, 256, 2) as session:
        assert np.array_equal(session.decode({1: prompt})[1], wanted)


@pytest.mark.parametrize("name", ["mamba2", "qwen3next", "rwkv6"])
def test_a_new_state_is_stored_when_nothing_reads_the_old_one_any_more(name: str) -> None:
    with ggplug_models.load(model_file(name), ["CPU"]) as model, Session(model, 64) as session:
        graph = session.prepared([5, 6, 7])
        states = [node for node in graph.nodes if isinstance(node.op, ops.Cpy)]
        assert len(states) >= 2
        for state in states:
            readers = [
                graph.index[node]
                for node in graph.nodes
                if node not in states and node.op is not None and not node.op.is_view
                if any(each is not None and each.root is state.root for each in node.src)
            ]
            new = state.src[0]
            assert new is not None
            assert max(readers) < graph.index[state]
            between = graph.tensors[max(*readers, graph.index[new.root]) + 1 : graph.index[state]]
            assert all(each.is_view or each.op is None or each in states for each in between)
