"""The chat page shows the reasoning of a model apart from its answer, and does not send it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggplug_models import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from answers.scripted import THINKING, Scripted
from browser import browser, programs
from held import until
from served import served


@pytest.mark.skipif(programs() is None, reason="there is no Chromium with its chromedriver")
def test_the_reasoning_is_shown_apart_and_not_sent_back(
    model: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["I <b>wonder</b>.</think>Yes.", "Hm.</think>No."]

    def sampler(*args: Any, constraint: Any = None, **more: Any) -> Scripted:
        return Scripted(model.tokenizer, [texts.pop(0)])

    monkeypatch.setattr("ggplug_models.serve.writer.Sampler", sampler)
    with served(model, slots=1, template=THINKING) as live, browser(tmp_path) as window:
        window.open(f"http://127.0.0.1:{live.port}/")
        until(lambda: window.count("#about") == 1)
        for count, question in enumerate(("Really?", "Sure?"), 1):
            window.type("#question", question)
            window.click("#send")
            until(lambda wanted=count: window.count(".turn.assistant .below") == wanted)
        assert window.text(".turn.assistant .text") == "Yes."
        assert window.count(".turn.assistant .thoughts") == 2
        window.click(".thoughts summary")
        assert window.text(".thoughts div") == "I <b>wonder</b>."
        assert live.service.writer is not None
        prompt = live.service.writer.session.tokens(0)
        assert "wonder" not in model.tokenizer.decode(prompt)
