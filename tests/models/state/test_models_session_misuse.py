"""Sessions that are shared, interrupted, freed or left in the middle: an error or the right text, never a wrong one."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip
from interrupts import interrupted_everywhere
from oracles.packed import ORACLES, model_file

import ggplug_models
from ggplug.errors import BusyError, ContextFullError, FreedError, ParameterError
from ggplug.sharing import waits
from ggplug_models import Outputs, Session
from ggplug_models.generation.drafts import PromptLookup
from ggplug_models.sampling import Sampler, Sampling

TEXT = [int(x) for x in np.random.default_rng(5).integers(3, 290, 40)]


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Any]:
    """Gemma 3: six blocks, five of them with a window of 12."""
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model:
        yield model


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 1e-4 * np.abs(b).max())


def test_a_context_of_more_tokens_than_there_are_positions_is_refused() -> None:
    with ggplug_models.load(ORACLES / "gpt2.gguf", ["CPU"]) as model:
        most = model.n_ctx
        text = [int(x) for x in np.random.default_rng(5).integers(3, model.n_vocab, most + 1)]
        positions = rf"n_ctx is {most + 1}, but this gpt2 model has embeddings for {most} positions"
        length = rf"ids\[1\] has {most + 1} tokens; the context length of the model is {most}"
        for ask, refused in (
            (model.logits, positions),
            (lambda ids: model.session(len(ids)), positions),
            (lambda ids: model.embed_ids([ids[:3], ids]), length),
        ):
            with pytest.raises(ParameterError, match=refused) as caught:
                ask(text)
            assert (caught.value.got, caught.value.wanted) == (most + 1, most)
        alone = model.logits(text[:most])
        with model.session(most, n_seq=2, cache_type="f32") as session:
            session.decode({0: text[: most - 2], 1: text[:3]})
            found = session.decode({0: text[most - 2 : most], 1: text[3:4]})
        assert near(found[0], alone[most - 1])
        assert near(found[1], alone[3])


def test_two_texts_that_alternate_in_one_sequence_are_what_each_is_by_itself(model: Any) -> None:
    prompts = ([5, 6, 7], [9, 9], [5, 6])
    wanted = [list(model.generate_ids(prompt, 6)) for prompt in prompts]
    with model.session(128) as session:
        running = [model.generate_ids(prompt, 6, session=session) for prompt in prompts]
        found: list[list[int]] = [[], [], []]
        for _ in range(6):
            for text, each in zip(found, running, strict=True):
                text += [token for token in (next(each, None),) if token is not None]
    assert found == wanted


def test_a_session_that_was_used_in_between_is_read_again(model: Any) -> None:
    wanted = list(model.generate_ids(TEXT[:9], 6))
    for use in (
        lambda session: session.clear(),
        lambda session: session.rewind(3),
        lambda session: session.decode({0: [77]}),
        lambda session: (session.rewind(2), session.decode({0: TEXT[20:28]})),  # as many tokens as before
        lambda session: session.copy(1, 0),
    ):
        with model.session(128, n_seq=2) as session:
            found = []
            for token in model.generate_ids(TEXT[:9], 6, session=session):
                found.append(token)
                use(session)
        assert found == wanted


def test_a_text_that_is_left_leaves_the_session_to_others(model: Any) -> None:
    wanted = list(model.generate_ids([5, 6, 7], 6))
    with model.session(128) as session:
        left = model.generate_ids([5, 6, 7], 50, session=session)
        next(left)
        left.close()
        assert list(model.generate_ids([5, 6, 7], 6, session=session)) == wanted
        dropped = model.generate_ids([5, 6, 7], 50, session=session)
        next(dropped)
        del dropped
        gc.collect()
        assert list(model.generate_ids([5, 6, 7], 6, session=session)) == wanted


def test_what_was_freed_says_so_and_stays_so(model: Any, tmp_path: Path) -> None:
    session = model.session(64, n_seq=2)
    running = model.generate_ids([5, 6], 9, session=session)
    next(running)
    session.free()
    session.free()
    for use in (
        lambda: next(running),
        lambda: session.decode({0: [1]}),
        lambda: session.clear(),
        lambda: session.rewind(0),
        lambda: session.copy(0, 1),
        lambda: session.save(tmp_path / "freed.gguf"),
    ):
        with pytest.raises(FreedError, match="was freed"):
            use()
    assert not list(tmp_path.iterdir())
    with pytest.raises(FreedError, match="was freed"):
        list(model.generate_ids([5], 3, session=(own := model.session(8)), choose=lambda *_: own.free() or 1))


@pytest.mark.parametrize("use", ["decode", "collect"])
def test_freeing_waits_for_the_step_of_another_thread_whose_next_one_is_refused(
    use: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    step_of = Session._step_of

    def held(self: Session, *args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return step_of(self, *args, **kwargs)

    session = Session(model, 64, micro_batch=4)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            session.decode({0: TEXT[:9]}) if use == "decode" else session.collect(TEXT[:9], ["logits"])
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(Session, "_step_of", held)
    computing, freeing = threading.Thread(target=call), threading.Thread(target=session.free)
    computing.start()
    assert inside.wait(60)
    freeing.start()
    while not waits(freeing.ident or 0):
        assert freeing.is_alive(), "it did not wait"
    go_on.set()
    for thread in (computing, freeing):
        thread.join(60)
    assert [type(error) for error in errors] == [FreedError]
    assert (session.freed, session.tokens()) == (True, tuple(TEXT[:4]))


def test_a_session_is_not_freed_while_its_own_thread_has_locked_it(model: Any) -> None:
    session = model.session(8)
    with session.locked(), pytest.raises(BusyError, match="this thread"):
        session.free()
    assert session.decode({0: [1]})
    session.free()


def test_tokens_that_do_not_fit_are_not_adopted(model: Any) -> None:
    with Session(model, 8, cache_type="f32") as session:
        session.decode({0: [5, 6]})
        for tokens, overwritten, error in (
            ([5] * 9, [0, 0], ContextFullError),
            ([10**6], [0, 0], ParameterError),
            ([5], [0], ParameterError),
            ([5], [0, 7], ParameterError),
        ):
            with pytest.raises(error):
                session.adopt(0, tokens, overwritten)
        assert session.tokens() == (5, 6)
        session.adopt(0, [5], [0, 0])
        assert session.tokens() == (5,)
        session.adopt(0, [], [0, 0])
        assert session.tokens() == ()


def test_a_thread_gets_busy_while_another_one_is_in_the_session(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, refused = threading.Event(), threading.Event()
    compute = Session._compute

    def held(self: Session, *args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert refused.wait(60)
        return compute(self, *args, **kwargs)

    with Session(model, 64, n_seq=2, cache_type="f32") as session:
        session.decode({0: TEXT[:5]})
        monkeypatch.setattr(Session, "_compute", held)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(session.decode({0: TEXT[5:9]})[0]))
        thread.start()
        assert inside.wait(60)
        for use in (
            lambda: session.decode({1: [1]}),
            lambda: session.rewind(0),
            lambda: session.clear(),
            lambda: session.copy(0, 1),
        ):
            with pytest.raises(BusyError, match="is in use"):
                use()
        refused.set()
        thread.join()
        assert near(found[0], model.logits(TEXT[:9])[-1])


@pytest.mark.parametrize("name", ["gemma3", "lfm2"])
def test_an_interrupt_anywhere_leaves_what_was_read_or_nothing(name: str) -> None:
    with ggplug_models.load(model_file(name), ["CPU"]) as model, Session(model, 64, 2, "f32", 4) as session:
        texts = {0: [each % 70 for each in TEXT[:5]], 1: [each % 70 for each in TEXT[20:24]]}
        wanted = {seq: model.logits([*text, 7])[-1] for seq, text in texts.items()}

        def action() -> None:
            session.clear()
            session.decode(dict(texts), Outputs.NONE)
            session.copy(0, 1)
            session.rewind(2, 1)
            session.rewind(0, 1)
            session.decode({1: texts[1]}, Outputs.NONE)

        action()

        def ours(frame: Any) -> bool:
            package = frame.f_globals.get("__name__", "")
            return bool(package.startswith("ggplug_models"))

        interrupts = 0
        for place in interrupted_everywhere(action, ours):
            interrupts += 1
            held = [list(session.tokens(seq)) for seq in (0, 1)]
            for seq in (0, 1):  # goes on from what it says that it has
                text = held[seq] + [7]
                found = session.decode({seq: [7]})[seq]
                if interrupts % 7 == 0 or held[seq] not in ([], texts[seq]):
                    assert near(found, model.logits(text)[-1]), (place, held)
                elif held[seq]:
                    assert near(found, wanted[seq]), (place, held)
        assert interrupts > 50


@pytest.mark.long
@pytest.mark.parametrize("name", ["CPU", "OpenCL0"])
def test_two_sessions_of_one_model_are_right_whenever_ctrl_c_comes(name: str, data: Path) -> None:
    """Real signals at random moments of computations of equal graphs over the memory of one session and the other."""
    device_or_skip(name)
    random = np.random.default_rng(1)

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    def decode(session: Session) -> np.ndarray:
        session.clear()
        return session.decode({0: TEXT[:3]})[0]

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ggplug_models.load(data / "gemma3.gguf", [name]) as model, model.session(64) as a, model.session(64) as b:
            wanted = decode(a)
            interrupts = 0
            for _ in range(1000):
                first, second = (a, b) if random.integers(2) else (b, a)
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(random.uniform(1e-5, 4e-3)))
                    decode(first)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
                assert (decode(second) == wanted).all()
                assert (decode(first) == wanted).all()
            assert interrupts > 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_model_writes_nothing_in_a_session_of_another(model: Any, data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as other, other.session(64) as session:
        wanted = list(other.generate_ids(TEXT[:9], 4, session=session))
        for ask in (model.generate_ids, lambda ids, n, session: model.texts(ids, n, session=session)):
            with pytest.raises(
                ParameterError, match="session must be a session of this model, got a session of another model"
            ):
                ask(TEXT[:9], 4, session=session)
        assert list(other.generate_ids(TEXT[:9], 4, session=session)) == wanted
    for odd in ("x", 128, Session):
        with pytest.raises(ParameterError, match="session must be a session of this model"):
            model.generate_ids(TEXT[:9], 4, session=odd)


def test_arguments_that_are_of_no_use_are_refused_in_the_call(model: Any) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"choose": Sampling()}, "choose must be a function of the logits"),
        ({"choose": Sampler}, "choose must be"),
        ({"choose": None}, "choose must be"),
        ({"draft": True}, "draft must be a Drafts object, such as PromptLookup"),
        ({"draft": PromptLookup}, "draft must be"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "text"}, "prompt"),
    ]
    for given, message in refused:
        with pytest.raises(ParameterError, match=message):
            model.generate_ids(**{"prompt": TEXT[:9], **given})


def test_an_option_that_is_a_sampler_s_is_refused_by_its_name_in_the_call(model: Any) -> None:
    asks = (lambda **how: model.generate("a text", 4, **how), lambda **how: model.texts(TEXT[:9], 4, **how))
    for ask in (*asks, lambda **how: model.generate_ids(TEXT[:9], 4, **how)):
        with pytest.raises(TypeError, match=r"generate.* unexpected keyword argument 'temperature'"):
            ask(temperature=0.5)


def test_a_model_makes_a_session_for_the_first_token_and_frees_it_after_the_last(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Session] = []
    plain = model.session
    monkeypatch.setattr(model, "session", lambda *how: made.append(plain(*how)) or made[-1])
    tokens = model.generate_ids(TEXT[:9], 4)
    assert not made
    first = next(tokens)
    (session,) = made
    assert [first, *tokens] == list(model.generate_ids(TEXT[:9], 4, session=plain(64)))
    assert session.freed
    left = model.generate_ids(TEXT[:9], 4)
    next(left)
    left.close()
    assert made[-1].freed
