"""``hf:OWNER/REPOSITORY`` means the best quantisation that the devices can hold, chosen by the headers of the files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import Hub

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug.testing import FakeDevice
from ggplug_models.by_name import headers
from ggplug_models.naming import find, path_of

REPOSITORY = "someone/tiny-GGUF"
NAME = f"hf:{REPOSITORY}"


@pytest.fixture(scope="module")
def files(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A model in four types, the best of which is not quantised; each has 4 MiB of weights or more."""
    folder = tmp_path_factory.mktemp("types")
    found = {}
    plain = data / "qwen3.gguf"
    for kind in ("Q4_0", "Q8_0"):
        quantize_file(plain, folder / f"tiny-{kind}.gguf", kind)
    for kind, path in (("F16", plain), *((kind, folder / f"tiny-{kind}.gguf") for kind in ("Q4_0", "Q8_0"))):
        found[f"tiny-{kind}.gguf"] = path.read_bytes()
    return found


@pytest.fixture
def tiny(hub: Hub, files: dict[str, bytes]) -> Hub:
    hub.repositories[REPOSITORY] = {"README.md": b"# tiny", **files}
    return hub


def small(nbytes: int) -> Sequence[Device | str]:
    """A device with so much memory."""
    return [FakeDevice("small", inner=gg.device("CPU"), memory=nbytes)]


def needed(content: bytes, folder: Path) -> int:
    """What a device holds of a model, in bytes."""
    path = folder / "needed.gguf"
    path.write_bytes(content)
    return int(ggplug_models.fit(path, small(1 << 40)).holdings[0].total)


def test_the_largest_quantised_file_that_fits_is_downloaded_and_the_choice_is_logged(
    tiny: Hub, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ggplug"):
        path = path_of(NAME, small(1 << 40))
    assert path.name == "tiny-Q8_0.gguf"
    assert path.read_bytes() == files["tiny-Q8_0.gguf"]
    assert [file for file, _, _ in tiny.sent] == ["tiny-Q8_0.gguf"]
    assert f"{NAME} is tiny-Q8_0.gguf: the best of 3 models that fits into small" in caplog.text


def test_where_the_better_ones_do_not_fit_a_smaller_one_is_chosen(
    tiny: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    least = needed(files["tiny-Q8_0.gguf"], tmp_path)
    assert find(NAME, small(least)).path.name == "tiny-Q8_0.gguf"
    found = find(NAME, small(least - 1))
    assert found.path.name == "tiny-Q4_0.gguf"
    assert found.why == "the best of 3 models that fits into small; a better one does not fit"
    found = find(NAME, small(1000))
    assert (found.path.name, found.why) == ("tiny-Q4_0.gguf", "the smallest of 3 models, as none fits into small")


def test_only_headers_are_read_and_files_that_are_too_large_are_not_asked_for(
    tiny: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST", 1000)
    assert find(NAME, small(1 << 40)).path.name == "tiny-Q8_0.gguf"
    asked = [count for file, count in tiny.parts]
    assert {file for file, _ in tiny.parts} == {"tiny-Q8_0.gguf"}
    assert asked == sorted(asked)
    with GGUFReader(path_of(f"{NAME}:Q8_0")) as reader:
        first = min(info.offset for info in reader.tensors.values())
    assert first <= asked[-1] < 4 * first
    tiny.parts.clear()
    find(NAME, small(len(files["tiny-Q4_0.gguf"]) - 1))
    assert tiny.parts == []


def test_the_headers_of_all_files_of_a_split_model_are_read(tiny: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(files.pop("tiny-Q8_0.gguf"))
    with GGUFReader(whole) as reader:
        writer = GGUFWriter(tmp_path / "tiny.gguf", split_max_tensors=len(reader.tensors) // 2 + 1)
        writer.add_metadata_of(reader)
        for info in reader.tensors.values():
            writer.add_tensor(info.name, reader.data(info), type=info.type, ne=info.ne)
        parts = writer.write()
    del tiny.repositories[REPOSITORY]["tiny-Q8_0.gguf"]
    tiny.repositories[REPOSITORY] |= {f"Q8_0/{part.name}": part.read_bytes() for part in parts}
    found = find(NAME, small(1 << 40))
    assert found.path.name == parts[0].name
    assert {file for file, _ in tiny.parts} == {f"Q8_0/{part.name}" for part in parts}
    files["tiny-Q8_0.gguf"] = whole.read_bytes()


def test_headers_that_cannot_be_read_leave_the_usual_choice(
    tiny: Hub, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    broken = {"tiny-Q8_0.gguf": b"GGUF" + bytes(10**6), "tiny-Q4_K_M.gguf": files["tiny-Q4_0.gguf"]}
    tiny.repositories[REPOSITORY] |= broken
    with caplog.at_level(logging.INFO, "ggplug"):
        found = find(NAME, small(1 << 40))
    assert (found.path.name, found.why) == ("tiny-Q4_K_M.gguf", "Q4_K_M, which is preferred")
    assert "which model fits is not known" in caplog.text


def test_an_architecture_that_is_not_known_leaves_the_usual_choice(tiny: Hub, files: dict[str, bytes]) -> None:
    unknown = files["tiny-Q8_0.gguf"].replace(b"qwen3", b"qwen9")
    tiny.repositories[REPOSITORY] = {"tiny-Q8_0.gguf": unknown, "tiny-F16.gguf": files["tiny-F16.gguf"]}
    assert find(NAME, small(1 << 40)).why == "Q8_0, which is preferred"


def test_a_server_that_knows_no_ranges_is_stopped_after_the_header(tiny: Hub) -> None:
    tiny.ranges = False
    assert find(NAME, small(1 << 40)).path.name == "tiny-Q8_0.gguf"


def test_a_connection_that_fails_while_headers_are_read_leaves_the_usual_choice(
    tiny: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggplug.errors import DownloadError
    from ggplug_models.by_name.transfer import Repository

    def fail(*_: Any) -> bytes:
        raise DownloadError("the connection failed", got=NAME, reason="connection")

    monkeypatch.setattr(Repository, "beginning", fail)
    assert find(NAME, small(1 << 40)).why == "Q8_0, which is preferred"


def test_a_model_that_is_loaded_by_its_name_is_the_one_that_fits_its_devices(tiny: Hub, data: Path) -> None:
    with ggplug_models.load(NAME, ["CPU"]) as model:
        assert model.paths[0].name == "tiny-Q8_0.gguf"
    assert path_of(f"{NAME}:q4_0", small(1 << 40)).name == "tiny-Q4_0.gguf"
    assert len(tiny.parts) == 1


def test_a_tokenizer_is_read_from_the_file_that_is_there(tiny: Hub) -> None:
    path_of(NAME, small(1 << 40))
    assert ggplug_models.load_tokenizer(NAME).n_vocab
    assert [file for file, _, _ in tiny.sent] == ["tiny-Q8_0.gguf"]


def test_the_command_prints_which_file_was_chosen_and_why(tiny: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    from ggplug.cli.app import run

    assert run(["models", "show", NAME]) == 0
    assert "the best of 3 models that fits into " in capfd.readouterr().out
