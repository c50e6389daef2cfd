"""``ggplug bench serving``."""

from __future__ import annotations

from typing import Any

import pytest

from ggplug.errors import ModelError
from ggplug_models.networks.decoder import Decoder

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from ggplug_models.benchmarks import serving


def test_steps_are_timed_with_the_server_and_without(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REPEATS", 1)
    row = serving.measured(model, 40, 80)
    assert row["milliseconds"] > 0
    assert row["without_milliseconds"] > 0
    assert row["beyond_generate"] == pytest.approx(row["milliseconds"] / row["without_milliseconds"] - 1)


def test_a_server_that_writes_other_texts_is_reported(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = serving._plain

    def other(*given: Any) -> Any:
        seconds, texts = plain(*given)
        return seconds, [text[::-1] for text in texts]

    monkeypatch.setattr(serving, "_plain", other)
    with pytest.raises(ModelError, match="not those without it"):
        serving.measured(model, 40, 80)
