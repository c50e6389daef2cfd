"""Files: only regular ones are read, and new ones appear whole or not at all, through links and past nothing else."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from interrupts import interrupted_at, interrupted_everywhere

import ggplug as gg
from ggplug.errors import FileKindError, GGUFError
from ggplug.gguf import GGUFReader, GGUFWriter, writer
from ggplug.system import files
from ggplug.system.files import NewFile, naming, open_regular, replacing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no FIFOs, and links need a privilege")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_fifo() -> str:
    os.mkfifo("odd.gguf")
    return "a FIFO"


def make_socket() -> str:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("odd.gguf")
    return "a socket"


def make_folder() -> str:
    os.mkdir("odd.gguf")
    return "a folder"


def make_endless() -> str:
    os.symlink("/dev/zero", "odd.gguf")
    return "a device"


def make_full() -> str:
    os.symlink("/dev/full", "odd.gguf")
    return "a device"


KINDS = [make_fifo, make_socket, make_folder, make_endless, make_full]


def write_model(path: str | Path) -> None:
    with GGUFWriter(path, "test") as writer:
        writer.add_tensor("x", np.arange(4, dtype=np.float32))


def draw(path: str | Path) -> None:
    gg.Graph(gg.add(gg.new_tensor("f32", (2,), "a"), gg.new_tensor("f32", (2,), "b"))).dump(f"{path}")


WRITERS: list[Callable[[str], object]] = [write_model, lambda path: NewFile(path)]


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_not_opened(make: Callable[[], str]) -> None:
    kind = make()
    with pytest.raises(FileKindError, match=f"odd.gguf is no regular file but {kind}") as caught:
        open_regular("odd.gguf")
    assert (caught.value.path, caught.value.kind) == ("odd.gguf", kind)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_model_that_is_no_regular_file_is_refused(make: Callable[[], str]) -> None:
    kind = make()
    for read in (GGUFReader, gg.gguf.load):
        with pytest.raises(GGUFError, match=f"odd.gguf is no regular file but {kind}") as caught:
            read("odd.gguf")
        assert caught.value.fields["rule"] == "regular file"


def test_a_part_of_a_split_model_that_is_no_regular_file_is_refused(here: Path) -> None:
    writer = GGUFWriter("model.gguf", "test", split_max_tensors=1)
    for name in "ab":
        writer.add_tensor(name, np.ones(4, np.float32))
    first, second = writer.write()
    os.unlink(second)
    os.mkfifo(second)
    with pytest.raises(GGUFError, match=r"00002-of-00002.gguf is no regular file but a FIFO"):
        GGUFReader(first)


@pytest.mark.parametrize("write", WRITERS, ids=["a model", "a file"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_what_is_no_regular_file_is_not_replaced(make: Callable[[], str], write: Callable[[str], object]) -> None:
    kind = make()
    before = os.lstat("odd.gguf")
    with pytest.raises(FileKindError, match=f"odd.gguf is no regular file but {kind}"):
        write("odd.gguf")
    assert os.lstat("odd.gguf") == before
    assert os.listdir() == ["odd.gguf"]


def test_a_picture_replaces_no_device_and_goes_through_links() -> None:
    os.mkfifo("odd.dot")
    with pytest.raises(FileKindError, match="a FIFO"):
        draw("odd.dot")
    os.symlink("target", "link.dot")
    draw("link.dot")
    assert os.path.islink("link.dot")
    assert Path("target").read_text("utf-8").startswith("digraph")


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing"])
def test_a_link_stays_and_its_target_is_written(there: bool, here: Path) -> None:
    os.mkdir("folder")
    if there:
        Path("folder/model.gguf").write_bytes(b"old")
    os.symlink("folder/model.gguf", "inner.gguf")
    os.symlink("inner.gguf", "outer.gguf")
    write_model("outer.gguf")
    assert os.readlink("outer.gguf") == "inner.gguf"
    assert os.readlink("inner.gguf") == "folder/model.gguf"
    assert left(here / "folder") == ["model.gguf"]
    assert left(here) == ["folder", "inner.gguf", "outer.gguf"]
    with GGUFReader("folder/model.gguf") as reader:
        assert reader.array("x").tolist() == [0, 1, 2, 3]


def test_a_link_that_leads_to_itself_or_into_no_folder_is_an_error_that_names_it(here: Path) -> None:
    os.symlink("loop", "loop")
    os.symlink("missing/model.gguf", "far")
    for path, number in (("loop", errno.ELOOP), ("far", errno.ENOENT), ("missing/x", errno.ENOENT)):
        with pytest.raises(OSError, match=path if path == "loop" else "missing") as caught:
            write_model(path)
        assert caught.value.errno == number
    assert left(here) == ["far", "loop"]


def test_a_file_that_others_have_mapped_stays_theirs() -> None:
    write_model("model.gguf")
    with GGUFReader("model.gguf") as reader:
        values = reader.array("x")
        with GGUFWriter("model.gguf", "test") as writer:
            writer.add_tensor("x", values + 1)
        assert values.tolist() == [0, 1, 2, 3]
    with GGUFReader("model.gguf") as reader:
        assert reader.array("x").tolist() == [1, 2, 3, 4]


def test_permissions_are_kept_or_those_that_the_user_wants() -> None:
    before = os.umask(0o027)
    try:
        write_model("new.gguf")
        assert os.stat("new.gguf").st_mode & 0o777 == 0o640
        os.chmod("new.gguf", 0o600)
        write_model("new.gguf")
        assert os.stat("new.gguf").st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_file_that_may_not_be_written_is_not_replaced(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    Path("mine.gguf").write_bytes(b"precious")
    os.chmod("mine.gguf", 0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # the administrator may do everything
    with pytest.raises(PermissionError) as caught:
        write_model("mine.gguf")
    assert caught.value.filename == "mine.gguf"
    assert Path("mine.gguf").read_bytes() == b"precious"
    assert left(here) == ["mine.gguf"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), MemoryError(), GGUFError("broken off")], ids=repr)
def test_a_failure_leaves_what_was_there_and_nothing_else(failure: BaseException, here: Path) -> None:
    Path("model.gguf").write_bytes(b"old")

    def fail() -> bytes:
        raise failure

    writer = GGUFWriter("model.gguf", "test")
    writer.add_tensor("x", fail, gg.F32, (4,))
    with pytest.raises(type(failure)):
        writer.write()
    assert left(here) == ["model.gguf"]
    assert Path("model.gguf").read_bytes() == b"old"


def test_a_folder_without_room_is_an_error_that_names_the_file_and_leaves_nothing(here: Path) -> None:
    resource = pytest.importorskip("resource")
    assert resource is not None
    code = """
