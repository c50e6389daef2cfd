"""Machine code on disk is that of the kernel that is wanted, whatever changes of what the kernel is made from."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from ggplug import cache
from ggplug.errors import KernelCompileError
from ggplug_cpu import own_sources
from ggplug_cpu.compiler import Kernel, KernelFactory, device_function, kernel, on_compile, prebuild, shared
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
    def factory() -> Any:
        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), int(float(ctx) * 0.5))

        return body

    flags: list[Any] = [False, True, {"contract"}, {"contract", "reassoc"}, {"reassoc", "contract"}]
    assert len({kernel(fastmath=each)(factory)().cache_key() for each in flags}) == 4


# -- a file that changes --------------------------------------------------------------------------------

_LAID_OUT = """
    from ggplug_cpu.compiler import device_function
    from ggplug_cpu.parameters import Parameters, integer
    class Words(Parameters):
        first = integer()
        a = integer()

    @device_function
    def index():
        return 2
"""
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
    "a declaration of a module": (
        {
            "lay.py": _LAID_OUT,
            "changing.py": "    from __future__ import annotations\n"
            + _HEAD
            + """
    import lay
    @kernel
    def made(n=0):
        def body(ctx: int, p: lay.Words) -> None:
            store_word(p.first, p.a * 0 + lay.index() + n)
        return body
""",
        },
        {"lay.py": ("return 2", "return 3")},
    ),
    "an attribute by an operator": (
        {
            "changing.py": _HEAD
            + "    import operator, sibling\n"
            + _KERNEL.replace(
                "def made(n=0):", "def made(n=0):\n        SCALE = operator.attrgetter('SCALE')(sibling)"
            ),
            "sibling.py": "SCALE = 2",
        },
        {"sibling.py": ("2", "3")},
    ),
    "a module with a property": (
        {
            "changing.py": f"{_HEAD}    import sibling\n{_KERNEL.replace('SCALE', 'sibling.SCALE')}",
            "sibling.py": """
    import sys, types
    class Kind(types.ModuleType):
        @property
        def SCALE(self):
            return 2
    sys.modules[__name__].__class__ = Kind
""",
        },
        {"sibling.py": ("return 2", "return 3")},
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
def added_by(n: Any) -> Any:
    constant = n + _ADDED

    @device_function
    def number(x: int) -> int:
        return int(x + constant)

    return number


@kernel
def adds_by(n: int, exact: bool) -> Any:
    number = added_by(n if exact else float(n))

    def body(ctx: int, params: int) -> None:
        store_word(word(params, 0), number(0))

    return body


def test_a_shared_maker_of_a_program_is_called_again_with_what_it_reads_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result(adds_by(1, True)) == 3
    monkeypatch.setattr(sys.modules[__name__], "_ADDED", 10)
    assert result(adds_by(2, True)) == 12
    assert result(adds_by(2**53 - 9, True)) == 2**53 + 1
    assert result(adds_by(2**53 - 9, False)) == 2**53


def test_a_factory_that_counts_its_calls_has_the_code_of_each_call(folder: Path) -> None:
    calls: list[int] = []

    @kernel
    def counts() -> Any:
        calls.append(1)
        number = len(calls)

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number)

        return body

    for call in (1, 2):
        assert result(counts()) == call
        counts().addresses.clear()
    assert len(list(folder.glob("counts*"))) == 2


def test_a_kernel_that_reads_the_environment_is_kept_for_each_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @kernel
    def reads() -> Any:
        number = int(os.environ["GGPLUG_TEST_NUMBER"])

        def body(ctx: int, params: int) -> None:
            store_word(word(params, 0), number)

        return body

    compiled: list[str] = []
    stop = on_compile(lambda event: compiled.append(event.phase))
    for number in (7, 8, 7):
        monkeypatch.setenv("GGPLUG_TEST_NUMBER", str(number))
        reads().addresses.clear()
        assert result(reads()) == number
    stop()
    assert compiled == ["start", "done"] * 2


def test_the_package_s_own_kernels_are_known_by_their_code_once_its_files_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ggplug_cpu import walker

    (made,) = [each for each in vars(walker).values() if isinstance(each, KernelFactory)][:1]
    assert own_sources.is_own(made.function)
    before = made().cache_key()
    assert before == made().source_key()

    def forget() -> None:
        for each in (own_sources.sources, own_sources._imports, own_sources._read):
            each.cache_clear()

    forget()
    assert made().cache_key() == before
    forget()
    monkeypatch.setattr(own_sources, "_STARTED", 0)
    assert made().source_key() == ""
    assert made().cache_key() not in ("", before)
    forget()


def test_llvm_code_does_not_depend_on_which_kernels_were_compiled_before(written: Any, tmp_path: Path) -> None:
    text = (
        "import sys, hashlib; from ggplug_cpu.features import target; from ggplug_cpu.language import machine_code\n"
        "from ggplug_cpu.ops.mul_mat.weights import pack_panels\n"
        "for name in sys.argv[1:]:\n"
        "    code = machine_code.llvm_code(pack_panels('f32', name), target())\n"
        "    print(name, hashlib.sha256(code.encode()).hexdigest())"
    )
    names = ["mxfp4", "q4_0", "iq2_xs", "f16", "q6_K"]
    found = []
    for order in (names, names[::-1]):
        done = subprocess.run([sys.executable, "-c", text, *order], capture_output=True, text=True, check=True)
        found.append(sorted(done.stdout.splitlines()))
    assert found[0] == found[1]


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
