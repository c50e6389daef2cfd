"""The chat page, in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser, programs
from held import until

from ggplug_models.networks.decoder import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from served import Live, running, served

from ggplug_models.serve.app import Rules
from ggplug_models.serve.loaded import loaded
from ggplug_models.serve.models import Models
from ggplug_models.serve.page import Page
from ggplug_models.serve.service import Service
from ggplug_models.serve.writer import Writer

needs_a_browser = pytest.mark.skipif(programs() is None, reason="there is no Chromium with its chromedriver")

ANSWER = """Some **text** with `code`:

```python
def f(x):
    return x < 1 and "<b>"
```

1. first
2. second

<img src=x onerror="document.title='owned'"><script>document.title = 'owned'</script>"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the model says, in place of what it would."""
    texts: list[str] = []

    def chosen(writer: Writer, *_: object) -> Any:
        ids = [*writer.tokenizer.encode(texts.pop(0)), min(writer.tokenizer.ends)]
        coming = iter(ids)

        def choose(logits: object, history: Sequence[int]) -> int:
            return next(coming)

        return choose

    monkeypatch.setattr(Writer, "_sampler", chosen)
    return texts


def visit(window: Browser, live: Live) -> None:
    window.open(f"http://127.0.0.1:{live.port}/")
    until(lambda: window.count("#about") == 1)


def ask(window: Browser, question: str) -> None:
    window.type("#question", question)
    window.click("#send")


def answered(window: Browser, count: int) -> None:
    until(lambda: window.count(".turn.assistant .below") == count)


def test_the_page_reaches_nothing_but_its_server() -> None:
    page = Page()
    policy = page._headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    content = page._content.decode()
    assert content.count("<script>") == content.count("<style>") == 1
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "src=", "@import"):
        assert forbidden not in content


@needs_a_browser
def test_an_answer_is_shown_as_text_and_never_as_markup(model: Decoder, window: Browser, said: list[str]) -> None:
    with served(model, slots=1, context=2048 if model.n_ctx > 2048 else None) as live:
        visit(window, live)
        until(lambda: window.text("#model") == "tiny")
        said += [ANSWER, "And again."]
        ask(window, "hello <i>you</i>")
        answered(window, 1)
        assert window.text(".turn.user .text") == "hello <i>you</i>"
        assert window.text(".turn.assistant pre code") == 'def f(x):\n    return x < 1 and "<b>"'
        assert window.text(".turn.assistant .block span") == "python"
        assert window.script("return [...document.querySelectorAll('.assistant li')].map(e => e.textContent)") == [
            "first",
            "second",
        ]
        assert window.text(".turn.assistant .text p:last-child").startswith("<img src=x onerror=")
        assert window.count("#log img, #log script, #log b") == 0
        assert window.script("return document.title") == "tiny"
        ask(window, "more")
        answered(window, 2)
        assert window.count(".turn") == 4
        for width in (320, 400, 1200):
            window.resize(width, 800)
            assert window.script("return document.documentElement.scrollWidth") == width
        window.click("#new")
        assert window.count(".turn") == 0


@needs_a_browser
def test_the_stop_button_frees_the_slot(model: Decoder, window: Browser, said: list[str]) -> None:
    with served(model, slots=1) as live:
        assert live.gate is not None
        assert live.service.writer is not None
        batcher = live.service.writer.batcher
        visit(window, live)
        live.gate.shut()
        said += ["word " * 50]
        ask(window, "hello")
        for _ in range(4):
            live.gate.wait()
            live.gate.let()
        live.gate.wait()
        until(lambda: window.text(".turn.assistant .text") != "")
        window.click("#stop")
        until(lambda: batcher._slots[0].request.cancelled)
        live.gate.open()
        until(lambda: batcher.status.active == 0)
        answered(window, 1)
        assert "stopped" in window.text(".below")
        assert batcher.status.generated_tokens <= 6


@needs_a_browser
def test_errors_are_displayed_and_the_question_can_be_sent_again(
    model: Decoder, window: Browser, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(model, slots=1) as live:
        assert live.service.writer is not None
        visit(window, live)
        with monkeypatch.context() as patched:
            patched.setattr(live.service.writer.session, "decode", lambda batch: {}[None])
            said += ["never", "Now it works."]
            ask(window, "hello")
            until(lambda: window.count(".error button") == 1)
            assert "internal server error; see the server's log for the reason" in window.text(".error")
        window.click(".error button")
        answered(window, 1)
        assert window.text(".turn.assistant .text") == "Now it works."
        assert window.count("#log .error") == 0


@needs_a_browser
def test_the_page_requests_a_key_if_the_server_requires_one(model: Decoder, window: Browser, said: list[str]) -> None:
    with served(model, Rules(keys=["right"]), slots=1) as live:
        visit(window, live)
        for given in ("wrong", "right"):
            until(lambda: window.count("#key-dialog[open]") == 1)
            window.type("#requested-key", given)
            window.click("#key-dialog button.main")
            if given == "wrong":
                until(lambda: window.count("#key-dialog[open] #key-rejected:not([hidden])") == 1)
        until(lambda: window.text("#model") == "tiny")
        said += ["Welcome."]
        ask(window, "hello")
        answered(window, 1)
        assert window.text(".turn.assistant .text") == "Welcome."


@needs_a_browser
def test_the_model_is_chosen_where_there_are_several(
    model: Decoder, window: Browser, said: list[str], tmp_path: Path
) -> None:
    def service(name: str, path: Path) -> Service:
        return Service(name, lambda counts: loaded(lambda: nullcontext(model), name, counts, slots=1), slots=1)

    models = Models(lambda: {"a": tmp_path, "b": tmp_path}, service, most=1)
    with running(models) as live:
        visit(window, live)
        until(lambda: window.text("#model") == "a")
        window.script(
            "const list = document.querySelector('#models'); list.value = 'b'; list.dispatchEvent(new Event('change'))"
        )
        until(lambda: window.text("#model") == "b")
        said.append("Well.")
        ask(window, "hello")
        answered(window, 1)
        assert {name: each.is_loaded for name, each in models.services.items()} == {"a": False, "b": True}
