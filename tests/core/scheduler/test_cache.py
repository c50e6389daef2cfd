"""The folder of files for the next process, and compiled kernels in it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ggplug import cache
from ggplug.cache import KernelFiles
from ggplug.system.files import UNFINISHED_PREFIX, UNFINISHED_SUFFIX

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
        ("add", "a device"),
        ("broken.kernel", "?"),
        ("mul", "a device"),
    ]
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
    assert [each.message for each in caplog.records] == [f"the compiled kernel {path} is damaged; compiling it again"]
    files.store("add", KEY, "a device", b"a long code")
    assert files.load("add", KEY) == b"a long code"


@pytest.mark.parametrize("what", ["a file", "a FIFO", "the null device", "a file's inside", "an overlong name"])
def test_a_folder_that_cannot_be_written_is_one_warning(
    what: str, files: KernelFiles, chosen: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform == "win32" and what != "a file":
        pytest.skip("this system has no such files")
    if what == "a FIFO":
        os.mkfifo(chosen)
    elif what == "the null device":
        monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, os.devnull)
    elif what == "an overlong name":
        monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(chosen / ("x" * 300)))
    else:
        chosen.write_text("not a folder")
        if what == "a file's inside":
            monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(chosen / "folder"))
    with caplog.at_level(logging.WARNING, "ggplug"):
        for name in ("add", "mul"):
            files.store(name, KEY, "a device", b"code")
            assert files.load(name, KEY) is None
    assert len([each for each in caplog.records if "cannot be kept" in each.message]) == 1
    assert len(caplog.records) <= 2
    assert (files.entries(), files.clear()) == ([], 0)


def test_code_of_another_user_is_not_run(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no owners of files")
    files.store("add", KEY, "a device", b"code")
    (path,) = files.folder.iterdir()
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 12345)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("add", KEY) is None
    assert "another user" in caplog.text
    assert files.entries()[0].problem == "owned by another user"


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such permissions")
@pytest.mark.parametrize("mode", [0o622, 0o662, 0o606])
def test_code_that_others_could_have_written_is_not_run(
    mode: int, files: KernelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.store("add", KEY, "a device", b"code")
    (path,) = files.folder.iterdir()
    path.chmod(mode)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("add", KEY) is None
    assert "writable by others (chmod go-w mends that)" in caplog.text
    assert "writable by others" in (files.entries()[0].problem or "")
    path.chmod(0o600)
    assert files.load("add", KEY) == b"code"


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such permissions")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(
    mode: int, files: KernelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.store("add", KEY, "a device", b"code")
    files.folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("add", KEY) is None
        files.store("mul", KEY, "a device", b"code")
    assert len(os.listdir(files.folder)) == 1
    assert len(caplog.records) == 1
    assert "writable by others" in caplog.text
    files.folder.chmod(0o700)
    assert files.load("add", KEY) == b"code"


def test_new_folders_and_files_are_the_users_own(files: KernelFiles) -> None:
    if sys.platform == "win32":
        pytest.skip("this system has no such permissions")
    before = os.umask(0)
    try:
        files.store("add", KEY, "a device", b"code")
    finally:
        os.umask(before)
    (path,) = files.folder.iterdir()
    assert (path.stat().st_mode & 0o777, files.folder.stat().st_mode & 0o777) == (0o600, 0o700)


# -- whatever else may lie in the folder -----------------------------------------------------------


def header(content: bytes, length: int | None = None) -> bytes:
    """A file whose header is ``content``, and whose prefix is as it should be."""
    size = len(content) if length is None else length
    return cache._PREFIX.pack(cache._MAGIC, size, 0, hashlib.sha256(content).digest()) + content


CONTENTS = {
    "a list": header(b"[]"),
    "a number": header(b"1"),
    "nested deeply": header(b"[" * 60_000),
    "no strings": header(b'{"name": 1, "key": [], "target": {}}'),
    "no keys": header(b"{}"),
    "not JSON": header(b"\xff{"),
    "a huge header": header(b"{}", 2**32 - 1),
    "a huge code": cache._PREFIX.pack(cache._MAGIC, 0, 2**64 - 1, bytes(32)),
    "an old version": header(b"{}").replace(b"K2", b"K1"),
    "half a prefix": b"ggplugK2",
    "nothing": b"",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_header_is_listed_as_such_and_no_kernel(
    content: bytes, files: KernelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.store("add", KEY, "a device", b"code")
    path = files._path("mul", KEY)
    path.write_bytes(content)
    path.chmod(0o600)
    good, bad = files.entries()
    assert (good.name, good.problem) == ("add", None)
    assert (bad.name, bad.target, bad.problem) == (path.name, "?", "damaged, or of another version")
    assert bad.bytes == len(content)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("mul", KEY) is None
    assert "is damaged" in caplog.text
    files.store("mul", KEY, "a device", b"other")
    assert files.load("mul", KEY) == b"other"


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # the length of a socket's path is limited


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    target = path.parent.parent / "precious"
    target.write_bytes(b"precious")
    path.symlink_to(target)


KINDS: dict[Callable[[Path], None], str] = {
    make_fifo: "a FIFO",
    make_socket: "a socket",
    make_endless: "a symbolic link",
    make_loop: "a symbolic link",
    make_folder: "a folder",
    make_link: "a symbolic link",
}


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such files")
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_listed_as_such_and_no_kernel(
    make: Callable[[Path], None], files: KernelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.store("add", KEY, "a device", b"code")
    path = files._path("mul", KEY)
    make(path)
    good, bad = files.entries()
    assert (good.name, good.problem) == ("add", None)
    assert (bad.name, bad.problem) == (path.name, KINDS[make])
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert files.load("mul", KEY) is None
        assert files.load("add", KEY) == b"code"
    assert f"is no regular file but {KINDS[make]}" in caplog.text
    files.store("mul", KEY, "a device", b"other")
    assert files.load("mul", KEY) == (None if make is make_folder else b"other")
    make_link(files._path("more", KEY))
    assert files.clear() == (2 if make is make_folder else 3)
    assert (files.folder.parent / "precious").read_bytes() == b"precious"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_folder_behind_a_link_is_neither_used_nor_cleared(
    files: KernelFiles, chosen: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = KernelFiles("other")
    other.store("add", KEY, "a device", b"code")
    files.folder.symlink_to(other.folder)
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert (files.load("add", KEY), files.entries(), files.clear()) == (None, [], 0)
        files.store("mul", KEY, "a device", b"code")
    assert "it is a symbolic link; set GGPLUG_CACHE_DIR" in caplog.text
    assert [each.name for each in other.entries()] == ["add"]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are UTF-8 there")
def test_names_that_are_not_utf_8_are_listed(files: KernelFiles) -> None:
    files.folder.mkdir(parents=True, mode=0o700)
    with open(os.fsencode(files.folder) + b"/\xff\xfe.kernel", "wb"):
        pass
    (entry,) = files.entries()
    assert entry.name == "\udcff\udcfe.kernel"
    assert files.clear() == 1


def test_a_file_that_vanishes_while_files_are_listed_is_left_out(
    files: KernelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("add", "mul"):
        files.store(name, KEY, "a device", b"code")
    listed = files._items()
    monkeypatch.setattr(files, "_items", lambda: listed)
    files._path("add", KEY).unlink()
    assert [each.name for each in files.entries()] == ["mul"]
    assert files.clear() == 1


def test_what_a_killed_process_left_behind_goes_after_a_day(files: KernelFiles) -> None:
    files.store("add", KEY, "a device", b"code")
    names = [files.folder / f"{UNFINISHED_PREFIX}{number}{UNFINISHED_SUFFIX}" for number in (1, 2)]
    for path in names:
        path.write_bytes(b"half")
    os.utime(names[0], (time.time() - 2 * DAY,) * 2)
    files.store("mul", KEY, "a device", b"code")
    assert [path.exists() for path in names] == [False, True]


def test_a_cache_without_a_home_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (cache.ENVIRONMENT_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    for home in ("", "relative", "~"):
        monkeypatch.setenv("HOME", home)
        assert cache.folder("cpu") == Path(tempfile.gettempdir()) / f"ggplug-{os.geteuid()}" / "cpu"


def test_kernels_that_nobody_used_for_a_month_go(files: KernelFiles) -> None:
    for name in ("used", "unused", "new"):
        files.store(name, KEY, "a device", b"code")
    for each in files.entries():
        if each.name != "new":
            os.utime(each.path, (time.time() - 40 * DAY,) * 2)
    assert files.load("used", KEY) == b"code"
    files.store("newer", KEY, "a device", b"code")
    assert [each.name for each in files.entries()] == ["new", "newer", "used"]
