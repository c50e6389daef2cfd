"""A kernel's code is kept by what the kernel is made from: whatever of it changes, the code on disk is not taken."""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from ggplug import cache
from ggplug.errors import KernelCompileError
from ggplug_cpu import digests, own_sources
from ggplug_cpu.compiler import FILES, Kernel, KernelFactory, device_function, kernel, on_compile, prebuild, shared
from ggplug_cpu.compiling import pool
from ggplug_cpu.context import store_word, word

_HEAD = """
    from ggplug_cpu.compiler import device_function, kernel, shared
    from ggplug_cpu.context import store_word, word
"""
_KERNEL = """
    @kernel
    def made(n=0):
        def body(ctx, params):
            store_word(word(params, 0), SCALE + n)
        return body
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and one process that compiles."""
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path / "cache" / "cpu"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes files, and imports the first as a module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def result(made: Kernel) -> int:
    """The word that a kernel writes."""
    out = np.zeros(1, np.int64)
    block = np.array([out.ctypes.data], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(made.address())(0, block.ctypes.data)
    return int(out[0])


def in_a_new_process(tmp_path: Path, module: str = "changing", then: str = "") -> list[int]:
    """What the kernels of a module write in a process of their own, which may take them from disk."""
    text = (
        "import sys, importlib; sys.path[:0] = sys.argv[1:]; from test_cpu_kernel_changes import result\n"
        f"module = importlib.import_module({module!r})\n{then}\n"
        "print([result(module.made(n)) - n for n in range(3)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = eval(done.stdout)
    return found


# -- two kernels that differ in one thing -------------------------------------------------------------


def of_a_closure(value: int) -> KernelFactory:
    @kernel
    def made() -> Any:
        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), value)

        return body

    return made


@device_function
def one(x: int) -> int:
    return 1 + 0 * x


@device_function
def two(x: int) -> int:
    return 2 + 0 * x


def of_a_device_function(value: int) -> KernelFactory:
    function = (one, two)[value - 1]

    @kernel
    def made() -> Any:
        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), function(ctx))

        return body

    return made


def of_an_object(value: int) -> KernelFactory:
    class Layout:
        table: ClassVar[Any] = {"first": [value, np.arange(value)]}

    layout = Layout()

    @kernel
    def made() -> Any:
        number = layout.table["first"][0]

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number)

        return body

    return made


def of_a_default(value: int) -> KernelFactory:
    @kernel
    def made() -> Any:
        def number(chosen: int = value) -> int:
            return chosen

        constant = number()

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), constant)

        return body

    return made


def of_another_body(value: int) -> KernelFactory:
    if value == 1:

        @kernel
        def made() -> Any:
            def body(ctx: int, params: int) -> None:
                store_word(word(params, 0), 1)

            return body

    else:

        @kernel
        def made() -> Any:
            def body(ctx: int, params: int) -> None:
                store_word(word(params, 0), 2)

            return body

    return made


def of_a_shared_maker(value: int) -> KernelFactory:
    @shared
    def maker(n: int) -> Any:
        @device_function
        def number(x):  # type: ignore[no-untyped-def]
            return x * 0 + value

        return number

    @kernel
    def made() -> Any:
        number = maker(1)

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number(ctx))

        return body

    return made


_DIFFERENT = [
    of_a_closure,
    of_a_device_function,
    of_an_object,
    of_a_default,
    of_another_body,
    of_a_shared_maker,
]


@pytest.mark.parametrize("factory", _DIFFERENT, ids=lambda each: each.__name__)
def test_two_kernels_of_one_name_that_differ_have_code_of_their_own(factory: Any, folder: Path) -> None:
    assert [result(factory(value)()) for value in (1, 2, 1)] == [1, 2, 1]
    assert len(list(folder.glob("made*"))) == 2


def test_fastmath_is_part_of_the_key() -> None:
    factory = of_a_closure(1).function
    flags: list[Any] = [False, True, {"contract"}, {"contract", "reassoc"}, {"reassoc", "contract"}]
    assert len({kernel(fastmath=each)(factory)().cache_key() for each in flags}) == 4


# -- a file that changes --------------------------------------------------------------------------------

