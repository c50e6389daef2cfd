"""``ggplug models``: lists, shows and removes the models of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_stand_in import Hub

from ggplug.cli.app import run
from ggplug.cli.bench import is_file
from ggplug.cli.model_file import ModelFile
from ggplug_models.by_name.lookup import path_of

constants = pytest.importorskip("huggingface_hub.constants")
REPOSITORY = "someone/tiny-GGUF"
NAME = f"hf:{REPOSITORY}"


@pytest.fixture
def tiny(hub: Hub, data: Path) -> Hub:
    whole = (data / "qwen3.gguf").read_bytes()
    hub.repositories[REPOSITORY] = {"tiny-Q4_K_M.gguf": b"other", "tiny-Q8_0.gguf": whole}
    return hub


def listed(capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The models of the hub in the list, each with its problem."""
    assert run(["models", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    return {each["name"]: each["problem"] for each in found if each["name"].startswith("hf:")}


def test_without_a_model_the_list_says_how_to_get_one(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    assert "ggplug run hf:OWNER/REPOSITORY downloads one" in capfd.readouterr().err


def test_models_that_were_downloaded_are_listed_shown_and_removed(
    tiny: Hub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path_of(NAME)
    assert run(["models", "show", f"{NAME}:Q8_0"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())
    assert Path(shown["file"]).name == "tiny-Q8_0.gguf"
    assert shown["chosen"] == "Q8_0, the name says so"
    assert shown["architecture"] == "qwen3"
    names = [f"{NAME}:tiny-Q4_K_M.gguf", f"{NAME}:tiny-Q8_0.gguf"]
    assert list(listed(capfd)) == names
    assert run(["models"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("hf:")] == names

    assert run(["models", "remove", names[1]]) == 0
    assert f"{names[1]}: 371.4 KiB freed" in capfd.readouterr().err
    assert list(listed(capfd)) == names[:1]
    assert run(["models", "remove", NAME]) == 0
    assert listed(capfd) == {}
    assert not (cache / "models--someone--tiny-GGUF").exists()


def test_without_the_hub_the_command_shows_what_the_cache_has(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for wanted in ("Q8_0", "Q4_K_M"):
        path_of(f"{NAME}:{wanted}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run(["models", "show", f"{NAME}:Q8_0"]) == 0
    why = f"the hub is not asked for {REPOSITORY} while HF_HUB_OFFLINE is set"
    assert f"Q8_0, the name says so; from the cache, because {why}\n" in capfd.readouterr().out
    assert run(["models", "show", f"{NAME}:Q6_K"]) == 1
    listed = capfd.readouterr().err.partition("there are: ")[2]
    assert listed == "tiny-Q4_K_M.gguf, tiny-Q8_0.gguf; or unset HF_HUB_OFFLINE\n", "all, where there are few"


def test_a_download_that_is_not_complete_is_listed_and_removed(
    tiny: Hub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.cuts = [1000] * 20
    assert run(["models", "show", f"{NAME}:Q8_0"]) == 1
    assert "error: the connection to the hub failed" in capfd.readouterr().err
    assert listed(capfd) == {NAME: "not complete; loading the model again continues"}
    assert run(["models", "remove", NAME]) == 0
    assert f"{NAME}: 1000 B freed" in capfd.readouterr().err
    assert listed(capfd) == {}


def test_bytes_that_two_revisions_use_stay_until_both_are_removed(
    tiny: Hub, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path_of(NAME)
    tiny.commit = "d" * 40
    tiny.repositories[REPOSITORY]["again-Q4_K_M.gguf"] = b"other"
    assert path_of(f"{NAME}:again-Q4_K_M.gguf").exists()
    assert run(["models", "remove", f"{NAME}:tiny-Q4_K_M.gguf"]) == 0
    assert "0 B freed" in capfd.readouterr().err
    assert path_of(f"{NAME}:again-Q4_K_M.gguf").read_bytes() == b"other"


def test_files_of_an_older_revision_are_marked(tiny: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    path_of(NAME)
    tiny.commit = "d" * 40
    tiny.repositories[REPOSITORY]["tiny-Q4_K_M.gguf"] = b"newer"
    path_of(f"{NAME}:Q4_K_M")
    assert run(["models"]) == 0
    out = capfd.readouterr().out
    assert out.count(f"{NAME}:tiny-Q4_K_M.gguf") == 2
    assert out.count("of an older revision") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (NAME, f"has no {NAME}"),
        ("qwen3.gguf", "'qwen3.gguf' is no name of a model\n  -> there are: "),
        ("ollama:tiny", "is Ollama's"),
    ],
)
def test_what_cannot_be_removed_is_said(
    cache: Path, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    assert run(["models", "remove", name]) == 1
    assert message in capfd.readouterr().err


def test_a_bench_knows_a_name_from_an_instrument() -> None:
    assert is_file(NAME)
    assert is_file("ollama:tiny")
    assert not is_file("matvec")


def test_the_title_of_a_model_is_its_file_s_name_or_what_the_user_wrote() -> None:
    assert ModelFile(Path("a/b.bin"), "a/b.bin").title == "b"
    assert ModelFile(Path("a/tiny-Q8_0.gguf"), NAME).title == "tiny-Q8_0"
    assert ModelFile(Path("blobs/sha256-00"), "ollama:tiny:1b").title == "tiny:1b"
