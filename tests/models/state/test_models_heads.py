"""Heads: blocks that guess further tokens (MTP) and EAGLE 3, compared with llama.cpp; and their drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from heads import EAGLES, GUESSED, NEXT, ORACLES, RECORDED, TARGET, TOKENS, write_eagle, write_next
from oracles.packed import model_file

import ggplug_models
from ggplug.cli.app import app
from ggplug.errors import ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import Decoder, Outputs, Session
from ggplug_models.commands.options import drafted_tokens
from ggplug_models.generation.drafts import MOST
from ggplug_models.generation.loop import generate, greedy
from ggplug_models.guessing.head_drafts import HeadDrafts
from ggplug_models.guessing.kinds import drafts_for
from ggplug_models.networks.heads import Head, NextBlock
from ggplug_models.sampling import Sampler, Sampling
from ggplug_models.state.steps import VECTORS

Floats = npt.NDArray[np.float32]

PROMPT = [int(token) for token in np.random.default_rng(6).integers(0, 68, 9)]


class Kept:
    """Keeps the values of nodes that a session computes."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.places: list[int] = []
        self.parts: list[list[Floats]] = []

    def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
        assert all(len(each) == len(tokens) for each in values)
        self.places.append(place)
        self.parts.append(list(values))

    @property
    def values(self) -> list[Floats]:
        return [np.concatenate(each) for each in zip(*self.parts, strict=True)]


