"""Long texts and long lines: the ids of the whole text, in memory that its length does not decide."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggplug.errors import ParameterError
from ggplug_models.commands import lines
from ggplug_models.commands.lines import LongLine, windows, write_text
from ggplug_models.tokenizers import long_text
from ggplug_models.tokenizers.encoders import HF_JSON, TextTokenizer, TextTooLongError, from_metadata
from ggplug_models.tokenizers.long_text import LongText

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "world", "a", "b", "##a", "##b", ",", "ab", "."]
WORDS += [chr(code) for code in range(0x4E00, 0x4E20)]
# Combining characters that are not taken out, so that their order decides whether a word is known.
WORDS += ["e", "x", "##\u302e", "##\u302f", "##\U0001d165", "##\u1b44"]
N_VOCAB = 1000


def made(**normalizer: Any) -> Any:
    """A tokeniser of the library's, with special tokens of which one begins like another."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[MASK] hello", "ab[", "b"])
    return tokenizer


def whole(tokenizer: Any, text: str, max_length: int) -> list[int]:
    """What the library makes of the whole text; the oracle."""
    tokenizer.enable_truncation(max_length)
    ids: list[int] = tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8")).ids
    return ids


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Texts are long from 24 characters on, and looked at in as many, so that borders fall everywhere."""
    monkeypatch.setattr(long_text, "LONG", 24)
    monkeypatch.setattr("ggplug_models.tokenizers.encoders.LONG", 24)
    return 24


MARKS = "\u0301\u0323\u302e\u302f\u034f\U0001d165\u1b44\u0f73\u0344\u20dd\u05b0"
"""Combining characters of different classes: they change their order, and only some of them are taken out."""

PARTS = [
    "a",
    "b",
    "ab",
    "aab",
    "hello",
    "hellos",
    "world",
    "HELLO",
    " ",
    "  ",
    "\n",
    "\t",
    "\r",
    "\u3000",
    "\u00a0",
    ",",
    ".",
    "、",
    "\u4e2d",
    "\u4e00\u4e01",
    "[SEP]",
    "[MASK]",
    "[MASK] hello",
    "[MASK",
    "]",
    "[",
    "ab[",
    "\0",
    "\ufffd",
    "\u200b",
    "\u00ad",
    "é",
    "e\u0301",
    "\u212b",
    "\u1e69",
    "\uac00",
    "\ud79d",
    "\ufb01",
    "\u0130",
    "\u1e9e",
    "\U0001f600",
    "\U0001d400",
    "\u0378",
    "\ue000",
    "XXX",
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "A" * 250,
    *MARKS,
    f"e{MARKS}",
    MARKS * 5,
    "\u0301" * 70,
    "\u302e\u302f" * 60,
    "\ud800",
    "\u202e",
    "\u0629",
    "\u0e33",
    "\u0915\u094d\u0937",
]


def drawn(generator: random.Random) -> str:
    pool = generator.sample(PARTS, generator.choice((1, 2, 3, 8, len(PARTS))))
    return "".join(generator.choices(pool, k=generator.choice((0, 1, 5, 40, 200))))


NORMALIZERS = [
    {"lowercase": True},
    {"lowercase": False},
    {"lowercase": True, "strip_accents": False},
    {"lowercase": False, "strip_accents": True},
    {"handle_chinese_chars": False},
    {"clean_text": False},
]


@pytest.mark.parametrize("options", NORMALIZERS, ids=str)
def test_ids_of_long_texts_are_those_of_the_whole_text(options: dict[str, bool], short_pieces: int) -> None:
    generator = random.Random(str(options))
    for max_length in (3, 8, 64, 100_000):
        tokenizer = TextTokenizer(made(**options), max_length, N_VOCAB, "x")
        for _ in range(60):
            text = drawn(generator)
            wanted = whole(made(**options), text, max_length)
            assert tokenizer.encode([text]) == [wanted], ascii(text)
            step = generator.randint(1, 40)
            parts = [text[n : n + step] for n in range(0, len(text), step)]
            assert tokenizer.encode([LongText(lambda parts=parts: parts), "a"])[0] == wanted, ascii(text)


@pytest.mark.parametrize("by_words", [True, False])
def test_a_text_that_must_not_be_truncated_reports_its_length(by_words: bool, short_pieces: int) -> None:
    from tokenizers import pre_tokenizers

    generator = random.Random(5)
    tokenizers = [made(), made()]
    if not by_words:
        for each in tokenizers:
            each.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer, refused = TextTokenizer(tokenizers[0], 12, N_VOCAB, "x"), 0
    for _ in range(80):
        text = drawn(generator).encode("utf-8", "replace").decode("utf-8")
        wanted = tokenizers[1].encode(text).ids
        if len(wanted) <= 12:
            assert tokenizer.encode_whole(["", text])[1] == wanted
            continue
        refused += 1
        with pytest.raises(TextTooLongError) as caught:
            tokenizer.encode_whole(["", text])
        assert (caught.value.position, caught.value.got, caught.value.wanted) == (1, len(wanted), 12)
    assert 10 < refused < 70


def test_every_border_of_a_tricky_text_is_right(short_pieces: int) -> None:
    tokenizer = TextTokenizer(made(), 100_000, N_VOCAB, "x")
    tricky = f"hello, worlds [MASK] hello e{MARKS}\u1e69 \u4e00\u4e01b ab[SEP] {'a' * 103} e\u0323\u0301x\u302f\u302e a"
    for marks in ("", " e\u302e\u1b44 x\u302f\U0001d165\u1b44", " e\u302e\u0f73\u1b44"):
        for before in range(30):
            text = f"{'a' * before}{marks * 4}{tricky}{' ' * before}{tricky}"
            assert tokenizer.encode([text]) == [whole(made(), text, 100_000)]


def test_a_tokeniser_that_does_not_work_by_words_sees_texts_as_a_whole(short_pieces: int) -> None:
    from tokenizers import AddedToken, pre_tokenizers

    for change in (
        lambda t: t.add_tokens([AddedToken("hello world", normalized=True)]),
        lambda t: t.add_special_tokens([AddedToken("he", single_word=True)]),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
        lambda t: setattr(t, "post_processor", None),
    ):
        odd, reference = made(), made()
        change(odd)
        change(reference)
        tokenizer = TextTokenizer(odd, 50, N_VOCAB, "x")
        for text in ("hello world he heb " * 20, "Hello World " * 5, "a,b " * 40):
            assert tokenizer.encode([text, LongText(lambda text=text: [text])]) == [whole(reference, text, 50)] * 2


def test_many_texts_go_to_the_library_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the tokens of all that it is given, also those that it cuts off."""
    texts = [f"hello {'world ' * (n % 7)}, a" for n in range(200)]
    wanted = TextTokenizer(made(), 64, N_VOCAB, "x").encode(texts)
    sizes = []
    given = TextTokenizer._short

    def short(self: TextTokenizer, texts: dict[int, str], found: list[list[int]], **how: bool) -> None:
        sizes.append(sum(map(len, texts.values())))
        given(self, texts, found, **how)

    monkeypatch.setattr(TextTokenizer, "_short", short)
    monkeypatch.setattr("ggplug_models.tokenizers.encoders.TOGETHER", 100)
    assert TextTokenizer(made(), 64, N_VOCAB, "x").encode(texts) == wanted
    assert max(sizes) < 100 + max(map(len, texts))