import resource, signal, sys
import numpy as np
from ggplug.gguf import GGUFWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer = GGUFWriter("model.gguf", "test")
writer.add_tensor("x", np.ones(int(sys.argv[1]), np.float32))
try:
    writer.write()
except OSError as error:
    print(error.filename, error.strerror)
"""
    for elements in (30_000, 1 << 20):
        done = subprocess.run([sys.executable, "-c", code, str(elements)], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("model.gguf File too large\n", "")
        assert left(here) == []


def test_a_name_as_long_as_names_can_be_is_written(here: Path) -> None:
    name = "a" * 250 + ".gguf"
    write_model(name)
    assert left(here) == [name]


def test_an_error_names_the_users_file_and_no_other_one() -> None:
    with pytest.raises(OSError, match="the-file"), naming("the-file"):
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(OSError, match="another"), naming("the-file"):
        raise OSError(errno.ENOENT, "missing", "another")


def test_without_following_the_link_itself_is_replaced() -> None:
    Path("target").write_bytes(b"precious")
    os.symlink("target", "link")
    with replacing("link", follow=False) as file:
        file.write(b"new")
    assert not os.path.islink("link")
    assert Path("target").read_bytes() == b"precious"
    os.symlink("target", "another")
    with pytest.raises(FileKindError, match="a symbolic link"):
        open_regular("another", follow=False)


def in_files(frame: FrameType) -> bool:
    return frame.f_code.co_filename in (files.__file__, contextlib.__file__, writer.__file__)


def write_one(path: str) -> None:
    with replacing(path) as file:
        file.write(b"new")


def write_parts(path: str) -> None:
    parts = GGUFWriter(path, "test", split_max_tensors=1)
    for name in "ab":
        parts.add_tensor(name, np.ones(4, np.float32))
    parts.write()


def fail_to_write(path: str) -> None:
    with contextlib.suppress(ValueError), replacing(path):
        raise ValueError


INTERRUPTED = [write_one, write_model, write_parts, fail_to_write]


@pytest.mark.filterwarnings("ignore:unclosed file")  # the one that was just opened: it is closed now
@pytest.mark.parametrize("write", INTERRUPTED)
@pytest.mark.parametrize("there", [True, False], ids=["a file is there", "none is"])
def test_an_interrupt_anywhere_leaves_no_unfinished_file(write: Callable[[str], None], there: bool, here: Path) -> None:
    number = 0
    while True:
        if there:
            Path("model.gguf").write_bytes(b"old")
        with interrupted_at(number, lambda: write("model.gguf"), in_files) as place:
            pass
        assert not [name for name in left(here) if files.is_unfinished(name)], place
        if there and write is write_one:
            assert Path("model.gguf").read_bytes() in (b"old", b"new")
        if place is None:
            break
        number += 1
    assert number > 20


@pytest.mark.filterwarnings("ignore:unclosed file")  # the one that was just opened: it is closed now
def test_a_file_that_is_being_opened_is_gone_at_once(here: Path) -> None:
    """Whoever keeps the error, and with it the frames."""
    made = NewFile.__init__.__code__
    for place in interrupted_everywhere(lambda: NewFile("model.gguf").discard(), lambda frame: frame.f_code is made):
        assert left(here) == [], place


def test_a_forked_process_leaves_the_file_to_the_one_that_writes_it(here: Path) -> None:
    new = NewFile("model.gguf")
    child = os.fork()
    if not child:
        del new
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    new.commit()
    assert left(here) == ["model.gguf"]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system has no such paths")
@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "a link"])
def test_what_a_process_has_open_is_not_replaced_by_its_path_among_devices(path: str, tmp_path: Path) -> None:
    (tmp_path / "a link").symlink_to("/dev/stdout")
    log = tmp_path / "log"
    code = f"from ggplug.system.files import NewFile\nNewFile({str(tmp_path / path)!r})"
    with log.open("w") as output:
        output.write("a line\n")
        output.flush()
        done = subprocess.run([sys.executable, "-c", code], stdout=output, stderr=subprocess.PIPE, text=True)
    assert "FileKindError" in done.stderr
    assert "names an open file of a process (give the path of the file itself)" in done.stderr
    assert log.read_text() == "a line\n"
