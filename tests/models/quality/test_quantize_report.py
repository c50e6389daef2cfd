"""``ggplug quantize --report``: what types cost, without files that stay."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from paths import DATA

import ggplug_models
from ggplug.cli.app import app
from ggplug.cli.quantize_report import TYPES
from ggplug.errors import ParameterError, TypeMismatchError
from ggplug.gguf import GGUFReader
from ggplug.quantizing import preview_file, quantize_file
from ggplug_models.perplexity import perplexities

MODEL = DATA / "qwen3.gguf"
TEXT = "".join(f"{n} tokens of {n * n} texts; " for n in range(40))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "temporary"


def report(*options: str) -> list[dict[str, float]]:
    done = CliRunner().invoke(app, ["quantize", str(MODEL), "--report", "--json", *options])
    assert done.exit_code == 0, done.output
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    rows = report("--types", "Q8_0,q4_k_m")
    assert [row["type"] for row in rows] == ["COPY", "Q8_0", "Q4_K_M"]
    for row in rows:
        quantize_file(MODEL, tmp_path / "out.gguf", str(row["type"]))
        with GGUFReader(tmp_path / "out.gguf") as reader:
            infos = reader.tensors.values()
            assert row["bytes"] == sum(info.nbytes for info in infos)
            assert row["bits_per_weight"] == 8 * row["bytes"] / sum(info.n_elements for info in infos)
    assert [row["type"] for row in report()] == ["COPY", *TYPES]


def test_a_text_shows_what_types_cost_and_no_file_stays(temporary: Path, tmp_path: Path) -> None:
    text = str(tmp_path / "text.txt")
    source, fine, coarse = report("--types", "Q8_0,Q4_0", "--text", text, "--context", "32", "--chunks", "3")
    assert list(temporary.iterdir()) == []
    assert source["divergence"] is None
    with ggplug_models.load(MODEL) as model:
        *_, wanted = perplexities(model, model.tokenizer.encode(TEXT, add_special=True), 32, chunks=3)
    assert source["perplexity"] == pytest.approx(wanted.value, rel=1e-6)
    assert source["perplexity_error"] == pytest.approx(wanted.error, rel=1e-6)
    assert 0 < fine["divergence"] < coarse["divergence"] / 10
    assert fine["same_top"] > coarse["same_top"]
    shown = CliRunner().invoke(
        app, ["quantize", str(MODEL), "--report", "--types", "Q4_0", "--text", text, "--context", "32", "--chunks", "3"]
    )
    assert shown.stdout.splitlines()[0].split()[:4] == ["type", "GiB", "bits", "perplexity"]
    assert f"{coarse['perplexity']:.3f} +/- " in shown.stdout.splitlines()[3]


def test_what_cannot_be_made_is_refused_before_anything_is_measured(temporary: Path, tmp_path: Path) -> None:
    quantize_file(MODEL, tmp_path / "q8_0.gguf", "Q8_0")
    for model, name, kind in ((MODEL, "Q9_9", ParameterError), (tmp_path / "q8_0.gguf", "Q4_0", TypeMismatchError)):
        command = ["quantize", str(model), "--report", "--types", f"Q8_0,{name}", "--text", str(tmp_path / "text.txt")]
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, kind)
        assert done.stdout == ""
    assert list(temporary.iterdir()) == []


def test_a_preview_refuses_what_writing_refuses(tmp_path: Path) -> None:
    quantize_file(MODEL, tmp_path / "q4_0.gguf", "Q4_0")
    with pytest.raises(TypeMismatchError, match="already"):
        preview_file(tmp_path / "q4_0.gguf", "Q8_0")
    found = preview_file(MODEL, "Q4_0", overrides=[("attn_v", "Q8_0")])
    assert found == quantize_file(MODEL, tmp_path / "mixed.gguf", "Q4_0", overrides=[("attn_v", "Q8_0")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["out.gguf", "--report"], "leave OUT and TYPE out"),
        (["--report", "--chunks", "3"], "need --text"),
        (["out.gguf", "Q4_0", "--types", "Q8_0"], "need --report"),
        (["out.gguf"], "Missing argument 'TYPE'"),
        ([], "Missing argument 'OUT'"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["quantize", str(MODEL), *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