_CHANGES = {
    "a global": ({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL}, {"changing.py": ("SCALE = 2", "SCALE = 3")}),
    "a module beside it": (
        {
            "changing.py": f"{_HEAD}    import sibling\n{_KERNEL.replace('SCALE', 'sibling.SCALE')}",
            "sibling.py": "SCALE = 2",
        },
        {"sibling.py": ("2", "3")},
    ),
    "a package itself": (
        {"own/__init__.py": "SCALE = 2", "own/changing.py": f"{_HEAD}    from own import SCALE\n{_KERNEL}"},
        {"own/__init__.py": ("2", "3")},
    ),
    "an import with comments": (
        {
            "own/__init__.py": "",
            "own/first.py": "SCALE = 5",
            "own/second.py": "SCALE = 2",
            "own/changing.py": f"{_HEAD}    from own import (\n        first,  # (a comment)\n        second,\n    )\n"
            + _KERNEL.replace("SCALE", "second.SCALE"),
        },
        {"own/second.py": ("2", "3")},
    ),
    "an import over two lines": (
        {
            "own/__init__.py": "",
            "own/first.py": "SCALE = 2",
            "own/changing.py": f"{_HEAD}    import os; from own import \\\n        first as it\n"
            + _KERNEL.replace("SCALE", "it.SCALE"),
        },
        {"own/first.py": ("2", "3")},
    ),
    "an import in the factory": (
        {
            "changing.py": _HEAD
            + _KERNEL.replace("def made(n=0):", "def made(n=0):\n        from sibling import SCALE"),
            "sibling.py": "SCALE = 2",
        },
        {"sibling.py": ("2", "3")},
    ),
    "a name that is put together": (
        {
            "changing.py": _HEAD
            + "    import sibling\n"
            + _KERNEL.replace("def made(n=0):", "def made(n=0):\n        SCALE = getattr(sibling, 'SC' + 'ALE')"),
            "sibling.py": "SCALE = 2",
        },
        {"sibling.py": ("2", "3")},
    ),
    "a declaration": (
        {
            "changing.py": "    from __future__ import annotations\n"
            + _HEAD
            + """
    from ggplug_cpu.compiler import Record
    from ggplug_cpu.parameters import Parameters, integer
    class Words(Parameters):
        first = integer()
    class Kind(Words):
        y = integer()

    @device_function
    def number(p: Kind) -> int:
        return 2

    @kernel
    def made(n=0):
        def body(ctx: int, p: Kind) -> None:
            store_word(p.first, number(p) + n)
        return body
"""
        },
        {"changing.py": ("return 2", "return 3")},
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_the_next_process_compiles_anew_what_changed_and_the_one_after_that_finds_it(
    change: str, written: Any, tmp_path: Path, folder: Path
) -> None:
    files, edits = _CHANGES[change]
    written(files)
    module = "own.changing" if "own/changing.py" in files else "changing"
    assert in_a_new_process(tmp_path, module) == [2, 2, 2]
    for name, (before, after) in edits.items():
        (tmp_path / name).write_text((tmp_path / name).read_text().replace(before, after))
    assert in_a_new_process(tmp_path, module) == [3, 3, 3]
    kept = sorted(folder.glob("made*"))
    assert in_a_new_process(tmp_path, module) == [3, 3, 3]
    assert sorted(folder.glob("made*")) == kept


def test_a_file_that_is_saved_while_a_program_runs_changes_neither_its_kernels_nor_those_of_the_next(
    written: Any, tmp_path: Path
) -> None:
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    save = (
        "import pathlib; path = pathlib.Path(module.__file__); "
        "path.write_text('# one more line\\n' + path.read_text().replace('SCALE = 2', 'SCALE = 3'))"
    )
    assert in_a_new_process(tmp_path, then=save) == [2, 2, 2]
    assert in_a_new_process(tmp_path) == [3, 3, 3]


def test_a_body_that_was_edited_and_not_imported_is_refused(written: Any, tmp_path: Path) -> None:
    written({"changing.py": _HEAD + _KERNEL.replace("SCALE", "2")})
    changing = importlib.import_module("changing")
    assert result(changing.made(0)) == 2
    written({"changing.py": _HEAD + _KERNEL.replace("SCALE", "3")})
    with pytest.raises(KernelCompileError, match=r"changing\.py was edited since it was imported"):
        changing.made(1).address()
    importlib.reload(changing)
    assert [result(changing.made(n)) for n in range(2)] == [3, 4]
    written({"changing.py": _HEAD + _KERNEL.replace("SCALE", "2")})
    assert in_a_new_process(tmp_path) == [2, 2, 2]


# -- values that change while a program runs --------------------------------------------------------------


def test_a_module_that_is_imported_anew_has_its_new_kernels(written: Any, tmp_path: Path) -> None:
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    changing = importlib.import_module("changing")
    assert result(changing.made()) == 2
    written({"changing.py": _HEAD + "    SCALE = 31\n" + _KERNEL})
    importlib.reload(changing)
    assert result(changing.made()) == 31
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    assert in_a_new_process(tmp_path) == [2, 2, 2]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_global_that_is_set_counts_in_whichever_process_compiles(
    processes: str, written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, processes)
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    changing = importlib.import_module("changing")
    changing.SCALE = 100
    kernels = [changing.made(n) for n in range(12)]
    assert prebuild(kernels) == 12
    assert [result(each) - n for n, each in enumerate(kernels)] == [100] * 12
    assert in_a_new_process(tmp_path) == [2, 2, 2]


def test_another_process_does_not_compile_a_file_that_was_edited(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pool.ENVIRONMENT_VARIABLE, "2")
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    changing = importlib.import_module("changing")
    written({"changing.py": _HEAD + "    SCALE = 5\n" + _KERNEL})
    kernels = [changing.made(n) for n in range(12)]
    assert prebuild(kernels) == 12
    assert [result(each) - n for n, each in enumerate(kernels)] == [2] * 12
    written({"changing.py": _HEAD + "    SCALE = 2\n" + _KERNEL})
    assert in_a_new_process(tmp_path) == [2, 2, 2]


_ADDED = 2


@device_function
def added(x: int) -> int:
    return x + _ADDED


@kernel
def adds(n: int) -> Any:
    def body(ctx: int, params: int) -> None:
        store_word(word(params, 0), added(0) + _ADDED)

    return body


def test_a_device_function_and_a_body_see_one_value_of_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(adds(1)) == 4
    monkeypatch.setattr(sys.modules[__name__], "_ADDED", 10)
    assert result(adds(2)) == 20
    monkeypatch.setattr(sys.modules[__name__], "_ADDED", 3)
    assert result(adds(3)) == 6


@shared
def added_by(n: int) -> Any:
    constant = n + _ADDED

    @device_function
    def number(x: int) -> int:
        return x + constant

    return number


def test_a_shared_maker_is_called_again_when_what_it_reads_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = added_by(1)
    assert added_by(1) is before
    monkeypatch.setattr(sys.modules[__name__], "_ADDED", 10)
    assert added_by(1) is not before


# -- what is not kept --------------------------------------------------------------------------------------


def test_a_factory_that_counts_its_calls_in_a_global_is_not_kept_under_what_it_was() -> None:
    calls: list[int] = []

    @kernel
    def counts() -> Any:
        calls.append(1)
        number = len(calls)

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number)

        return body

    assert result(counts()) == 1
    counts().addresses.clear()
    assert result(counts()) == 2
    assert not FILES.entries()


def reads_the_environment() -> int:
    return int(os.environ["GGPLUG_TEST_PROCESS"])


@functools.cache
def made_once() -> int:
    return 7


_OPAQUE = {
    "environment": reads_the_environment,
    "cached": made_once,
    "alias": os.getenv,
    "generator": (each for each in [1]),
    "lock": threading.Lock(),
    "modules": [pytest],
}


@pytest.mark.parametrize("opaque", [None, *_OPAQUE])
def test_what_cannot_be_known_is_compiled_for_this_process_only(opaque: str | None, folder: Path) -> None:
    read = _OPAQUE[opaque] if opaque else None

    @kernel
    def unknown() -> Any:
        number = 7 if read is None else 8

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number)

        return body

    made = unknown()
    compiled: list[str] = []
    stop = on_compile(lambda event: compiled.append(event.phase))
    for _ in range(2):
        made.addresses.clear()
        assert result(made) == (8 if opaque else 7)
    stop()
    assert compiled == ["start", "done"] * (2 if opaque else 1)
    assert bool(made.cache_key()) == (not opaque)
    assert len(list(folder.glob("unknown*"))) == (not opaque)


