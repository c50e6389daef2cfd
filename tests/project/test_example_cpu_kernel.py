"""The program of the page on kernels for the CPU computes what NumPy does, for every length."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("ggplug_cpu")

from examples import cpu_kernel
from ggplug_cpu.parameters import Place, Ref
from ggplug_cpu.tape import Entry, Tape
from ggplug_cpu.team import Team


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
def test_it_computes_all_numbers_and_no_more(n: int, threads: int) -> None:
    x = np.linspace(-4, 4, n, dtype=np.float32)
    y = np.full(n + 8, 7, np.float32)
    words = cpu_kernel.Softsign.words(y=Place(Ref(0)), x=Place(Ref(1)), n=n, scale=3.0)
    with Team(n_threads=threads) as team:
        team.run(Tape([Entry(cpu_kernel.softsign(), words)], n_slots=2).bind([y.ctypes.data, x.ctypes.data]))
    np.testing.assert_array_equal(y[:n], 3 * x / (1 + np.abs(x)))
    assert (y[n:] == 7).all()


def test_the_program_prints_error_times_and_divisions(capsys: pytest.CaptureFixture[str]) -> None:
    cpu_kernel.main()
    error, kernel, numpy, divisions = capsys.readouterr().out.splitlines()
    assert error == "largest error: 0.0e+00"
    assert re.fullmatch(r"kernel: \d+\.\d\d ms", kernel)
    assert re.fullmatch(r"NumPy: \d+\.\d\d ms", numpy)
    assert divisions.startswith("divisions in the machine code: ")
