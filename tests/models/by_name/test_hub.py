"""Models of the Hugging Face hub, from a stand-in for it: chosen, downloaded, continued, checked, or refused."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hub_stand_in import Hub

import ggplug_models
from ggplug.errors import DownloadError, ModelError, ModelNotFoundError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.by_name.lookup import kept, path_of, remove
from ggplug_models.by_name.transfer import ATTEMPTS

constants = pytest.importorskip("huggingface_hub.constants")
errors = pytest.importorskip("huggingface_hub.errors")

REPOSITORY = "someone/tiny-GGUF"
NAME = f"hf:{REPOSITORY}"

SMALL = 8192
"""Bytes that a process that is killed may have received and not written."""


@pytest.fixture
def whole(data: Path) -> bytes:
    return (data / "qwen3.gguf").read_bytes()


@pytest.fixture
def tiny(hub: Hub, whole: bytes) -> Hub:
    """A hub with one model."""
    hub.repositories[REPOSITORY] = {"README.md": b"# tiny", "tiny-Q8_0.gguf": whole}
    return hub


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def blobs(cache: Path) -> Path:
    return cache / "models--someone--tiny-GGUF" / "blobs"


def run(*arguments: str, before: str = "pass") -> subprocess.Popen[str]:
    """``ggplug`` in a process of its own."""
    code = f"import sys; from ggplug.cli.app import run; {before}; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# -- what is loaded --------------------------------------------------------------------------------


def test_a_model_is_loaded_by_its_name_and_a_second_time_from_the_cache(tiny: Hub, data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model, ggplug_models.load(NAME, ["CPU"]) as named:
        np.testing.assert_array_equal(named.logits([1, 2, 3]), model.logits([1, 2, 3]))
    assert [file for file, _, _ in tiny.sent] == ["tiny-Q8_0.gguf"]
    assert ggplug_models.load_tokenizer(NAME).n_vocab == named.n_vocab
    assert len(tiny.sent) == 1


def test_of_three_quantisations_the_wanted_one_is_downloaded_and_the_choice_is_logged(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    files = {f"tiny-{kind}.gguf": kind.encode() for kind in ("Q2_K", "Q4_K_M", "Q8_0")}
    hub.repositories[REPOSITORY] = files
    with caplog.at_level(logging.INFO, "ggplug"):
        for name, kind in ((NAME, "Q4_K_M"), (f"{NAME}:q2_k", "Q2_K"), (f"{NAME}:tiny-Q8_0.gguf", "Q8_0")):
            assert path_of(name).read_text() == kind
    assert [file for file, _, _ in hub.sent] == [f"tiny-{kind}.gguf" for kind in ("Q4_K_M", "Q2_K", "Q8_0")]
    assert f"{NAME} is tiny-Q4_K_M.gguf: Q4_K_M, which is preferred" in caplog.messages


def test_all_files_of_a_split_model_are_downloaded_and_loaded_as_one(hub: Hub, data: Path, tmp_path: Path) -> None:
    with GGUFReader(data / "qwen3.gguf") as reader:
        writer = GGUFWriter(tmp_path / "tiny.gguf", split_max_tensors=len(reader.tensors) // 3 + 1)
        writer.add_metadata_of(reader)
        for info in reader.tensors.values():
            writer.add_tensor(info.name, reader.data(info), type=info.type, ne=info.ne)
        parts = writer.write()
    assert len(parts) == 3
    hub.repositories[REPOSITORY] = {f"Q8_0/{part.name}": part.read_bytes() for part in parts}
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model, ggplug_models.load(NAME, ["CPU"]) as joined:
        np.testing.assert_array_equal(joined.logits([1, 2, 3]), model.logits([1, 2, 3]))
    assert sorted(file for file, _, _ in hub.sent) == sorted(hub.repositories[REPOSITORY])


def test_commands_accept_names(tiny: Hub, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from ggplug.cli.app import run

    answers = []
    for model in (str(data / "qwen3.gguf"), f"{NAME}:Q8_0"):
        assert run(["tokenize", model, "hello"]) == 0
        assert run(["run", model, "-p", "hello", "-n", "4", "--temperature", "0", "--device", "CPU"]) == 0
        assert run(["gguf", model, "--no-tensors"]) == 0
        answers.append(capfd.readouterr().out.replace(model, "").split("\n", 6)[:5])
    assert answers[0] == answers[1]


def test_a_file_named_like_a_name_is_loaded_by_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("./hf:a") == Path("./hf:a")
    assert path_of(Path("hf:a")) == Path("hf:a")


# -- access ----------------------------------------------------------------------------------------


def test_a_gated_model_needs_a_token_which_only_the_hub_gets(tiny: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.gated.add(REPOSITORY)
    with pytest.raises(DownloadError, match="is gated") as caught:
        path_of(NAME)
    assert caught.value.reason == "gated"
    assert f"https://huggingface.co/{REPOSITORY}" in str(caught.value.remedy)
    assert "HF_TOKEN" in str(caught.value.remedy)
    monkeypatch.setenv("HF_TOKEN", tiny.token)
    assert path_of(NAME).exists()
    assert tiny.tokens_of_downloads == [None]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("hf:no/where", ModelNotFoundError, "the hub has no repository no/where, or it is private .check the name"),
        (f"{NAME}:Q4_0", ModelNotFoundError, "has no model with the quantisation Q4_0 .there are: tiny-Q8_0.gguf"),
        (f"{NAME}:a.gguf", ModelNotFoundError, "has no file a.gguf .there are: tiny-Q8_0.gguf"),
        ("hf:tiny", ParameterError, "must be hf:OWNER/REPOSITORY"),
        ("hf:a/b/c", ParameterError, "must be hf:OWNER/REPOSITORY"),
        ("hf:../b", ParameterError, "must be hf:OWNER/REPOSITORY"),
        (f"{NAME}:", ParameterError, "must be hf:OWNER/REPOSITORY"),
        ("hf:", ModelNotFoundError, "is no name of a model"),
        ("hf:a b/c", ParameterError, "a b/c is no name of a repository"),
    ],
)
def test_a_name_that_means_nothing_is_refused(tiny: Hub, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        path_of(name)


def test_an_answer_that_would_lead_out_of_the_cache_is_refused(tiny: Hub, cache: Path) -> None:
    for path in ("../../../out-Q8_0.gguf", "\ud800-Q8_0.gguf"):
        tiny.repositories[REPOSITORY] = {path: b"x"}
        with pytest.raises(DownloadError, match=r"is no path of a file .check HF_ENDPOINT"):
            path_of(NAME)
    tiny.commit = "../" * 13 + "x"
    with pytest.raises(DownloadError, match="is no hash"):
        path_of(NAME)
    assert names_in(cache) == []


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="needs the library huggingface_hub") as caught:
        path_of(NAME)
    assert caught.value.remedy == 'pip install "ggplug-core[hub]"'


# -- interrupted, damaged, without space -----------------------------------------------------------


def test_a_download_that_is_cut_at_forty_percent_continues_there(tiny: Hub, whole: bytes) -> None:
    cut = len(whole) * 2 // 5
    tiny.cuts = [cut]
    assert path_of(NAME).read_bytes() == whole
    assert [(first, count) for _, first, count in tiny.sent] == [(0, cut), (cut, len(whole) - cut)]


def test_a_download_that_failed_continues_with_the_next_call(tiny: Hub, whole: bytes, cache: Path) -> None:
    cut = len(whole) * 2 // 5
    tiny.cuts = [cut] * 20
    with pytest.raises(DownloadError, match="the connection to the hub failed for someone/tiny-GGUF") as caught:
        path_of(NAME)
    assert caught.value.reason == "connection"
    assert caught.value.remedy == "check the network and try again; what has arrived is kept"
    (part,) = names_in(blobs(cache))
    assert part.endswith(".incomplete")
    assert (blobs(cache) / part).stat().st_size == cut
    tiny.cuts = []
    tiny.sent.clear()
    assert path_of(NAME).read_bytes() == whole
    assert [(first, count) for _, first, count in tiny.sent] == [(cut, len(whole) - cut)]


def test_a_process_that_is_killed_leaves_nothing_that_looks_whole_and_the_next_one_continues(
    tiny: Hub, whole: bytes, cache: Path
) -> None:
    tiny.hold = len(whole) * 2 // 5
    killed = run("gguf", NAME)
    with killed:
        assert tiny.held.wait(60)
        while sum(part.stat().st_size for part in blobs(cache).iterdir()) < tiny.hold - SMALL:
            assert killed.poll() is None
        killed.kill()
        killed.communicate()
    tiny.released.set()
    assert names_in(cache / "models--someone--tiny-GGUF" / "snapshots") == []
    (part,) = blobs(cache).iterdir()
    assert part.name.endswith(".incomplete")
    arrived = part.stat().st_size
    tiny.hold = None
    done = run("gguf", NAME, "--no-tensors")
    out, err = done.communicate()
    assert (done.returncode, "qwen3" in out) == (0, True), err
    assert [(first, count) for _, first, count in tiny.sent if first] == [(arrived, len(whole) - arrived)]
    assert len(tiny.sent) <= 2  # the server may not have noticed yet that the first process was killed


def test_a_file_with_a_wrong_hash_is_refused_and_deleted(tiny: Hub, whole: bytes, cache: Path) -> None:
    tiny.wrong.add("tiny-Q8_0.gguf")
    with pytest.raises(DownloadError, match=r"was downloaded with the hash .*; the hub says") as caught:
        path_of(NAME)
    assert caught.value.reason == "hash"
    assert names_in(blobs(cache)) == []
    tiny.wrong.clear()
    assert path_of(NAME).read_bytes() == whole


def test_a_part_with_wrong_bytes_is_not_completed(tiny: Hub, whole: bytes, cache: Path) -> None:
    tiny.cuts = [1000] * 20
    with pytest.raises(DownloadError):
        path_of(NAME)
    (part,) = blobs(cache).iterdir()
    part.write_bytes(b"x" * 1000)
    tiny.cuts = []
    with pytest.raises(DownloadError, match="the wrong bytes were deleted; try again"):
        path_of(NAME)
    assert path_of(NAME).read_bytes() == whole


def test_a_disk_that_is_too_small_is_found_out_before_the_download(
    tiny: Hub, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(DownloadError, match=f"{len(whole):,} bytes are needed, 1,000 are free") as caught:
        path_of(NAME)
    assert caught.value.reason == "space"
    assert "HF_HOME" in str(caught.value.remedy)
    assert tiny.sent == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of file sizes are Unix's")
def test_a_disk_that_becomes_full_is_reported_and_the_download_continues_later(
    tiny: Hub, whole: bytes, cache: Path
) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    full = run("gguf", NAME, before=limited)
    _, err = full.communicate()
    assert full.returncode == 1
    assert "error: the disk of the cache has too little free space for someone/tiny-GGUF\n  -> free some space" in err
    (part,) = blobs(cache).iterdir()
    assert part.name.endswith(".incomplete")
    arrived = part.stat().st_size
    tiny.sent.clear()
    assert path_of(NAME).read_bytes() == whole
    assert [first for _, first, _ in tiny.sent] == [arrived]


def test_a_hub_that_answers_with_an_error_is_reported(tiny: Hub) -> None:
    tiny.status = 503
    with pytest.raises(DownloadError, match=f"the hub answers the status 503 for {REPOSITORY}") as caught:
        path_of(NAME)
    assert caught.value.reason == "status"


def test_a_hub_that_fails_during_a_download_is_reported(tiny: Hub, whole: bytes) -> None:
    tiny.failing = True
    with pytest.raises(DownloadError, match=r"the hub answers the status 500 for .*: .*out of order") as caught:
        path_of(NAME)
    assert caught.value.reason == "status"
    tiny.failing = False
    assert path_of(NAME).read_bytes() == whole


def test_a_server_that_knows_no_ranges_sends_all_again(tiny: Hub, whole: bytes) -> None:
    tiny.cuts, tiny.ranges = [1000], False
    assert path_of(NAME).read_bytes() == whole
    assert [(first, count) for _, first, count in tiny.sent] == [(0, 1000), (0, len(whole))]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_hub_that_sends_less_than_it_says_is_given_up(
    tiny: Hub, whole: bytes, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ggplug_models.by_name.transfer.PAUSE", 0.0)
    tiny.sizes["tiny-Q8_0.gguf"], tiny.ranges = 2 * len(whole), ranges
    with pytest.raises(DownloadError, match=f"sends {len(whole)} bytes .* says that it has {2 * len(whole)}") as caught:
        path_of(NAME)
    assert caught.value.reason == "status"
    assert len(tiny.sent) <= ATTEMPTS + 1


def test_no_more_is_written_than_the_hub_lists(tiny: Hub, whole: bytes, cache: Path) -> None:
    listed = len(whole) // 2
    tiny.sizes["tiny-Q8_0.gguf"] = listed
    with pytest.raises(DownloadError, match=f"with the hash {hashlib.sha256(whole[:listed]).hexdigest()}") as caught:
        path_of(NAME)
    assert caught.value.reason == "hash"
    assert names_in(blobs(cache)) == []


@pytest.mark.parametrize("size", ["9x", float("inf"), [1]])
def test_a_hub_that_lists_a_size_that_is_no_number_is_reported(tiny: Hub, size: object) -> None:
    tiny.sizes["tiny-Q8_0.gguf"] = size
    with pytest.raises(DownloadError, match="answers for someone/tiny-GGUF what the hub does not") as caught:
        path_of(NAME)
    assert caught.value.reason == "status"


def test_a_model_that_is_removed_while_it_is_downloaded_is_reported(tiny: Hub) -> None:
    tiny.hold = 1000
    with ThreadPoolExecutor(1) as pool:
        downloading = pool.submit(path_of, NAME)
        assert tiny.held.wait(60)
        remove(NAME)
        tiny.hold = None
        tiny.released.set()
        with pytest.raises(DownloadError, match="was deleted while it was downloaded"):
            downloading.result()


def test_a_damaged_note_of_the_branch_s_commit_is_written_anew(tiny: Hub, whole: bytes, cache: Path) -> None:
    path_of(NAME)
    note = cache / "models--someone--tiny-GGUF" / "refs" / "main"
    note.write_bytes(b"\xff\xfe")
    assert [each.name for each in kept() if each.name.startswith("hf:")] == [f"{NAME}:tiny-Q8_0.gguf"]
    assert path_of(NAME).read_bytes() == whole
    assert note.read_text() == tiny.commit


def test_two_threads_that_want_a_file_download_it_once(tiny: Hub, whole: bytes) -> None:
    tiny.hold = 1000
    with ThreadPoolExecutor(2) as pool:
        paths = [pool.submit(path_of, NAME) for _ in range(2)]
        assert tiny.held.wait(60)
        tiny.hold = None
        tiny.released.set()
        assert [path.result().read_bytes() for path in paths] == [whole] * 2
    assert [first for _, first, _ in tiny.sent] == [0, 1000]


# -- without the hub -------------------------------------------------------------------------------


def test_without_the_hub_the_cache_is_used(tiny: Hub, whole: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path_of(NAME)
    tiny.stop()
    with caplog.at_level(logging.INFO, "ggplug"):
        assert path_of(NAME).read_bytes() == whole
    assert "from the cache, because the connection to the hub failed" in caplog.text
    with pytest.raises(DownloadError, match=r"in the cache hf:\S+ has no model with the quantisation Q2_K; .* failed"):
        path_of(f"{NAME}:Q2_K")


def test_a_cache_that_is_read_only_is_read(tiny: Hub, whole: bytes, cache: Path) -> None:
    path_of(NAME)
    before = {path: path.lstat().st_mtime_ns for path in cache.rglob("*")}
    for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
        folder.chmod(0o500)
    try:
        assert path_of(NAME).read_bytes() == whole
        assert {path: path.lstat().st_mtime_ns for path in cache.rglob("*")} == before
    finally:
        for folder in (cache, *(path for path in cache.rglob("*") if path.is_dir())):
            folder.chmod(0o700)


def test_a_connection_that_fails_while_the_link_is_made_is_one_that_fails(
    tiny: Hub, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disconnected(*args: object, **options: object) -> None:
        raise errors.LocalEntryNotFoundError("no connection")

    with monkeypatch.context() as patched:
        patched.setattr("huggingface_hub.hf_hub_download", disconnected)
        with pytest.raises(DownloadError, match="the connection to the hub failed"):
            path_of(NAME)
    assert path_of(NAME).read_bytes() == whole
    assert len(tiny.sent) == 1


def test_offline_the_hub_is_not_asked(tiny: Hub, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=rf"in the cache {NAME} has no files; the hub is not asked") as caught:
        path_of(NAME)
    assert (caught.value.reason, tiny.sent) == ("offline", [])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    path_of(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert path_of(NAME).read_bytes() == whole


def test_a_newer_commit_is_downloaded_and_unchanged_files_are_not(tiny: Hub, whole: bytes) -> None:
    first = path_of(NAME)
    tiny.commit = "d" * 40
    second = path_of(NAME)
    assert first != second
    assert second.read_bytes() == whole
    assert len(tiny.sent) == 1
    tiny.repositories[REPOSITORY]["tiny-Q8_0.gguf"] = b"new"
    tiny.commit = "e" * 40
    assert path_of(NAME).read_bytes() == b"new"
