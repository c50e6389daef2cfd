"""ggplug-cpu's compiler: kernels are made for the chosen features, kept on disk, and loaded without the compiler."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import math
import os
import platform
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from ggplug import cache, trace
from ggplug.errors import KernelCompileError, OutOfMemoryError
from ggplug_cpu import features, loader
from ggplug_cpu.compiler import (
    FILES,
    CompileEvent,
    Kernel,
    device_function,
    intrinsic,
    kernel,
    llvm_call,
    on_compile,
    prebuild,
    shared,
)
from ggplug_cpu.context import load_word, real, store_word, word
from ggplug_cpu.ops.mul_mat.weights import pack_panels

X86 = platform.machine().lower() in ("x86_64", "amd64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, in a folder whose name has spaces; nothing from the process's environment."""
    monkeypatch.setenv(cache.ENVIRONMENT_VARIABLE, str(tmp_path / "a cache with spaces"))
    monkeypatch.delenv(features.ENVIRONMENT_VARIABLE, raising=False)
    return tmp_path / "a cache with spaces" / "cpu"


def run(handle: Kernel, *words: int | float) -> None:
    """Call a kernel that needs no context."""
    block = np.array(words, np.float64 if any(isinstance(each, float) for each in words) else np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(handle.address())(0, block.ctypes.data)


# -- kernels used below; their factories count how often they are called ------------------------------


@device_function
def twice(x: int) -> int:
    return x + x


@kernel
def fill(value: int, doubled: bool = False) -> Callable[[int, int], None]:
    def body(ctx: int, params: int) -> None:
        for i in range(word(params, 1)):
            store_word(word(params, 0) + 8 * i, twice(value) if doubled else value)

    return body


@intrinsic("f32x8(i64)")
def load_8(builder: Any, address: Any) -> Any:
    from llvmlite import ir

    return builder.load(builder.inttoptr(address, ir.VectorType(ir.FloatType(), 8).as_pointer()), align=4)


@intrinsic(lambda a, t: f"void({a}, {t})" if t.startswith("f32x") else None)
def store_8(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


@kernel
def polynomial() -> Callable[[int, int], None]:
    """y = x * x - -x + x / x, eight lanes at a time."""

    def body(ctx: int, params: int) -> None:
        for i in range(0, word(params, 2), 8):
            x = load_8(word(params, 0) + 4 * i)
            y = x * x
            y += x / x
            store_8(word(params, 1) + 4 * i, y - -x)

    return body


def made_of(body: Callable[[int, int], None]) -> Kernel:
    """A kernel without arguments whose body is ``body``."""

    def factory() -> Callable[[int, int], None]:
        return body

    factory.__name__ = factory.__qualname__ = body.__name__
    return kernel(factory)()


# -- handles ----------------------------------------------------------------------------------------


def test_equal_arguments_give_the_same_handle_and_the_factory_is_not_called_for_it() -> None:
    assert fill(3) is fill(3, False) is fill(value=3, doubled=False)
    assert fill(3) is not fill(4)
    assert not fill(1, True).ready


def test_true_and_one_are_different_constants() -> None:
    assert fill(1) is not fill(True)
    assert fill(1).name == "fill[1,False]"
    assert fill(True).name == "fill[True,False]"


def test_an_argument_that_is_no_constant_is_refused() -> None:
    with pytest.raises(TypeError, match="argument value is"):
        fill([1])  # type: ignore[arg-type]


def test_device_functions_and_intrinsics_cannot_be_called_from_python() -> None:
    with pytest.raises(TypeError, match="only kernels"):
        twice(2)
    with pytest.raises(TypeError, match="only kernels"):
        load_word(0)


# -- compiled code ----------------------------------------------------------------------------------


def test_a_kernel_writes_what_its_python_says() -> None:
    numbers = np.zeros(5, np.int64)
    run(fill(7), numbers.ctypes.data, 4)
    assert numbers.tolist() == [7, 7, 7, 7, 0]
    run(fill(7, True), numbers.ctypes.data, 3)
    assert numbers.tolist() == [14, 14, 14, 7, 0]


def test_floats_travel_in_parameters_and_libm_is_there() -> None:
    @intrinsic("i64(f64)")
    def bits(builder: Any, value: Any) -> Any:
        from llvmlite import ir

        return builder.bitcast(value, ir.IntType(64))

    def exponential(ctx: int, params: int) -> None:
        store_word(params + 8, bits(math.exp(real(params, 0)) + math.tanh(real(params, 0))))

    block = np.array([0.5, 0.0])
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(made_of(exponential).address())(0, block.ctypes.data)
    assert block[1] == pytest.approx(math.exp(0.5) + math.tanh(0.5), rel=1e-14)


@pytest.mark.parametrize("level", features.choices())
def test_every_level_of_this_machine_computes_the_same(level: str) -> None:
    x = np.random.default_rng(1).uniform(1, 2, 64).astype(np.float32)
    y = np.zeros_like(x)
    with features.forced(level):
        run(polynomial(), x.ctypes.data, y.ctypes.data, 64)
    np.testing.assert_allclose(y, x * x + 1 + x, rtol=1e-6)


@pytest.mark.skipif(not X86, reason="registers of x86-64")
def test_the_level_decides_which_registers_are_used() -> None:
    with features.forced("generic"):
        assert "ymm" not in polynomial().assembly()
        assert "xmm" in polynomial().assembly()
    if "avx2" in features.choices():
        with features.forced("avx2"):
            assert "ymm" in polynomial().assembly()
            assert "zmm" not in polynomial().assembly()


@pytest.mark.skipif(not X86 or "avx512" not in features.choices(), reason="needs AVX-512")
def test_loops_are_vectorised_with_whole_registers() -> None:
    @intrinsic("f32(i64, i64)")
    def load(builder: Any, base: Any, index: Any) -> Any:
        from llvmlite import ir

        pointer = builder.inttoptr(base, ir.FloatType().as_pointer())
        return builder.load(builder.gep(pointer, [index], source_etype=ir.FloatType()), align=4)

    @intrinsic("void(i64, i64, f32)")
    def store(builder: Any, base: Any, index: Any, value: Any) -> None:
        from llvmlite import ir

        pointer = builder.inttoptr(base, ir.FloatType().as_pointer())
        builder.store(value, builder.gep(pointer, [index], source_etype=ir.FloatType()), align=4)

    def squares(ctx: int, params: int) -> None:
        x, y = word(params, 0), word(params, 1)
        for i in range(word(params, 2)):
            store(y, i, load(x, i) * load(x, i))

    with features.forced("avx512"):
        assert "zmm" in made_of(squares).assembly()


# -- what cannot be compiled ------------------------------------------------------------------------


def test_what_is_outside_of_the_language_is_a_compile_error_that_shows_the_line() -> None:
    def mistyped(ctx: int, params: int) -> None:
        store_word(params, "text")

    with pytest.raises(KernelCompileError, match="kernel mistyped does not compile") as caught:
        made_of(mistyped).address()
    assert caught.value.op == "mistyped"
    assert f"{__file__}, line {mistyped.__code__.co_firstlineno + 1} in mistyped" in (caught.value.log or "")


def test_a_kernel_cannot_raise() -> None:
    def asserting(ctx: int, params: int) -> None:
        assert ctx == 0

    with pytest.raises(KernelCompileError, match="kernels cannot raise"):
        made_of(asserting).address()


def test_a_kernel_cannot_print() -> None:
    def printing(ctx: int, params: int) -> None:
        print(ctx)

    with pytest.raises(KernelCompileError, match="printing"):
        made_of(printing).address()


def test_a_symbol_that_no_process_has_is_named_and_does_not_reach_the_disk(folder: Path) -> None:
    @intrinsic("i64(i64)")
    def foreign(builder: Any, value: Any) -> Any:
        return llvm_call(builder, "frobnicate", value.type, value)

    def calling(ctx: int, params: int) -> None:
        store_word(params, foreign(ctx))

    with pytest.raises(KernelCompileError, match="it calls frobnicate"):
        made_of(calling).address()
    assert not list(folder.glob("calling*"))


def test_bad_code_of_an_intrinsic_is_a_compile_error() -> None:
    @intrinsic("i64(i64)")
    def wrong(builder: Any, value: Any) -> Any:
        from llvmlite import ir

        return ir.Constant(ir.FloatType(), 1.0)

    def using(ctx: int, params: int) -> None:
        store_word(params, wrong(ctx))

    with pytest.raises(KernelCompileError, match="using"):
        made_of(using).address()


# -- the disk ---------------------------------------------------------------------------------------

_PROGRAM = """
    import logging, sys
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    sys.path.insert(0, {folder!r})
    import kernels
    handles = [kernels.add_up(i) for i in range(30)]
    addresses = [handle.address() for handle in handles]
    print(len(set(addresses)), "ggplug_cpu.language.machine_code" in sys.modules)
"""

_KERNELS = """
    from ggplug_cpu.compiler import kernel
    from ggplug_cpu.context import store_word, word

    @kernel
    def add_up(n):
        def body(ctx, params):
            store_word(params, word(params, 0) + n)
        return body
"""


def start(program: str, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "kernels.py").write_text(textwrap.dedent(_KERNELS))
    text = textwrap.dedent(program).format(folder=str(tmp_path))
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", text], stdout=pipe, stderr=pipe, text=True, env=dict(os.environ))


def test_a_process_that_finds_its_kernels_on_disk_compiles_nothing(tmp_path: Path) -> None:
    _, cold_log = start(_PROGRAM, tmp_path).communicate()
    assert "INFO:ggplug:compiling add_up[29]" in cold_log
    warm, warm_log = start(_PROGRAM, tmp_path).communicate()
    assert warm.split()[0] == "30"
    assert warm_log == ""


_OF_THE_PACKAGE = """
import logging, sys
logging.basicConfig(level=logging.INFO)
import ggplug as gg
x = gg.tensor([1.0, 2.0])
print(gg.compute(gg.add(x, x), backends=[gg.device("CPU").init()]).numpy(), end=" ")
print("ggplug_cpu.language.machine_code" in sys.modules)
"""


def test_a_process_that_finds_the_package_s_kernels_on_disk_never_imports_the_compiler(tmp_path: Path) -> None:
    for found in ("True", "False"):
        out, log = start(_OF_THE_PACKAGE, tmp_path).communicate()
        assert out.split() == ["[2.", "4.]", found]
        assert ("INFO:ggplug:compiling" in log) == (found == "True")


def test_two_processes_may_compile_the_same_kernels_at_once(tmp_path: Path, folder: Path) -> None:
    processes = [start(_PROGRAM, tmp_path) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert [output.split()[0] for output in outputs] == ["30", "30"]
    assert len(list(folder.glob("add_up*.kernel"))) == 30
    assert not list(folder.glob("*.part"))
    assert start(_PROGRAM, tmp_path).communicate()[1] == ""


def forget(handle: Kernel) -> None:
    """As if the process were new."""
    handle.addresses.clear()


def compiled(action: Callable[[], object]) -> list[str]:
    """Names of the kernels that ``action`` compiles."""
    names: list[str] = []
    stop = on_compile(lambda event: names.append(event.name) if event.phase == "done" else None)
    try:
        action()
    finally:
        stop()
    return names


def test_a_stored_kernel_is_not_compiled_again() -> None:
    forget(fill(40))
    assert compiled(fill(40).address) == ["fill[40,False]"]
    forget(fill(40))
    assert compiled(fill(40).address) == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "another kernel's"])
def test_a_damaged_file_is_compiled_anew_with_one_warning(
    damage: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget(fill(41))
    fill(41).address()
    (path,) = folder.glob("fill.41*")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        forget(fill(42))
        fill(42).address()
        (other,) = folder.glob("fill.42*")
        path.write_bytes(other.read_bytes())
    forget(fill(41))
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert compiled(fill(41).address) == ["fill[41,False]"]
    (record,) = caplog.records
    assert record.message == f"the compiled kernel {path} is damaged; compiling it again"
    numbers = np.zeros(1, np.int64)
    run(fill(41), numbers.ctypes.data, 1)
    assert numbers[0] == 41


@pytest.mark.parametrize(
    "code", [b"", b"no code at all", b"\x7fELF\x02\x01" + b"\xff" * 200, "cut"], ids=["none", "text", "elf", "cut"]
)
def test_code_that_cannot_be_loaded_is_compiled_anew_though_its_file_is_whole(
    code: bytes | str, caplog: pytest.LogCaptureFixture
) -> None:
    forget(fill(46))
    fill(46).address()
    key = fill(46).cache_key()
    whole = FILES.load(fill(46).name, key)
    assert whole is not None
    FILES.store(fill(46).name, key, "somewhere", whole[: len(whole) // 2] if isinstance(code, str) else code)
    forget(fill(46))
    with caplog.at_level(logging.WARNING, "ggplug"):
        assert compiled(fill(46).address) == ["fill[46,False]"]
    (record,) = caplog.records
    assert "cannot be loaded" in record.message
    assert FILES.load(fill(46).name, key) == whole


def test_once_a_kernel_is_compiled_its_llvm_code_is_freed() -> None:
    @kernel
    def adds_by_another(number: int) -> Any:
        @device_function
        def another(x):  # type: ignore[no-untyped-def]
            return x + number

        def body(ctx, params):  # type: ignore[no-untyped-def]
            store_word(params, another(word(params, 0)))

        return body

    from ggplug_cpu.language import functions

    def kept() -> list[str]:
        gc.collect()
        return [each.declaration.name for each in gc.get_objects() if isinstance(each, functions._Function)]

    adds_by_another(3).address()
    assert [name for name in kept() if name.startswith("word.")]
    assert not [name for name in kept() if name.startswith(("another.", "body."))]


@intrinsic("i64(i64)")
def negative(builder: Any, x: Any) -> Any:
    return builder.neg(x)


def times_minus(factor: int) -> Any:
    @device_function
    def times(x: int) -> int:
        minus: int = negative(x) * factor
        return minus

    return times


def test_a_shared_device_function_of_the_package_is_compiled_once_for_each_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ggplug_cpu import own_sources
    from ggplug_cpu.language.functions import Library

    emitted = []
    translated = Library._translated

    def listed(library: Library, function: Any, *arguments: Any) -> Any:
        emitted.extend([features.target().key] * (function.__name__ == "times"))
        return translated(library, function, *arguments)

    monkeypatch.setattr(Library, "_translated", listed)

    assert shared(times_minus) is times_minus
    monkeypatch.setattr(own_sources, "PACKAGE", __name__)
    scaled = shared(times_minus)

    @kernel
    def once(factor: int) -> Any:
        times = scaled(factor)

        def body(ctx, params):  # type: ignore[no-untyped-def]
            store_word(word(params, 0), times(word(params, 1)))

        return body

    @kernel
    def again(factor: int) -> Any:
        times = scaled(factor)

        def body(ctx, params):  # type: ignore[no-untyped-def]
            store_word(word(params, 0), times(times(word(params, 1))))

        return body

    assert scaled(1) is scaled(1)
    assert scaled(1) is not scaled(True)
    levels = ["generic", features.choices()[-1]]
    out = np.zeros(1, np.int64)
    for level in levels:
        with features.forced(level):
            run(once(3), out.ctypes.data, 7)
            assert out[0] == -21
            run(again(3), out.ctypes.data, 7)
            assert out[0] == 63
    assert len(emitted) == len(set(levels)) == len(set(emitted))


def test_what_was_compiled_is_listed_with_its_target() -> None:
    forget(fill(45))
    fill(45).address()
    (entry,) = FILES.entries()
    assert (entry.name, entry.target) == ("fill[45,False]", str(features.target()))
    assert entry.bytes > 500


# -- the key ----------------------------------------------------------------------------------------


def test_the_key_covers_arguments_and_target() -> None:
    keys = {fill(value).cache_key() for value in (1, 2)}
    with features.forced("generic+x-emulated"):
        keys.add(fill(1).cache_key())
    assert len(keys) == 3
    names = [pack_panels("f32", name) for name in ("q4_0", "q4_1")]
    assert len({*keys, *(each.cache_key() for each in names)}) == 5


# -- progress, threads ---------------------------------------------------------------------------------


def test_listeners_hear_of_every_compilation_and_prebuild_counts_them() -> None:
    handles = [fill(50), fill(51), fill(50)]
    for handle in handles:
        forget(handle)
    events: list[CompileEvent] = []
    stop = on_compile(events.append)
    assert prebuild(handles) == 2
    stop()
    stop()
    assert [(event.name, event.phase) for event in events] == [
        ("fill[50,False]", "start"),
        ("fill[50,False]", "done"),
        ("fill[51,False]", "start"),
        ("fill[51,False]", "done"),
    ]
    assert events[1].seconds > 0 == events[0].seconds
    forget(fill(51))
    assert prebuild(handles) == 0
    assert len(events) == 4


def test_kernels_that_are_compiled_together_are_a_span_of_a_trace() -> None:
    for number in (53, 54):
        forget(fill(number))
    with trace.recording() as found:
        assert prebuild([fill(53), fill(54)]) == 2
        assert prebuild([fill(53), fill(54)]) == 0
    (span,) = found.spans
    assert (span.kind, span.name) == ("compile", "for CPU")
    assert span.facts == {"kernels": ["fill[53,False]", "fill[54,False]"]}
    assert span.end > span.start


def test_a_failure_is_announced_too() -> None:
    def failing(ctx: int, params: int) -> None:
        print(ctx)

    events: list[CompileEvent] = []
    stop = on_compile(events.append)
    with pytest.raises(KernelCompileError):
        made_of(failing).address()
    stop()
    assert [event.phase for event in events] == ["start", "failed"]


def test_two_threads_that_want_one_kernel_compile_it_once() -> None:
    forget(fill(52))
    together = threading.Barrier(2)
    addresses: list[int] = []

    def want() -> None:
        together.wait()
        addresses.append(fill(52).address())

    def both() -> None:
        threads = [threading.Thread(target=want) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert compiled(both) == ["fill[52,False]"]
    assert len(set(addresses)) == 1
    assert len(addresses) == 2


def test_symbols_of_an_object_file_are_found_without_loading_it() -> None:
    forget(fill(54))
    fill(54).address()
    code = FILES.load(fill(54).name, fill(54).cache_key())
    assert code is not None
    assert loader.undefined_symbols(code) in (None, [], ["memset"])
    assert loader.undefined_symbols(b"MZ") is None


def test_a_kernel_is_not_loaded_where_llvm_would_end_the_process_for_lack_of_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("ggplug_cpu.loader.mmap.mmap", full)
    with pytest.raises(OutOfMemoryError, match="kernel silu: the process can map no 5 bytes more"):
        loader.check_memory("silu", 5)