def error(found: Floats, wanted: Floats) -> float:
    """The mean square of the difference, relative to that of the wanted values."""
    return float(((found - wanted) ** 2).mean() / (wanted**2).mean())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("heads")

    def make(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            (write_next if name in NEXT else write_eagle)(name, path)
        return path

    return make


@pytest.fixture(params=[*NEXT, *EAGLES])
def headed(request: pytest.FixtureRequest, made: Callable[[str], Path]) -> Iterator[tuple[str, Decoder, Head]]:
    """Each model, with its head."""
    name = request.param
    with ggplug_models.load(made(name) if name in NEXT else ORACLES / f"{TARGET}.gguf", ["CPU"]) as model:
        if name in NEXT:
            yield name, model, NextBlock(model)
        else:
            with ggplug_models.load(made(name), ["CPU"]) as eagle:
                yield name, model, eagle.head(model)


def test_vectors_and_logits_are_llama_cpps(headed: tuple[str, Decoder, Head]) -> None:
    name, model, head = headed
    with np.load(RECORDED) as recorded:
        read, logits = recorded[f"{name}_read"], recorded[f"{name}_logits"]
    kept, chained = Kept(*head.names), Kept(VECTORS)
    with Session(model, 64, cache_type="f32") as session, head.session(64, cache_type="f32") as own:
        session.decode({0: TOKENS}, reader=kept)
        vectors = head.encoded(kept.values)
        assert error(vectors, read) < 1e-5
        found = [own.decode({0: TOKENS[1:]}, Outputs.ALL, vectors={0: vectors[:-1]}, reader=chained)[0]]
        for token in GUESSED:
            last = chained.values[0][-1:]
            found.append(own.decode({0: [token]}, Outputs.ALL, vectors={0: last}, reader=chained)[0])
    places = [head.token(number) for number in range(found[0].shape[1])]
    assert np.isneginf(np.delete(logits, places, axis=1)).all()
    assert error(np.concatenate(found), logits[:, places]) < 1e-5


@pytest.mark.parametrize("name", NEXT)
def test_a_block_that_guesses_changes_no_logits_of_the_model(name: str, made: Callable[[str], Path]) -> None:
    load = ggplug_models.load
    with load(ORACLES / f"{NEXT[name]}.gguf", ["CPU"]) as plain, load(made(name), ["CPU"]) as model:
        assert np.array_equal(model.logits(TOKENS), plain.logits(TOKENS))
        assert len(model.kinds) == model.n_layer == plain.n_layer


def test_steps_with_vectors_compute_the_same_results_as_steps_without(headed: tuple[str, Decoder, Head]) -> None:
    _, model, head = headed
    for outputs in Outputs:
        with Session(model, 64, micro_batch=16) as plain, Session(model, 64, micro_batch=16) as read:
            kept = Kept(*head.names)
            for tokens in (TOKENS * 3, [7], [3, 4]):
                a = plain.decode({0: tokens}, outputs)
                b = read.decode({0: tokens}, outputs, reader=kept)
                assert a.keys() == b.keys()
                assert all(np.array_equal(a[seq], b[seq]) for seq in a)
            assert kept.places == [0, 16, 32, 36, 37]
            whole = Kept(*head.names)
            plain.clear()
            plain.decode({0: [*TOKENS * 3, 7, 3, 4]}, Outputs.ALL, reader=whole)
            assert all(error(a, b) < 1e-4 for a, b in zip(kept.values, whole.values, strict=True))


def test_each_sequence_of_a_step_gets_its_own_vectors(headed: tuple[str, Decoder, Head]) -> None:
    _, model, head = headed
    alone, rows = {}, {}
    batch = {0: TOKENS[:2], 2: TOKENS[5:6]}
    for seq, tokens in batch.items():
        with Session(model, 64) as session:
            kept = Kept(*head.names)
            session.decode({0: tokens}, Outputs.ALL, reader=kept)
            rows[seq] = kept.values
        with head.session(64) as own:
            vectors = head.encoded(kept.values)
            alone[seq] = own.decode({0: tokens}, Outputs.ALL, vectors={0: vectors})[0]

    found: dict[int, list[Floats]] = {}

    class BySequence:
        names = head.names

        def read(self, seq: int, place: int, tokens: Sequence[int], values: Sequence[Floats]) -> None:
            assert (place, tokens) == (0, batch[seq])
            found[seq] = list(values)

    with Session(model, 64, 3) as session, head.session(64, 3) as own:
        session.decode(batch, Outputs.ALL, reader=BySequence())
        assert all(np.array_equal(a, b) for seq in batch for a, b in zip(found[seq], rows[seq], strict=True))
        vectors = {seq: head.encoded(values) for seq, values in found.items()}
        together = own.decode(batch, Outputs.ALL, vectors=vectors)
        assert all(np.array_equal(together[seq], alone[seq]) for seq in batch)


@pytest.mark.parametrize("chooses", ["greedy", "drawn"])
def test_the_text_is_the_same_as_without_drafts(headed: tuple[str, Decoder, Head], chooses: str) -> None:
    _, model, head = headed

    def written(draft: HeadDrafts | None) -> list[int]:
        choose = greedy if chooses == "greedy" else Sampler(Sampling(temperature=1, seed=7))
        with Session(model, 64, micro_batch=8) as session:
            return list(generate(session, PROMPT, 50, choose=choose, draft=draft))

    plain = written(None)
    with head.session(64) as own:
        draft = HeadDrafts(own)
        assert written(draft) == plain
        assert draft.drafted > draft.accepted
        assert written(draft) == plain, "and once more, with what the head has read before"
    with head.session(16) as own:
        draft = HeadDrafts(own)
        assert written(draft) == plain, "a head may forget the beginning of a text"
        assert draft.drafted > 60


def test_the_head_reads_each_token_of_the_text_with_the_vector_before_it(headed: tuple[str, Decoder, Head]) -> None:
    _, model, head = headed
    with head.session(64, cache_type="f32") as of_draft, Session(model, 64, cache_type="f32") as session:
        draft = HeadDrafts(of_draft)
        plain = list(generate(session, PROMPT, 20, draft=draft))
        text = [*PROMPT, *plain]
        read = draft.session.tokens()
        assert read == tuple(text[1 : len(read) + 1])
        kept = Kept(*head.names)
        session.clear()
        session.decode({0: text}, Outputs.NONE, reader=kept)
        vectors = head.encoded(kept.values)
        with head.session(64, cache_type="f32") as own:
            own.decode({0: read}, Outputs.NONE, vectors={0: vectors[: len(read)]})
            for a, b in zip(own.memory.of_sequence(0), draft.session.memory.of_sequence(0), strict=True):
                n = len(read)
                assert error(a.numpy()[:n], b.numpy()[:n]) < 1e-6


def test_a_chat_that_goes_on_keeps_what_the_head_has_read(headed: tuple[str, Decoder, Head]) -> None:
    _, model, head = headed
    with head.session(64) as own, Session(model, 64) as session:
        draft = HeadDrafts(own)
        first = list(generate(session, PROMPT, 12, draft=draft))
        before = draft.session.length()
        next(generate(session, [*PROMPT, *first, 5, 6, 7, 8, 9], 2, draft=draft))
        assert draft._begin == 0
        assert draft.session.length() > before
        next(generate(session, [*PROMPT, *first[:4], 66, 3, 4, 5, 6, 7], 2, draft=draft))
        assert draft._begin == 0
        read = draft.session.tokens()
        assert read == tuple([*PROMPT, *first[:4], 66, 3, 4, 5, 6, 7][1 : len(read) + 1])
        next(generate(session, [1, 2, 3, 4, 5, 6, 7], 2, draft=draft))
        assert draft.session.tokens() == (2, 3, 4, 5, 6, 7)


def test_tokens_that_are_generated_without_guesses_are_read_as_well(headed: tuple[str, Decoder, Head]) -> None:
    _, model, head = headed
    with head.session(64) as own, Session(model, 64) as session:
        draft = HeadDrafts(own)
        text = [*PROMPT, *generate(session, PROMPT, 12)]
        session.clear()
        session.decode({0: text[:5]}, reader=draft)
        for token in text[5:-1]:
            session.decode({0: [token]}, reader=draft)
        assert draft.session.length() > len(text) - 8
        assert draft.session.tokens() == tuple(text[1 : own.length() + 1])
        assert len(draft.guess(text, 3)) == 3
        assert draft.session.tokens() == tuple(text[1:])


def test_guesses_of_a_head_that_copies_the_model_are_right(made: Callable[[str], Path]) -> None:
    """The most probable token of the head is the first draft token, and an unlikely one ends the draft."""
    with ggplug_models.load(made("glm4moe"), ["CPU"]) as model, NextBlock(model).session(64) as own:
        draft = HeadDrafts(own)
        with Session(model, 64) as session:
            session.decode({0: PROMPT}, reader=draft)
        guessed = draft.guess([*PROMPT, 4], 3)
        assert len(guessed) == 3
        draft.least = 1.0
        with Session(model, 64) as session:
            session.decode({0: PROMPT}, reader=draft)
        assert draft.guess([*PROMPT, 4], 3) == []


def test_drafts_are_made_by_the_name_of_their_kind_or_by_a_file(made: Callable[[str], Path], data: Path) -> None:
    with ggplug_models.load(made("glm4moe"), ["CPU"]) as model:
        plain = list(model.generate_ids(PROMPT, 20))
        for what in ("mtp", "draft-mtp", "lookup", "ngram-simple", "ngrams", "ngram-cache", made("glm4moe")):
            with drafts_for(model, what, n_ctx=64) as (draft,):
                assert list(model.generate_ids(PROMPT, 20, draft=draft)) == plain, what
    with ggplug_models.load(ORACLES / f"{TARGET}.gguf", ["CPU"]) as model:
        with drafts_for(model, made("eagle3"), 2, n_ctx=64, most=2) as both:
            assert [type(each) for each in both] == [HeadDrafts] * 2
            assert both[0].session is both[1].session
            assert [each.most for each in both] == [2, 2]
        with pytest.raises(ParameterError, match="is a bert model, which cannot guess tokens"):
            drafts_for(model, data / "bert.gguf").__enter__()
        with pytest.raises(ModelError, match=r"no block that guesses further tokens \(MTP\): .*blk.2.nextn.eh_proj"):
            drafts_for(model, "mtp").__enter__()


def changed(source: Path, target: Path, leave: str = "", **keys: Any) -> Path:
    """A copy of a file without a tensor, and with other metadata."""
    with GGUFReader(source) as reader, GGUFWriter(target, reader.metadata["general.architecture"]) as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, keys.get(key.rpartition(".")[2], value))
        for name, info in reader.tensors.items():
            if name != leave:
                writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    return target


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"leave": "fc.weight"}, "no tensor 'fc.weight'"),
        ({"leave": "blk.0.attn_norm_2.weight"}, "no tensor 'blk.0.attn_norm_2.weight'"),
        ({"target_layers": np.array([0, 1, 3], np.int32)}, "the layers 0, 1, 3; the model's have 32, and it has 2"),
        ({"target_layers": np.array([], np.int32)}, "target_layers must be an array of"),
        ({"target_hidden_size": 16}, "vectors of 16 elements"),
        ({"block_count": 2}, "block_count must be 1"),
        (
            {"tokens": [f"<{n}>" for n in range(72)]},
            "the head has a different vocabulary: its token 0 is '<0>', the model's",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused_in_words(
    how: dict[str, Any], message: str, made: Callable[[str], Path], tmp_path: Path
) -> None:
    path = changed(made("eagle3"), tmp_path / "eagle3.gguf", **how)
    with ggplug_models.load(ORACLES / f"{TARGET}.gguf", ["CPU"]) as model, pytest.raises(ModelError, match=message):
        drafts_for(model, path).__enter__()


def test_a_block_that_lacks_a_tensor_is_refused_when_it_is_used(made: Callable[[str], Path], tmp_path: Path) -> None:
    path = changed(made("glm4moe"), tmp_path / "a.gguf", leave="blk.2.nextn.enorm.weight")
    with ggplug_models.load(path, ["CPU"]) as model:
        assert list(model.generate_ids(PROMPT, 3))
        with pytest.raises(ModelError, match=r"no tensor 'blk.2.nextn.enorm.weight'"):
            NextBlock(model)


@pytest.mark.parametrize("name", ["deepseek4", "step35"])
def test_a_block_that_guesses_from_other_vectors_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with GGUFReader(model_file(name)) as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        writer.add(f"{name}.nextn_predict_layers", 1)
        for each, info in reader.tensors.items():
            writer.add_tensor(each, reader.data(each), info.type, info.ne)
        writer.add_tensor("blk.2.nextn.eh_proj.weight", np.zeros((32, 64), np.float32))
        writer.write()
    with ggplug_models.load(path, ["CPU"]) as model:
        assert list(model.generate_ids(PROMPT, 3))
        with pytest.raises(ModelError, match=r"guesses further tokens \(MTP\), which is not supported for"):
            NextBlock(model)


def test_drafts_of_another_models_head_are_refused(made: Callable[[str], Path]) -> None:
    path = made("glm4moe")
    wanted = pytest.raises(ModelError, match="the head of these drafts reads what")
    load = ggplug_models.load
    with load(path, ["CPU"]) as a, load(path, ["CPU"]) as b, NextBlock(a).session(64) as own, wanted:
        list(b.generate_ids(PROMPT, 3, draft=HeadDrafts(own)))


def test_a_head_needs_a_vector_with_each_token(made: Callable[[str], Path]) -> None:
    with ggplug_models.load(made("glm4moe"), ["CPU"]) as model, NextBlock(model).session(8) as own:
        with pytest.raises(ParameterError, match="a head reads a vector of 32 elements with each token, got none"):
            own.decode({0: [1, 2]})
        with pytest.raises(ParameterError, match="of 32 elements with each token, got 16"):
            own.decode({0: [1, 2]}, vectors={0: np.zeros((2, 16), np.float32)})
        for wrong in ({0: np.zeros((1, 32))}, {1: np.zeros((2, 32))}, {0: np.zeros(32)}, {}):
            with pytest.raises(ParameterError, match="vectors must have a row for each token"):
                own.decode({0: [1, 2]}, vectors=wrong)
        with pytest.raises(ParameterError, match="no node of the model is called 'nothing'"):
            own.decode({0: [1]}, vectors={0: np.zeros((1, 32), np.float32)}, reader=Kept("nothing"))
        assert own.length() == 0
        assert own.decode({0: [1]}, vectors={0: np.zeros((1, 32), np.float32)})[0].shape == (72,)


def test_drafts_need_a_session_of_a_head(made: Callable[[str], Path]) -> None:
    with ggplug_models.load(made("glm4moe"), ["CPU"]) as model, Session(model, 64) as session:
        with pytest.raises(ParameterError, match="session must be that of a head, got <Session of"):
            HeadDrafts(session)
        with (
            pytest.raises(ParameterError, match="least must be a number from 0 to 1"),
            NextBlock(model).session(8) as own,
        ):
            HeadDrafts(own, least=2)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["run", "-p", "a"], "is an EAGLE 3 head, which cannot generate text"),
        (["serve"], "is an EAGLE 3 head, which cannot be served"),
        (["embed"], "is an EAGLE 3 head, which has no embeddings"),
        (["rerank", "a"], "is an EAGLE 3 head, which has no classifier, so it is no reranker"),
        (["compare", "--device", "CPU", "--device", "CPU"], "is an EAGLE 3 head, which reads no texts by itself"),
    ],
)
def test_a_head_does_nothing_by_itself(command: list[str], message: str, made: Callable[[str], Path]) -> None:
    done = CliRunner().invoke(app, [command[0], str(made("eagle3")), *command[1:]], input="a text\n")
    assert done.exit_code != 0
    assert message in str(done.exception or done.output)
    assert "it guesses tokens for the model that it was made for" in str(done.exception)


