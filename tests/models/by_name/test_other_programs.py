"""Models that Ollama and LM Studio keep on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import ggplug_models
from ggplug.errors import ModelError, ModelNotFoundError, ParameterError
from ggplug_models.by_name.folders import files_in
from ggplug_models.by_name.lookup import kept, path_of, remove

MODEL = "application/vnd.ollama.image.model"


def pulled(folder: Path, name: str, content: bytes, kind: str = MODEL) -> Path:
    """Writes what ``ollama pull`` does; ``name``: REGISTRY/NAMESPACE/MODEL/TAG.  Returns the file of the model."""
    digest = hashlib.sha256(content).hexdigest()
    blob = folder / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}", "size": 7},
        {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}))
    return blob


@pytest.fixture
def ollama(home: Path) -> Path:
    return home / ".ollama" / "models"


def test_a_model_of_ollama_is_loaded_by_its_name(ollama: Path, data: Path) -> None:
    pulled(ollama, "registry.ollama.ai/library/tiny/latest", (data / "qwen3.gguf").read_bytes())
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model, ggplug_models.load("ollama:tiny", ["CPU"]) as named:
        np.testing.assert_array_equal(named.logits([1, 2, 3]), model.logits([1, 2, 3]))


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        ("registry.ollama.ai/library/tiny/latest", ["tiny", "tiny:latest", "library/tiny"]),
        ("registry.ollama.ai/library/tiny/latest", ["registry.ollama.ai/library/tiny"]),
        ("registry.ollama.ai/library/tiny/1b-q4_K_M", ["tiny:1b-q4_K_M"]),
        ("registry.ollama.ai/someone/tiny/latest", ["someone/tiny", "someone/tiny:latest"]),
        ("hf.co/someone/tiny-GGUF/Q4_K_M", ["hf.co/someone/tiny-GGUF:Q4_K_M"]),
        ("host:5000/someone/tiny/latest", ["host:5000/someone/tiny"]),
    ],
)
def test_a_name_means_the_manifest_that_ollama_means(ollama: Path, manifest: str, names: list[str]) -> None:
    pulled(ollama, "registry.ollama.ai/library/other/latest", b"other")
    blob = pulled(ollama, manifest, b"wanted")
    assert [path_of(f"ollama:{name}") for name in names] == [blob] * len(names)


def test_another_folder_of_ollama_is_named_by_its_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "other"))
    blob = pulled(home / "other", "registry.ollama.ai/library/tiny/latest", b"x")
    assert path_of("ollama:tiny") == blob


def test_a_name_that_ollama_does_not_have_is_refused_with_what_there_is(ollama: Path) -> None:
    pulled(ollama, "registry.ollama.ai/library/tiny/1b", b"x")
    with pytest.raises(ModelNotFoundError, match=r"Ollama keeps no model tiny:latest in .*there are: tiny:1b"):
        path_of("ollama:tiny")


def test_a_download_of_ollama_that_is_not_complete_is_refused(ollama: Path) -> None:
    blob = pulled(ollama, "registry.ollama.ai/library/tiny/latest", b"x" * 100)
    os.truncate(blob, 40)
    with pytest.raises(ModelError, match=r"has 40 of 100 bytes .ollama pull completes the model"):
        path_of("ollama:tiny")
    assert [each.problem for each in kept() if each.name == "ollama:tiny:latest"] != [""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no manifest of Ollama"),
        ("[]", "is no manifest of Ollama"),
        ('{"layers": [{}]}', "is no manifest of Ollama"),
        ('{"layers": []}', "names 0 files of a model in the format GGUF"),
        (json.dumps({"layers": [{"mediaType": MODEL, "digest": "sha256:../x", "size": 1}]}), "which is no SHA-256"),
        (json.dumps({"layers": [{"mediaType": MODEL, "digest": 7, "size": 1}]}), "which is no SHA-256"),
    ],
)
def test_a_damaged_manifest_is_refused(ollama: Path, text: str, message: str) -> None:
    pulled(ollama, "registry.ollama.ai/library/tiny/latest", b"x")
    (ollama / "manifests/registry.ollama.ai/library/tiny/latest").write_text(text)
    with pytest.raises(ModelError, match=message):
        path_of("ollama:tiny")
    assert any(each.name == "ollama:tiny:latest" and message in each.problem for each in kept())


def test_a_model_of_ollama_with_an_adapter_is_refused(ollama: Path) -> None:
    model = pulled(ollama, "registry.ollama.ai/library/tiny/latest", b"model")
    adapter = ollama / "blobs" / f"sha256-{'1' * 64}"
    manifest = ollama / "manifests/registry.ollama.ai/library/tiny/latest"
    layer = {"mediaType": "application/vnd.ollama.image.adapter", "digest": f"sha256:{'1' * 64}", "size": 1}
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "layers": [*content["layers"], layer]}))
    with pytest.raises(ModelError, match="names a model with an adapter") as caught:
        path_of("ollama:tiny")
    assert caught.value.remedy == f"load {model} with --lora {adapter}"


@pytest.mark.parametrize("folder", [".lmstudio/models", ".cache/lm-studio/models"])
def test_a_model_of_lm_studio_is_found_in_its_folder(home: Path, folder: str) -> None:
    place = home / folder / "someone" / "tiny-GGUF"
    place.mkdir(parents=True)
    for kind in ("Q4_K_M", "Q8_0"):
        (place / f"tiny-{kind}.gguf").write_text(kind)
    assert path_of("lmstudio:someone/tiny-GGUF").read_text() == "Q4_K_M"
    assert path_of("lmstudio:someone/tiny-GGUF:q8_0").read_text() == "Q8_0"
    with pytest.raises(ModelNotFoundError, match=r"keeps no model someone/tiny in .*there are: someone/tiny-GGUF"):
        path_of("lmstudio:someone/tiny")
    with pytest.raises(ParameterError, match="must be lmstudio:OWNER/REPOSITORY"):
        path_of("lmstudio:tiny")


def test_models_of_other_programs_are_listed_and_not_removed(home: Path, ollama: Path) -> None:
    pulled(ollama, "registry.ollama.ai/library/tiny/latest", b"x" * 7)
    place = home / ".lmstudio" / "models" / "someone" / "tiny-GGUF"
    place.mkdir(parents=True)
    (place / "tiny-00001-of-00002.gguf").write_bytes(b"x" * 9)
    assert [(each.name, each.nbytes, each.problem) for each in kept() if not each.name.startswith("hf:")] == [
        ("ollama:tiny:latest", 7, ""),
        ("lmstudio:someone/tiny-GGUF:tiny-00001-of-00002.gguf", 9, "1 of 2 files are missing"),
    ]
    with pytest.raises(ParameterError, match=r"is Ollama's.*ollama rm tiny:latest"):
        remove("ollama:tiny")
    with pytest.raises(ParameterError, match="is LM Studio's"):
        remove("lmstudio:someone/tiny-GGUF")
    assert len(list(home.rglob("sha256-*"))) == 1


def test_a_manifest_that_is_nested_too_deeply_is_a_row_with_its_problem(ollama: Path) -> None:
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "deep" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("[" * 100_000)
    assert ["is no manifest of Ollama" in each.problem for each in kept() if each.name == "ollama:deep:latest"] == [
        True
    ]
    with pytest.raises(ModelError, match="is no manifest of Ollama"):
        path_of("ollama:deep")


def test_a_file_named_as_one_of_no_files_is_a_model_of_its_own(home: Path, data: Path) -> None:
    folder = home / ".lmstudio" / "models" / "someone" / "odd"
    folder.mkdir(parents=True)
    (folder / "m-00000-of-00000.gguf").write_bytes((data / "qwen3.gguf").read_bytes())
    assert [each.name for each in kept() if each.name.startswith("lm")] == [
        "lmstudio:someone/odd:m-00000-of-00000.gguf"
    ]
    assert path_of("lmstudio:someone/odd").name == "m-00000-of-00000.gguf"


def test_files_that_vanish_while_they_are_listed_are_left_out(
    home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".lmstudio" / "models" / "someone" / "going"
    folder.mkdir(parents=True)
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes((data / "qwen3.gguf").read_bytes())
    found = list(folder.rglob("*"))
    (folder / "a.gguf").unlink()
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: iter(found))
    assert files_in(folder).keys() == {"b.gguf"}
