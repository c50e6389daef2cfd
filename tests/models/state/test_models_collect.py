"""Values of nodes by name, and changes of them: in language models and encoders, on one device and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.packed import ORACLES, model_file

import ggplug as gg
import ggplug_models
from ggplug.errors import ComputeError, ParameterError, PlacementError
from ggplug.ops import Cpy, PythonCall
from ggplug.tensor import Tensor
from ggplug.testing import FakeDevice
from ggplug_models.state.steps import Outputs

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(params=["qwen3", "mamba2", "deepseek3", "rwkv7", "gemma2"])
def model(request: pytest.FixtureRequest) -> Any:
    with ggplug_models.load(model_file(request.param), ["CPU"]) as model:
        yield model


@pytest.fixture
def qwen(data: Path) -> Any:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model:
        yield model


def observed(model: Any, tokens: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """The values of all nodes of a prompt, as the scheduler's callback sees them."""
    found = {}

    def see(node: Tensor, ask: bool) -> bool:
        if not ask:
            found[node.name] = node.numpy()
        return True

    with model.session(len(tokens), cache_type="f32") as session:
        model.scheduler.set_eval_callback(see)
        session.decode({0: tokens}, Outputs.ALL)
        model.scheduler.set_eval_callback(None)
    return found


def test_collected_values_are_those_that_the_callback_sees(model: Any) -> None:
    seen = observed(model, TOKENS)
    names = ["inp_embd", "blk.*.l_out", "blk.*.ffn_norm", "blk.*_out", "result_norm", "logits"]
    if "blk.0.ffn_norm" not in seen:  # a family without such a norm
        names.remove("blk.*.ffn_norm")
    found = model.run(TOKENS, names)
    assert len(found) >= model.n_layer + 3
    for name, values in found.items():
        wanted = seen[{"logits": "result_output"}.get(name, name)]
        assert values.shape[0] == len(TOKENS)
        np.testing.assert_allclose(
            values, wanted[: len(TOKENS)], rtol=0, atol=2e-5 * np.abs(wanted).max(), err_msg=name
        )
    np.testing.assert_array_equal(found["logits"], model.run(TOKENS)["logits"])


def test_the_last_token_alone(model: Any) -> None:
    names = ["blk.*.l_out", "logits", "result_norm"]
    every, last = model.run(TOKENS, names), model.run(TOKENS, names, last=True)
    assert last.keys() == every.keys()
    for name, values in last.items():
        assert values.shape == every[name].shape[1:]
        np.testing.assert_allclose(values, every[name][-1], rtol=0, atol=2e-5 * np.abs(every[name]).max())


@pytest.mark.parametrize(("name", "n_tokens"), [("qwen3", (1, 4, 60)), ("mamba2", (1, 4, 32)), ("qwen3moe", (2, 4))])
def test_rows_are_those_of_tokens_where_there_are_as_many_heads_or_elements(
    name: str, n_tokens: tuple[int, ...]
) -> None:
    """No node has another axis of 11, so that their shapes with 11 tokens say what one token has."""
    assert len(TOKENS) == 11
    with ggplug_models.load(model_file(name), ["CPU"]) as model:
        shapes = {name: found.shape for name, found in model.run(TOKENS, ["*"]).items()}
        of_one = {name: shape[1:] for name, shape in shapes.items() if shape[:1] == (11,)}
        assert {"result_norm", "blk.0.l_out", "blk.1.l_out"} <= of_one.keys()
        for n in n_tokens:
            text = (TOKENS * 6)[:n]
            every, last = model.run(text, ["*"]), model.run(text, ["*"], last=True)
            for name, shape in of_one.items():
                assert every[name].shape == (n, *shape), (n, name)
                assert last[name].shape == shape, (n, name)
            for name in ("result_norm", "result_output", "blk.1.l_out"):
                np.testing.assert_allclose(last[name], every[name][-1], atol=1e-4)