MEMORY = """
import resource, sys
from pathlib import Path
from ggplug_models.tokenizers.encoders import from_metadata, HF_JSON

tokenizer = from_metadata({HF_JSON: Path(sys.argv[1]).read_text("utf-8")}, 512, 1000)
kinds = {
    "words": "hello, world " * (1 << 19), "one word": "x" * (4 << 20), "spaces": " " * (4 << 20),
    "accents": "\\u0301" * (4 << 20), "marks": "\\u302e" * (4 << 20), "nothing": "\\u200b" * (4 << 20),
    "emoji": chr(0x1f600) * (4 << 20), "punctuation": "," * (4 << 20),
}
tokenizer.encode(["warm"])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
before = peak()
for name, text in kinds.items():
    tokenizer.encode([text])
    print(name, (peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not report a process's memory in this way")
def test_millions_of_characters_take_little_more_memory_than_few(tmp_path: Path) -> None:
    """The texts are there before; the library would take sixty bytes for each of their characters."""
    (tmp_path / "tokenizer.json").write_text(made().to_str(), "utf-8")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert int(line.split()[-1]) < 100, done.stdout  # MiB


# -- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3, 4, 5, 8])
def test_lines_are_read_in_windows_whatever_comes_after_them(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    monkeypatch.setattr(lines, "LINES", 4)
    texts = [f"line {n}" for n in range(before)]
    for bad in (b"", b"\xff\nnever read\n"):
        found = windows(io.BytesIO("".join(f"{text}\n" for text in texts).encode() + bad))
        read: list[Any] = []
        for start in range(0, before, 4):
            window = next(found)
            assert window == texts[start : start + 4]
            read += window
        with pytest.raises(ParameterError if bad else StopIteration):
            next(found)
        assert read == texts


def test_windows_are_bounded_by_their_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BYTES", 100)
    found = [len(window) for window in windows(io.BytesIO(b"x" * 30 + b"\n" + b"y\n" * 90 + b"z" * 99))]
    assert found == [71, 21]


def text_of(line: str | LongLine) -> str:
    return line if isinstance(line, str) else "".join(line.pieces())


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("length", range(26, 42))
def test_long_lines_are_those_of_the_input(monkeypatch: pytest.MonkeyPatch, end: str, length: int) -> None:
    """Whatever is cut at the border of pieces: a character, or the end of a line."""
    monkeypatch.setattr(lines, "PIECE", 16)
    for filling in ("x", "ü", "漢", "😀", "\r", '"\\'):
        text = (filling * length)[:length]
        if filling == "\r" and end:
            text = text[:-1] + "x"
        given = f"first\n{text}{end}".encode() + (b"last" if end else b"")
        found = []
        for window in windows(io.BytesIO(given)):
            for line in window:
                found.append(text_of(line))
                assert text_of(line) == found[-1]  # it can be read again
                written: list[str] = []
                for ascii_only in (False, True):
                    written.clear()
                    write_text(line, written.append, ascii_only=ascii_only)
                    assert json.loads("".join(written)) == found[-1]
                    assert "".join(written) == json.dumps(found[-1], ensure_ascii=ascii_only)
        if filling == "\r" and not end:
            text = text[:-1]
        assert found == ["first", text, *(["last"] if end else [])]


@pytest.mark.parametrize("position", [0, 15, 16, 17, 40, 47])
def test_what_is_not_utf_8_is_named_by_line_and_byte(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    monkeypatch.setattr(lines, "PIECE", 16)
    for bad in (b"\xff", b"\xc3("):
        given = b"x" * position + bad + b"x" * 5
        with pytest.raises(ParameterError, match=f"^line 2 of standard input is not valid UTF-8 at byte {position}$"):
            list(windows(io.BytesIO(b"good\n" + given + b"\n")))
    with pytest.raises(ParameterError, match=f"^line 1 of standard input is not valid UTF-8 at byte {position}$"):
        list(windows(io.BytesIO(b"x" * position + b"\xf0\x9f\x98")))


class Endless:
    """Lines of any length that nobody has in memory."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readline(self, limit: int) -> bytes:
        size = min(limit, self.left)
        self.left -= size
        return b"hello world, "[: size % 13] + b"hello world, " * (size // 13)


def test_a_line_of_any_length_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        written = 0

        def write(piece: str) -> None:
            nonlocal written
            written += len(piece)

        for (line,) in windows(Endless(64 << 20)):
            write_text(line, write, ascii_only=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written == (64 << 20) + 2
    assert peak < 2 << 20


def test_long_lines_are_closed_after_their_window() -> None:
    found: list[LongLine] = []

    def read() -> Iterator[None]:
        for (line,) in windows(Endless(1 << 20)):
            assert isinstance(line, LongLine)
            found.append(line)
            yield

    reader = read()
    next(reader)
    reader.close()  # as an error in the middle of it does
    del reader
    with pytest.raises(ValueError, match="closed"):
        text_of(found[0])


def test_a_vocabulary_in_metadata_takes_long_texts_too() -> None:
    metadata = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": [*WORDS[:5], "\u2581hello", "s", "\u2581,"]}
    tokenizer = from_metadata(metadata, 64, N_VOCAB)
    assert tokenizer.encode(["hellos, " * 10_000]) == [[2, *([5, 6, 7] * 21)[:62], 3]]
    assert HF_JSON not in metadata
