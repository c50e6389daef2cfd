"""LoRA adapters with a scale for each sequence: in sessions, in generation, and in requests to the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from held import Doing, until
from oracles.packed import ORACLES, with_metadata
from paths import DATA

import ggplug_models
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.adapters.merging import merge
from ggplug_models.goldens import nmse
from ggplug_models.networks.decoder import Decoder
from ggplug_models.state.session import Session
from ggplug_models.state.steps import Outputs

MODEL, FIRST = DATA / "qwen3.gguf", DATA / "adapters" / "qwen3-lora.gguf"
PROMPT = [5, 17, 42, 9, 61, 3]


def adapter(path: Path, model: Path, weight: str) -> Path:
    """An adapter of rank 3 with random matrices for one weight."""
    random = np.random.default_rng(8)
    with GGUFReader(model) as reader, GGUFWriter(path, arch=reader.metadata["general.architecture"]) as writer:
        shape = reader.tensors[weight].shape
        for key, value in {"general.type": "adapter", "adapter.type": "lora"}.items():
            writer.add(key, value)
        for end, sides in (("a", (*shape[:-2], 3, shape[-1])), ("b", (*shape[:-2], shape[-2], 3))):
            writer.add_tensor(f"{weight}.lora_{end}", random.standard_normal(sides, np.float32) * np.float32(0.3))
        writer.write()
    return path


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter(tmp_path_factory.mktemp("adapters") / "second.gguf", MODEL, "blk.0.ffn_up.weight")


def alone(path: Path, scales: dict[Path, float], n: int = 4) -> tuple[list[int], np.ndarray]:
    """The tokens and the last logits of a model that was loaded with these adapters, and no others."""
    with ggplug_models.load(path, ["CPU"]) as model, model.session(64) as session:
        for file, scale in scales.items():
            model.adapt(file, scale)
        tokens = list(model.generate_ids(PROMPT, n, session=session))
        return tokens, session.decode({0: [1]})[0]


def test_sequences_with_other_scales_are_each_as_in_a_model_with_these_adapters_alone(second: Path) -> None:
    wanted = [{}, {FIRST: 0.3}, {FIRST: 0.3}, {second: 1.0}, {FIRST: -1.0, second: 0.5}, {FIRST: 0.7}]
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 6) as session:
        there = {file: model.adapt(file, 9.0) for file in (FIRST, second)}
        for seq, scales in enumerate(wanted):
            session.adapt({there[file]: scale for file, scale in scales.items()}, seq)
        texts = [[] for _ in wanted]
        logits = session.decode(dict.fromkeys(range(6), PROMPT))
        for _ in range(4):
            for seq, text in enumerate(texts):
                text.append(int(logits[seq].argmax()))
            logits = session.decode({seq: text[-1:] for seq, text in enumerate(texts)})
        for seq in range(6):
            session.rewind(len(PROMPT) + 3, seq)
        logits = session.decode({seq: [1] for seq in range(6)})
    for seq, scales in enumerate(wanted):
        tokens, last = alone(MODEL, scales)
        assert texts[seq] == tokens
        np.testing.assert_array_equal(logits[seq], last)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("qwen3moe", "blk.0.ffn_down_exps.weight"),
        ("deepseek2", "blk.0.attn_k_b.weight"),
        ("mamba", "blk.0.ssm_x.weight"),
    ],
)
def test_scales_of_sequences_hold_for_experts_for_heads_and_for_states(tmp_path: Path, name: str, weight: str) -> None:
    path = ORACLES / f"{name}.gguf"
    file = adapter(tmp_path / "adapter.gguf", path, weight)
    with ggplug_models.load(path, ["CPU"]) as model, model.session(64, 3) as session:
        there = model.adapt(file)
        for seq, scale in enumerate((0.0, 0.5, 2.0)):
            session.adapt({there: scale}, seq)
        found = session.decode(dict.fromkeys(range(3), PROMPT), Outputs.ALL)
    for seq, scale in enumerate((0.0, 0.5, 2.0)):
        with ggplug_models.load(path, ["CPU"]) as model, model.session(64, 3) as session, model.adapt(file, scale):
            np.testing.assert_array_equal(found[seq], session.decode({seq: PROMPT}, Outputs.ALL)[seq])
    assert np.abs(found[0] - found[2]).max() > 1e-4


def test_a_text_with_other_scales_computes_its_prompt_again() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(FIRST, 0.0)
        kept = []
        for scale in (0.0, 0.0, 0.7, 0.7, 0.0):
            session.adapt({used: scale})
            kept.append(session.length() > 0)
            found = list(model.generate_ids(PROMPT, 4, session=session, lora={used: scale}))
            assert found == alone(MODEL, {FIRST: scale})[0]
        assert kept == [False, True, False, True, False]
        session.adapt({used: 0.7})
        assert list(model.generate_ids(PROMPT, 4, session=session)) == alone(MODEL, {FIRST: 0.7})[0]
        session.adapt(None)
        assert list(model.generate_ids(PROMPT, 4, session=session)) == found
        used.scale = 0.7
        assert list(model.generate_ids(PROMPT, 4)) == alone(MODEL, {FIRST: 0.7})[0]


class Between:
    """Is called after each micro-batch."""

    names = ("blk.0.l_out",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[np.ndarray]) -> None:
        self.call()


def test_a_text_of_several_micro_batches_is_computed_with_the_scales_of_its_beginning() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        used = model.adapt(FIRST, 0.5)

        def logits(call: Callable[[], object]) -> np.ndarray:
            with Session(model, 64, micro_batch=4) as session:
                return session.decode({0: PROMPT * 2}, reader=Between(call))[0]

        wanted = logits(lambda: None)
        np.testing.assert_array_equal(logits(lambda: setattr(used, "scale", 3.0)), wanted)
        assert np.abs(logits(lambda: None) - wanted).max() > 1e-4
        assert np.isfinite(logits(used.remove)).all()  # and its memory is freed


def test_a_copy_of_a_sequence_has_its_scales() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 2) as session:
        session.adapt({model.adapt(FIRST): 0.7}, 0)
        session.adapt({}, 1)
        session.decode({0: PROMPT})
        session.copy(0, 1)
        found = session.decode({0: [1], 1: [1]})
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("weight", ["enc.blk.0.attn_v.weight", "dec.blk.0.cross_attn_k.weight"])
def test_a_source_text_is_read_with_the_scales_of_its_sequence(tmp_path: Path, weight: str) -> None:
    path, text = ORACLES / "t5.gguf", [0, 7, 8]
    file = adapter(tmp_path / "adapter.gguf", path, weight)
    wanted = {}
    for scale in (0.0, 0.5, 2.0):
        with ggplug_models.load(merge(path, {file: scale}, tmp_path / f"{scale}.gguf"), ["CPU"]) as merged:
            wanted[scale] = merged.logits(text, PROMPT)  # type: ignore[attr-defined]
    assert nmse(wanted[0.0], wanted[2.0]) > 1e-4
    with ggplug_models.load(path, ["CPU"]) as model, model.session(64, 3, cache_type="f32") as session:
        used = model.adapt(file, 0.5)
        for seq, scale in enumerate(wanted):
            session.adapt({used: scale}, seq)
            session.encode(PROMPT, seq)
        found = session.decode(dict.fromkeys(range(3), text), Outputs.ALL)
        for seq, scale in enumerate(wanted):
            assert nmse(found[seq], wanted[scale]) < 1e-6
        session.adapt({used: 2.0}, 1)
        with pytest.raises(ParameterError, match="sequence 1 has no source text"):
            session.decode({1: text})
        session.adapt(None, 1)
        for scale in (0.5, 2.0):
            used.scale = scale
            session.clear(1)
            session.encode(PROMPT, 1)
            assert nmse(session.decode({1: text}, Outputs.ALL)[1], wanted[scale]) < 1e-6


def test_generations_that_take_turns_in_a_sequence_keep_their_adapters() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(FIRST, 0.0)
        session.adapt({used: 3.0})
        first = model.generate_ids(PROMPT, 6, session=session)
        second = model.generate_ids(PROMPT, 6, session=session, lora={used: 0.7})
        found = [(next(first), next(second)) for _ in range(6)]
    assert [list(each) for each in zip(*found, strict=True)] == [alone(MODEL, {FIRST: x}, 6)[0] for x in (3.0, 0.7)]


def test_what_is_no_adapter_in_effect_has_no_scale() -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, ggplug_models.load(MODEL, ["CPU"]) as other:
        removed, foreign, patch = model.adapt(FIRST), other.adapt(FIRST), model.patch("blk.0.l_out", lambda x: x)
        removed.remove()
        with model.session(16) as session:
            for wrong in ({removed: 1}, {foreign: 1}, {patch: 1}, {"x": 1}, [removed], {model.adapt(FIRST): "a"}):
                with pytest.raises(ParameterError, match="adapter"):
                    session.adapt(wrong)  # type: ignore[arg-type]
                with pytest.raises(ParameterError, match="adapter"):
                    model.generate("x", 2, lora=wrong)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match="has no scale"):
            patch.scale = 0.5


def test_a_file_of_a_session_says_which_adapters_computed_it(tmp_path: Path, second: Path) -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 2) as session:
        session.adapt({model.adapt(FIRST): 0.7, model.adapt(second): 0.0}, 1)
        session.decode({0: PROMPT, 1: PROMPT})
        session.save(tmp_path / "saved.gguf")
        wanted = session.decode({1: [1]})[1]
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 2) as session:
        model.adapt(second)
        session.decode({0: [1, 2]})
        with pytest.raises(ModelError, match="a LoRA adapter that is not in effect"):
            session.restore(tmp_path / "saved.gguf")
        assert session.tokens(0) == (1, 2)
        there = model.adapt(FIRST, 5)
        with pytest.raises(ModelError, match="no LoRA adapter with a scale"):
            session.adapt_as({0: f"{there.change.digest} x"})
        session.restore(tmp_path / "saved.gguf")
        assert session.is_adapted({there: 0.7}, 1)
        np.testing.assert_array_equal(session.decode({1: [1]})[1], wanted)


def test_restored_sequences_have_scales_of_their_own_only_where_their_tokens_need_them(tmp_path: Path) -> None:
    wanted = alone(MODEL, {FIRST: 1.0})[0]
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64, 3) as session:
        session.decode({0: PROMPT})
        session.save(tmp_path / "without.gguf")
        used = model.adapt(FIRST, 0.7)
        session.clear()
        session.decode({0: PROMPT})
        session.save(tmp_path / "with.gguf")
        used.scale = 1.0
        session.restore(tmp_path / "without.gguf")
        assert session.is_adapted({})
        assert session.is_adapted({used: 1.0}, 1)
        used.scale = 0.7
        session.restore(tmp_path / "with.gguf")
        used.scale = 1.0
        session.clear()
        assert list(model.generate_ids(PROMPT, 4, session=session)) == wanted


def test_adapters_of_the_same_matrices_with_other_factors_are_not_taken_for_each_other(tmp_path: Path) -> None:
    saved = tmp_path / "saved.gguf"
    with GGUFReader(FIRST) as reader:
        alpha = np.float32(2 * reader.metadata["adapter.lora.alpha"])
    other = with_metadata(FIRST, tmp_path / "other.gguf", {"adapter.lora.alpha": alpha})
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        with model.adapt(FIRST):
            session.decode({0: PROMPT})
            session.save(saved)
        with model.adapt(other), pytest.raises(ModelError, match="a LoRA adapter that is not in effect"):
            session.restore(saved)


def test_tokens_that_were_computed_with_a_former_scale_of_the_model_are_not_taken_for_those_of_the_new_one(
    tmp_path: Path,
) -> None:
    wanted = alone(MODEL, {FIRST: 3.0})[0]
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(FIRST, 0.7)
        session.decode({0: PROMPT})
        used.scale = 3.0
        session.save(tmp_path / "saved.gguf")
        assert session.is_adapted({used: 0.7})
        assert list(model.generate_ids(PROMPT, 4, session=session, lora={used: 3.0})) == wanted
        session.restore(tmp_path / "saved.gguf")
        assert session.is_adapted({used: 0.7})
        assert list(model.generate_ids(PROMPT, 4, session=session)) == alone(MODEL, {FIRST: 0.7})[0] != wanted
        used.remove()
        with pytest.raises(ParameterError, match="computed with an adapter that was removed since"):
            session.save(tmp_path / "after.gguf")


@pytest.mark.parametrize("n_more", [1, 3])
def test_tokens_of_several_scales_are_taken_for_those_of_none(tmp_path: Path, n_more: int) -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(FIRST, 0.7)
        session.decode({0: PROMPT})
        session.decode({0: [1]})  # a step of one token serves those after it, with any scale
        used.scale = 3.0
        session.decode({0: [2] * n_more})
        used.scale = 0.7
        assert not session.is_adapted({used: 0.7})
        assert not session.is_adapted({used: 3.0})
        with pytest.raises(ParameterError, match="sequence 0 were computed with several scales of adapters"):
            session.save(tmp_path / "saved.gguf")
        assert not list(tmp_path.iterdir())
        session.adapt({used: 0.7})
        assert session.length() == 0
        session.decode({0: PROMPT})
        session.save(tmp_path / "saved.gguf")


def test_an_interrupted_restore_leaves_no_tokens_of_other_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(session: Session, seq: int | None = None) -> None:
        raise KeyboardInterrupt

    with ggplug_models.load(MODEL, ["CPU"]) as model, model.session(64) as session:
        used = model.adapt(FIRST, 0.0)
        session.adapt({used: 0.7})
        session.decode({0: PROMPT})
        session.save(tmp_path / "saved.gguf")
        session.adapt({})
        session.decode({0: PROMPT})
        with monkeypatch.context() as patching:
            patching.setattr(Session, "clear", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.restore(tmp_path / "saved.gguf")
        assert session.is_adapted({used: 0.7})
        assert not session.length()


# -- the server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(second: Path) -> Iterator[Any]:
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(library)
    from served import served

    from ggplug_models.serve.service import About

    with ggplug_models.load(MODEL, ["CPU"]) as model:
        adapters = [(FIRST, 0.7), (second, 0.0)]
        with served(model, slots=3, adapters=adapters, about=About(adapters=adapters)) as running:
            yield running


def text(model: Decoder, **options: Any) -> str:
    return "".join(model.generate("hello", 8, **options))


def completion(live: Any, lora: Any = None) -> Any:
    body = {"prompt": "hello", "n_predict": 8, "temperature": 0, "lora": lora}
    status, _, found = live.ask("POST", "/completion", body)
    assert status == 200, found
    return found


def test_requests_at_the_same_time_have_scales_of_their_own(live: Any, second: Path) -> None:
    scales = [(0.0, 0.0), (0.7, 0.0), (0.7, 1.0), (0.0, 1.0), (0.7, 0.0), (-2.0, 0.0)]
    found: dict[int, Any] = {}

    def ask(number: int, first: float, other: float) -> None:
        found[number] = completion(live, [{"id": 0, "scale": first}, {"id": 1, "scale": other}])

    threads = [threading.Thread(target=ask, args=(number, *each)) for number, each in enumerate(scales)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (first, other) in enumerate(scales):
        with ggplug_models.load(MODEL, ["CPU"]) as model, model.adapt(FIRST, first), model.adapt(second, other):
            assert found[number]["content"] == text(model)
        told = found[number]["generation_settings"]["lora"]
        assert told == [{"id": 0, "scale": first}, {"id": 1, "scale": other}]


def test_adapters_that_a_request_does_not_name_do_not_act(live: Any, second: Path) -> None:
    with ggplug_models.load(MODEL, ["CPU"]) as model:
        assert completion(live, [])["content"] == text(model)
        with model.adapt(second):
            assert completion(live, [{"id": 1, "scale": 1}])["content"] == text(model)


def test_the_scales_of_the_server_hold_for_requests_without_them(live: Any) -> None:
    def adapters() -> list[float]:
        return [each["scale"] for each in live.ask("GET", "/lora-adapters")[2]]

    with ggplug_models.load(MODEL, ["CPU"]) as model, model.adapt(FIRST, 0.7) as used:
        assert adapters() == [0.7, 0.0]
        assert completion(live)["content"] == text(model)
        assert live.ask("POST", "/lora-adapters", [{"id": 0, "scale": -2}])[:1] == (200,)
        used.scale = -2
        assert adapters() == [-2.0, 0.0]
        assert completion(live)["content"] == text(model)
        live.ask("POST", "/lora-adapters", [{"id": 0, "scale": 0.7}])


def test_the_scales_of_a_request_are_among_the_options_of_ollama(live: Any) -> None:
    lora = [{"id": 0, "scale": -2.0}]
    options = {"num_predict": 8, "temperature": 0, "ignore_eos": True, "lora": lora}
    status, headers, found = live.ask(
        "POST", "/api/generate", {"prompt": "hello", "raw": True, "stream": False, "options": options}
    )
    assert (status, "x-ggplug-ignored" in headers) == (200, False)
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.adapt(FIRST, -2):
        assert found["response"] == text(model)


def test_all_vectors_of_a_request_have_the_same_scales(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, body = live.service.model, {"input": ["a", "b", "c"] * 20}
    embed, changing = model.embed_ids, []

    def change_meanwhile(ids: Any, progress: Any) -> Any:
        def one(done: int) -> None:
            if not changing:
                changing.append(Doing(lambda: live.ask("POST", "/lora-adapters", [{"id": 0, "scale": -2}])))
                until(lambda: not changing[0].is_alive() or len(live.service._computing) == 2)
            progress(done)

        return embed(ids, progress=one)

    first = live.ask("POST", "/v1/embeddings", body)[2]
    with monkeypatch.context() as patching:
        patching.setattr(model, "embed_ids", change_meanwhile)
        assert live.ask("POST", "/v1/embeddings", body)[2] == first
    assert changing[0].result()[0] == 200
    assert live.ask("POST", "/v1/embeddings", body)[2] != first
    live.ask("POST", "/lora-adapters", [{"id": 0, "scale": 0.7}])


def test_all_texts_of_a_request_have_the_same_scales(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = live.service.texts
    sampling = writer._sampling

    def change_meanwhile(asked: Any, number: int) -> Any:
        if number == 1:
            live.service.adapt({0: -2.0, 1: 1.0})
        return sampling(asked, number)

    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "n": 3}
    with monkeypatch.context() as patching:
        patching.setattr(writer, "_sampling", change_meanwhile)
        found = live.ask("POST", "/v1/completions", body)[2]
    live.service.adapt({0: 0.7})
    with ggplug_models.load(MODEL, ["CPU"]) as model, model.adapt(FIRST, 0.7):
        assert [each["text"] for each in found["choices"]] == [text(model)] * 3


@pytest.mark.parametrize(
    "lora", [[{"id": 2, "scale": 1}], [{"id": -1, "scale": 1}], [{"id": 0}], [{"scale": 1}], 7, {}]
)
def test_wrong_scales_are_refused(live: Any, lora: Any) -> None:
    assert (
        live.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "lora": lora})[0]
        == 400
    )
    assert live.ask("POST", "/lora-adapters", lora)[0] == 400
    assert [each["scale"] for each in live.ask("GET", "/lora-adapters")[2]] == [0.7, 0.0]
