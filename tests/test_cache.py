"""The folder of files for the next process, and compiled kernels in it."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import pytest

from ggplug import cache
from ggplug.cache import KernelFiles

KEY, OTHER = "0" * 64, "1" * 64
DAY = 24 * 3600.0


@pytest.fixture(autouse=True)
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, whose name has spaces; every warning is new."""
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "a cache"))
    cache._warn_once.cache_clear()
    return tmp_path / "a cache"


@pytest.fixture
def files() -> KernelFiles:
    return KernelFiles("made_up")


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.folder("cpu") == tmp_path / "a cache" / "cpu"
    monkeypatch.delenv(cache.ENVIRONMENT_VARIABLE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder("cpu") == tmp_path / "ggplug" / "cpu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder("cpu") == tmp_path / ".cache" / "ggplug" / "cpu"


def test_what_is_stored_is_loaded_by_its_name_and_key(files: KernelFiles, chosen: Path) -> None:
    assert files.load("add[f32]", KEY) is None
    files.store("add[f32]", KEY, "a device", b"code")
    files.store("add[f32]", OTHER, "a device", b"other code")
    assert (files.load("add[f32]", KEY), files.load("add[f32]", OTHER)) == (b"code", b"other code")
    assert files.load("mul[f32]", KEY) is None
    assert KernelFiles("another").load("add[f32]", KEY) is None
    assert {path.parent for path in chosen.rglob("*.kernel")} == {chosen / "made_up"}


def test_entries_and_clear(files: KernelFiles) -> None:
    assert (files.entries(), files.clear()) == ([], 0)
    for name in ("mul", "add"):
        files.store(name, KEY, "a device", b"code")
    (files.folder / "broken.kernel").write_bytes(b"?")
    (files.folder / "somebody's.file").write_bytes(b"?")
    found = files.entries()
    assert [(each.name, each.target) for each in found] == [
        ("add", "a device"), ("broken.kernel", "?"), ("mul", "a device"),
    ]  # fmt: skip
    assert [each.bytes for each in found] == [each.path.stat().st_size for each in found]
    assert time.time() - found[0].used < DAY
    assert files.clear() == 3
    assert files.entries() == []
    assert os.listdir(files.folder) == ["somebody's.file"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "another kernel's"])
def test_a_damaged_file_is_as_good_as_none(damage: str, files: KernelFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.store("add", KEY, "a device", b"a long code")
    (path,) = files.folder.iterdir()
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        path.write_bytes(content[:-3] + b"?" + content[-2:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        files.store("add", OTHER, "a device", b"other code")
        (other,) = set(files.folder.iterdir()) - {path}
        path.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("add", KEY) is None
        assert files.load("add", KEY) is None
    assert [each.message for each in caplog.records] == [
        f"the compiled kernel {path} is damaged; compiling it again"
    ]
    files.store("add", KEY, "a device", b"a long code")
    assert files.load("add", KEY) == b"a long code"


def test_a_folder_that_cannot_be_written_is_one_warning(
    files: KernelFiles, chosen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen.write_text("not a folder")
    with caplog.at_level(logging.WARNING, "ggplug"):
        for name in ("add", "mul"):
            files.store(name, KEY, "a device", b"code")
            assert files.load(name, KEY) is None
    assert len([each for each in caplog.records if "cannot be kept" in each.message]) == 1
    assert (files.entries(), files.clear()) == ([], 0)


def test_code_of_another_user_is_not_run(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no owners of files")
    files.store("add", KEY, "a device", b"code")
    (path,) = files.folder.iterdir()
    owner = path.stat().st_uid
    mine, other = os.stat_result([0] * 4 + [owner] + [0] * 5), os.stat_result([0] * 4 + [owner + 12345] + [0] * 5)
    monkeypatch.setattr(os, "fstat", lambda number: other)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("add", KEY) is None
    assert "another user" in caplog.text
    monkeypatch.setattr(os, "fstat", lambda number: mine)
    assert files.load("add", KEY) == b"code"


def test_kernels_that_nobody_used_for_a_month_go(files: KernelFiles) -> None:
    for name in ("used", "unused", "new"):
        files.store(name, KEY, "a device", b"code")
    for each in files.entries():
        if each.name != "new":
            os.utime(each.path, (time.time() - 40 * DAY,) * 2)
    assert files.load("used", KEY) == b"code"
    files.store("newer", KEY, "a device", b"code")
    assert [each.name for each in files.entries()] == ["new", "newer", "used"]