def test_what_no_token_has_is_not_cut(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as bert:
        text = (TOKENS * 6)[: bert.n_embd - 1]  # padded to as many tokens as elements
        assert bert.run(text, ["pooled"])["pooled"].shape == (1, bert.n_embd)
        assert bert.run(text, ["hidden"], last=True)["hidden"].shape == (bert.n_embd,)


def test_a_patch_with_a_row_for_each_token_leaves_values_as_they_are(qwen: Any) -> None:
    n_tokens = qwen.sample()["inp_embd"].ne[1]
    rows, tokens = np.ones((n_tokens, qwen.n_embd), np.float32), (TOKENS * 6)[:n_tokens]
    with qwen.patch("inp_embd", rows):
        np.testing.assert_array_equal(qwen.run(tokens, ["inp_embd"])["inp_embd"], rows)


def test_prompts_of_several_steps_give_the_values_of_all_tokens(model: Any) -> None:
    names = ["blk.1.l_out", "logits"]
    whole = model.run(TOKENS, names)
    with model.session(len(TOKENS), cache_type="f32", micro_batch=4) as session:
        found = session.collect(TOKENS, names)
        assert session.tokens() == tuple(TOKENS)
    for name, values in found.items():
        np.testing.assert_allclose(values, whole[name], rtol=0, atol=2e-5 * np.abs(whole[name]).max())


def test_heads_are_in_front_of_their_elements(qwen: Any) -> None:
    found = qwen.run(TOKENS, ["blk.0.Qcur", "blk.0.Kcur", "blk.0.kqv_out"])
    heads = qwen.heads[0]
    assert found["blk.0.Qcur"].shape == (len(TOKENS), heads.n_head, heads.d_k)
    assert found["blk.0.Kcur"].shape == (len(TOKENS), heads.n_head_kv, heads.d_k)
    assert found["blk.0.kqv_out"].shape == (len(TOKENS), heads.n_head * heads.d_v)


def test_values_come_from_any_device(data: Path) -> None:
    devices = [FakeDevice(inner=gg.device("CPU"), execution="late"), gg.device("CPU")]
    with (
        ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as one,
        ggplug_models.load(data / "qwen3.gguf", devices, placement=ggplug_models.LayerSplit()) as split,
    ):
        names = ["blk.*.l_out", "blk.*.ffn_swiglu", "logits"]
        wanted, found = one.run(TOKENS, names), split.run(TOKENS, names)
        assert found.keys() == wanted.keys()
        for name, values in found.items():
            np.testing.assert_allclose(values, wanted[name], rtol=0, atol=1e-4 * np.abs(wanted[name]).max())


def test_groups_are_formed_around_what_is_asked_for(qwen: Any) -> None:
    """The gate is inner to a group otherwise."""
    with qwen.session(16) as session:
        session.decode({0: TOKENS}, Outputs.ALL)
        inner = {row.name for row in session.explain().rows if row.inner}
        assert "blk.0.ffn_norm/rms_norm" in inner
        session.clear()
        found = session.collect(TOKENS, ["blk.0.ffn_norm/rms_norm"])
        asked = {row.name for row in session.explain().rows if row.inner}
    assert inner - asked == {"blk.0.ffn_norm/rms_norm"}
    np.testing.assert_allclose((found["blk.0.ffn_norm/rms_norm"] ** 2).mean(axis=1), 1, rtol=1e-3)


def test_steps_without_collected_values_stay_the_same(qwen: Any) -> None:
    with qwen.session(32) as session:
        session.decode({0: TOKENS})
        (kept,) = session._steps.values()
        session.clear()
        session.collect(TOKENS, ["blk.0.l_out"])
        session.clear()
        session.decode({0: TOKENS})
        assert next(reversed(session._steps.values())) is kept
        assert not kept.collected


def test_wrong_names_are_refused_with_similar_ones(qwen: Any) -> None:
    with pytest.raises(ParameterError, match=r"called 'blk\.0\.attn_oot'; similar names are .*blk\.0\.attn_out"):
        qwen.run(TOKENS, ["blk.0.attn_oot"])
    with pytest.raises(ParameterError, match="collect must be a list"):
        qwen.run(TOKENS, "logits")
    with pytest.raises(ParameterError, match="at least one is needed"):
        qwen.run([])
    with pytest.raises(ParameterError, match=r"no node of the model is called 'blk\.7\.l_out'"):
        qwen.patch("blk.7.l_out", 0.0)
    assert "blk.1.l_out" in qwen.node_names()


def test_an_encoder_s_values_by_name(data: Path) -> None:
    with ggplug_models.load(data / "bert.gguf", ["CPU"]) as bert:
        found = bert.run(TOKENS, ["blk.*.l_out", "hidden", "pooled"])
        last = f"blk.{bert.n_layer - 1}.l_out"
        assert found[last].shape == (len(TOKENS), bert.n_embd)
        np.testing.assert_array_equal(found["hidden"], found[last])
        vector = bert.embed_ids([TOKENS], normalize=False)[0]
        np.testing.assert_allclose(found["pooled"].reshape(-1), vector, atol=1e-6)
        with bert.patch("inp_embd", 1.0, add=True):
            assert np.abs(bert.embed_ids([TOKENS], normalize=False)[0] - vector).max() > 1e-3
        np.testing.assert_array_equal(bert.embed_ids([TOKENS], normalize=False)[0], vector)


# -- patches ---------------------------------------------------------------------------------------


def test_an_array_takes_the_place_of_a_value_or_is_added_to_it(model: Any) -> None:
    before = model.run(TOKENS, ["blk.0.l_out", "blk.1.l_out", "logits"])
    vector = np.linspace(-1, 1, model.n_embd).astype(np.float32)
    with model.patch("blk.0.l_out", vector, add=True):
        found = model.run(TOKENS, ["blk.0.l_out", "blk.0.l_out/unpatched", "blk.1.l_out", "logits"])
    np.testing.assert_allclose(found["blk.0.l_out/unpatched"], before["blk.0.l_out"], atol=1e-5)
    np.testing.assert_allclose(found["blk.0.l_out"], before["blk.0.l_out"] + vector, atol=1e-5)
    assert np.abs(found["blk.1.l_out"] - before["blk.1.l_out"]).max() > 0.1
    with model.patch("blk.0.l_out", vector):
        np.testing.assert_array_equal(model.run(TOKENS, ["blk.0.l_out"])["blk.0.l_out"], [vector] * len(TOKENS))
    after = model.run(TOKENS, ["blk.1.l_out"])["blk.1.l_out"]
    np.testing.assert_allclose(after, before["blk.1.l_out"], rtol=0, atol=1e-5)


def test_a_function_changes_values_of_several_nodes(model: Any) -> None:
    def halved(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert values.shape[1:] == (model.n_embd,)
        return values / 2

    before = model.run(TOKENS, ["blk.0.l_out"])["blk.0.l_out"]
    with model.patch("blk.*.l_out", halved):
        found = model.run(TOKENS, ["blk.*.l_out"])
        assert len(found) == model.n_layer
        np.testing.assert_allclose(found["blk.0.l_out"], before / 2, rtol=1e-5, atol=1e-6)


def test_a_function_changes_each_of_several_tokens_that_are_decoded_one_by_one(qwen: Any) -> None:
    called: list[int] = []

    def larger(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        called.append(len(values))
        return values * 1.5

    with qwen.patch("blk.0.l_out", larger):
        with qwen.session(64) as session:
            found = [session.decode({0: [token]})[0] for token in TOKENS]  # no other graph is computed in between
        assert len(called) == len(TOKENS)
        with qwen.session(64) as session:
            wanted = session.decode({0: TOKENS}, Outputs.ALL)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_patches_follow_each_other_and_end_one_by_one(qwen: Any) -> None:
    before = qwen.run(TOKENS, ["inp_embd"])["inp_embd"]
    first, second = qwen.patch("inp_embd", 1.0, add=True), qwen.patch("inp_embd", lambda x: 3 * x)
    np.testing.assert_allclose(qwen.run(TOKENS, ["inp_embd"])["inp_embd"], 3 * (before + 1), rtol=1e-5)
    first.remove()
    np.testing.assert_allclose(qwen.run(TOKENS, ["inp_embd"])["inp_embd"], 3 * before, rtol=1e-5)
    second.remove()
    np.testing.assert_array_equal(qwen.run(TOKENS, ["inp_embd"])["inp_embd"], before)


def test_generation_follows_a_patch_and_goes_back(qwen: Any) -> None:
    plain = list(qwen.generate_ids(TOKENS, 6))
    target = 7
    push = np.zeros(qwen.n_vocab, np.float32)
    push[target] = 1e3
    with qwen.patch("result_output", push, add=True), qwen.session(64) as session:
        assert list(qwen.generate_ids(TOKENS, 6, session=session)) == [target] * 6
    assert list(qwen.generate_ids(TOKENS, 6)) == plain


def test_a_patch_that_cannot_be_is_refused(qwen: Any) -> None:
    with pytest.raises(ParameterError, match=r"shape \(3,\) cannot change the node 'inp_embd', of shape"):
        qwen.patch("inp_embd", np.ones(3))
    with pytest.raises(ParameterError, match="must hold float32 without gaps"):
        qwen.patch("blk.0.cache_k", 0.0)
    with pytest.raises(ParameterError, match="must hold float32 without gaps"):
        qwen.patch("tokens", 0.0)
    assert qwen.patches == ()
    with qwen.patch("inp_embd", lambda x: x[:1]), pytest.raises((ParameterError, ComputeError), match="must return"):
        qwen.run(TOKENS)


@pytest.mark.parametrize("name", ["jamba", "rwkv7"])
def test_views_through_which_states_are_stored_are_refused(name: str) -> None:
    with ggplug_models.load(model_file(name), ["CPU"]) as model:
        stored = [model.sample()[f"blk.0.state.{part}"] for part in (0, 1)]
        views = [node.src[1] for node in stored if isinstance(node.op, Cpy)]
        assert len(views) == 2
        for view in views:
            with pytest.raises(ParameterError, match="write into no other tensor"):
                model.patch(view.name, lambda x: x)


def test_a_function_needs_a_device_that_calls_it(data: Path) -> None:
    def declined(node: Tensor) -> str:
        return "it calls no Python" if isinstance(node.op, PythonCall) else ""

    far = FakeDevice("far", inner=gg.device("CPU"), declines=declined)
    with ggplug_models.load(data / "qwen3.gguf", [far]) as model:
        said = r"patch 'blk\.\*\.l_out' .* on far only.*with the CPU too.* patch with an array"
        with pytest.raises(PlacementError, match=said):
            model.patch("blk.*.l_out", lambda x: x)
        assert model.patches == ()
        with model.patch("inp_embd", 1.0, add=True):
            model.run(TOKENS[:2])
    with ggplug_models.load(data / "qwen3.gguf", [far, "CPU"]) as model, model.patch("inp_embd", lambda x: x):
        model.run(TOKENS[:2])


def test_a_graph_with_arrays_as_patches_can_be_saved(qwen: Any, tmp_path: Path) -> None:
    with qwen.patch("blk.0.l_out", 1.0, add=True), qwen.session(16) as session, session.locked():
        graph = session.prepared(TOKENS)
        graph.save(tmp_path / "patched.gguf")
        qwen.scheduler.compute(graph)
        wanted = graph["result_output"].numpy()
    with gg.load_graph(tmp_path / "patched.gguf") as loaded, gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(loaded)
        loaded.set_inputs()
        scheduler.compute(loaded)
        np.testing.assert_allclose(loaded["result_output"].numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("stem", ["llama3", "gemma2", "qwen3moe"])
def test_outputs_of_blocks_are_the_hidden_states_of_transformers(stem: str) -> None:
    """Recorded in double precision; what differs is what float32 rounds."""
    with np.load(ORACLES / f"{stem}.npz") as arrays:
        tokens, states = arrays["tokens_1"].tolist(), arrays["hidden_f32_1"]
    with ggplug_models.load(ORACLES / f"{stem}.gguf", ["CPU"]) as model:
        names = ["inp_embd", *(f"blk.{n}.l_out" for n in range(model.n_layer - 1)), "result_norm"]
        found = model.run(tokens, names)
    assert len(states) == len(names)
    for name, wanted in zip(names, states, strict=True):
        error = ((found[name] - wanted) ** 2).sum() / (wanted**2).sum()
        assert error < 1e-5, name