def test_the_package_s_own_kernels_are_not_kept_once_its_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug_cpu import walker

    (made,) = [each for each in vars(walker).values() if isinstance(each, KernelFactory)][:1]
    assert digests.is_own(made.function)
    before = made().cache_key()
    assert before

    def forget() -> None:
        for each in (own_sources.sources, own_sources._imports, own_sources._read):
            each.cache_clear()

    forget()
    assert made().cache_key() == before
    forget()
    monkeypatch.setattr(own_sources, "_STARTED", 0)
    assert made().cache_key() == ""
    forget()


def test_constants_that_are_equal_and_not_the_same_have_digests_of_their_own() -> None:
    values = [0, False, 0.0, -0.0, None, "", b"", (), [], {}, math.nan, -math.nan, np.float32(0), np.zeros(0), {1}, {2}]
    assert len({digests.digest(each) for each in values}) == len(values)
    assert digests.digest({"a", "b", "c"}) == digests.digest({"c", "b", "a"})


# -- words -------------------------------------------------------------------------------------------------


def test_a_factory_that_returns_no_body_is_a_compile_error_that_says_so() -> None:
    @kernel
    def forgets() -> Any: ...

    with pytest.raises(KernelCompileError, match="the factory returns None and no body"):
        forgets().address()


def test_an_argument_that_is_no_text_is_refused() -> None:
    @kernel
    def named(name: str) -> Any: ...

    with pytest.raises(TypeError, match=r"kernel named: argument name is '\\ud800', which is no text"):
        named("\ud800")
