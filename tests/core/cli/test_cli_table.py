"""Tables: whatever the terminal's width, nothing is hidden, nothing is wider, and words stay whole where they can."""

from __future__ import annotations

import random
import re

import pytest
from rich.cells import cell_len

from ggplug.cli.table import LONG_WORD, fold, layout

DEVICES = [
    ("CPU", "CPU", "22.8 GiB free\nof 23.5 GiB", "AMD EPYC (avx512, vnni, bf16), 2 threads\nggplug-cpu 0.1.0"),
    ("OpenCL0", "CPU", "?", "pthread-AMD EPYC (Portable Computing Language)"),
]
HEADINGS = ["device", "kind", "memory", "what it is"]


def test_a_table_that_fits_is_as_wide_as_its_cells() -> None:
    assert list(layout(["key", "bytes"], [("a", "10"), ("long key", "7")], 40, ["bytes"])) == [
        "key        bytes",
        "────────────────",
        "a             10",
        "long key       7",
    ]


@pytest.mark.parametrize("width", [4, 80])
def test_a_table_without_rows_or_columns_has_what_there_is(width: int) -> None:
    assert list(layout([], [], width)) == []
    assert list(layout([], [(), ()], width)) == []
    assert list(layout(["key", "bytes"], [], 80)) == ["key   bytes", "───────────"]


def test_text_is_folded_between_words_next_to_short_cells() -> None:
    assert list(layout(HEADINGS, DEVICES[:1], 60, rule="-")) == [
        "device   kind   memory          what it is",
        "-" * 60,
        "CPU      CPU    22.8 GiB free   AMD EPYC (avx512, vnni,",
        "                of 23.5 GiB     bf16), 2 threads",
        "                                ggplug-cpu 0.1.0",
    ]


def test_in_a_narrow_terminal_rows_become_blocks() -> None:
    assert list(layout(HEADINGS, DEVICES[:1], 40)) == [
        "CPU",
        "  kind        CPU",
        "  memory      22.8 GiB free",
        "              of 23.5 GiB",
        "  what it is  AMD EPYC (avx512, vnni,",
        "              bf16), 2 threads",
        "              ggplug-cpu 0.1.0",
    ]


def test_a_name_is_continued_behind_the_mark_between_its_parts() -> None:
    assert list(fold("bert.attention.layer_norm_epsilon", 16)) == ["bert.attention.", "layer_norm_", "epsilon"]
    assert list(fold("of 30,522 in version 0.1.0", 10)) == ["of 30,522", "in version", "0.1.0"]
    assert list(fold("x" * 25, 10)) == ["x" * 10, "x" * 10, "x" * 5]
    assert list(fold("漢" * 7, 5)) == ["漢漢", "漢漢", "漢漢", "漢"]
    assert list(fold("", 10)) == [""]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_nothing_is_wider_and_short_words_are_whole(seed: int) -> None:
    generator = random.Random(seed)
    alphabet = "abc.defg_hij-k,lmn漢é"

    def word() -> str:
        return "".join(generator.choices(alphabet, k=generator.choice((1, 3, 8, 8, 20, 60))))

    def cell() -> str:
        return " ".join(word() for _ in range(generator.choice((0, 1, 1, 2, 9))))

    for width in (20, 33, 40, 80, 120):
        columns = generator.randint(1, 5)
        rows = [tuple(cell() or "-" for _ in range(columns)) for _ in range(6)]
        lines = list(layout([f"h{n}" for n in range(columns)], rows, width))
        assert max(map(cell_len, lines)) <= width, lines
        shown = "".join(lines)
        for text in (text for row in rows for text in row):
            for each in text.split():
                if cell_len(each) <= min(LONG_WORD, width // 2 - 6):
                    assert any(each in line for line in lines), (each, lines)
        letters = sorted(re.sub(r"[\s─]", "", "".join("".join(row) for row in rows)))
        printed = re.sub(r"[\s─]|h\d", "", shown)
        assert sorted(printed) == letters