def test_what_a_head_cannot_do_by_itself_is_said_in_python_too(made: Callable[[str], Path]) -> None:
    uses: list[Callable[[Any], object]] = [
        lambda head: head.generate("a"),
        lambda head: head.logits([1]),
        lambda head: head.tokenizer,
        lambda head: Session(head, 8),
        lambda head: head.node_names(),
        lambda head: head.patch("l_out", 1),
    ]
    with ggplug_models.load(made("eagle3"), ["CPU"]) as head:
        for use in uses:
            with pytest.raises(
                ModelError, match=r"EAGLE 3 head .*it guesses tokens for the model that it was made for"
            ):
                use(head)
        assert not hasattr(head, "generate")


def test_commands_guess_as_many_tokens_as_python_does() -> None:
    from ggplug_models.commands.run import run
    from ggplug_models.serve.command import serve

    said = [option.help for each in (run, serve) for option in each.params if option.name == "draft_tokens"]
    assert all(text.endswith(f"Default: {MOST}.") for text in said)
    assert drafted_tokens("ngrams", None) == MOST


@pytest.mark.parametrize("kind", ["mtp", "ngrams", "lookup", "eagle3"])
def test_the_command_prints_the_same_text(kind: str, made: Callable[[str], Path]) -> None:
    path = ORACLES / f"{TARGET}.gguf" if kind == "eagle3" else made("glm4moe")
    command = ["run", str(path), "-p", "hello hello", "-n", "30", "--temperature", "0", "-v", "--device", "CPU"]
    what = str(made(kind)) if kind == "eagle3" else kind
    plain, done = (
        CliRunner().invoke(app, [*command, *more]) for more in ([], ["--draft", what, "--draft-tokens", "2"])
    )
    assert plain.exit_code == done.exit_code == 0, done.output
    assert done.stdout == plain.stdout
    assert "draft tokens accepted" in " ".join(done.stderr.split())
