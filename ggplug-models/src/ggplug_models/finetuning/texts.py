"""What a language model learns from: texts and chats as tokens, and which of these tokens it learns to predict."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug.errors import ParameterError
from ggplug.opt import Dataset
from ggplug.opt.datasets import Batch
from ggplug.system.files import open_regular
from ggplug_models.chat.template import ChatTemplate, Message
from ggplug_models.checks.ids import in_common
from ggplug_models.metadata.values import short_repr
from ggplug_models.tokenizers import Tokenizer

ROUND = 32
"""Batches are as long as their longest text, rounded up to a multiple of this, so that few different graphs occur."""


@dataclass(frozen=True)
class Learned:
    """A text as token ids, and for each whether the model learns to predict it from those before it.

    Raises ParameterError for other numbers of ids and of ``learned``.
    """

    ids: Sequence[int]
    learned: Sequence[bool]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.learned):
            counts = len(self.ids), len(self.learned)
            raise ParameterError(
                f"a text of {counts[0]} tokens must say of each whether it is learned, not of {counts[1]}", got=counts
            )

    def __len__(self) -> int:
        """The number of tokens that are learned: the first token has none before it."""
        return sum(self.learned[1:])

    def pieces(self, n: int) -> Iterator[Learned]:
        """Pieces in each of which ``n`` tokens at most are read; each token is learned in one of them."""
        for start in range(0, max(1, len(self.ids) - 1), n):
            yield Learned(self.ids[start : start + n + 1], self.learned[start : start + n + 1])

    def cut(self, n: int) -> Learned:
        """The beginning of the text, of which ``n`` tokens at most are read."""
        return Learned(self.ids[: n + 1], self.learned[: n + 1])


def learned_text(tokenizer: Tokenizer, text: str) -> Learned:
    """A text, all of whose tokens are learned, with the end token after it if the vocabulary has one."""
    ids = tokenizer.encode(text, add_special=True)
    if tokenizer.eos is not None and ids[-1:] != [tokenizer.eos]:
        ids.append(tokenizer.eos)
    return Learned(ids, [True] * len(ids))


def learned_chat(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
) -> list[Learned]:
    """A chat, of which the answers of the assistant are learned, each up to its end token.

    It is one text for each answer where the template writes the earlier messages of a chat differently once others
    follow, as without their reasoning; else it is one.  Raises ParameterError for a chat without an answer, or one
    whose answers do not continue their prompts, and as :meth:`.ChatTemplate.render`.
    """
    template = template.for_tools if tools and template.for_tools is not None else template
    answers = [n for n, each in enumerate(messages) if each.get("role") == "assistant"]
    if not answers:
        raise ParameterError("the chat has no message of the assistant, so nothing is learned", got=messages)
    spans = []
    for n in answers:
        whole = template.render(messages[: n + 1], tools=tools, add_generation_prompt=False)
        prompt = template.render(messages[:n], tools=tools) if n else _before_first(template, messages[0], whole, tools)
        if not whole.startswith(prompt):
            raise ParameterError(
                f"the chat template does not write the answer messages[{n}] after the prompt for it",
                got=messages,
                remedy="pass the texts as the model is to read them, as text lines",
            )
        spans.append((prompt, _closed(template, messages, n, whole, tools)))
    chain = [text for span in spans for text in span]
    said = [content.strip() if isinstance(content := messages[n].get("content"), str) else "" for n in answers]
    if all(after.startswith(before) for before, after in pairwise(chain)):
        return [_joined(template.tokenizer, chain, said)]
    return [_joined(template.tokenizer, span, [each]) for span, each in zip(spans, said, strict=True)]


def _closed(template: ChatTemplate, messages: Sequence[Message], n: int, whole: str, tools: Any) -> str:
    """The chat up to an answer, with its end token, which some templates write only before the next message."""
    tokenizer = template.tokenizer
    ends = tuple(tokenizer.piece(end).decode("utf-8", "replace") for end in tokenizer.ends)
    if whole.rstrip().endswith(ends):
        return whole
    following = messages[n + 1 : n + 2] or [{"role": "user", "content": "0"}]
    try:
        longer = template.render([*messages[: n + 1], *following], tools=tools, add_generation_prompt=False)
    except ParameterError:  # which does not allow that message there
        return whole
    rest = longer.removeprefix(whole) if longer.startswith(whole) else ""
    end = next((each for each in ends if rest.lstrip().startswith(each)), "")
    return whole + rest[: rest.index(end) + len(end)] if end else whole


def _before_first(template: ChatTemplate, answer: Message, whole: str, tools: Any) -> str:
    """What a template writes before an answer that begins a chat: what it writes before any other one, too."""
    content = answer.get("content")
    other = "1" if isinstance(content, str) and content.strip().startswith("0") else "0"
    rendered = template.render([{"role": "assistant", "content": other}], tools=tools, add_generation_prompt=False)
    return whole[: in_common(whole, rendered)]


def _joined(tokenizer: Tokenizer, texts: Iterable[str], said: Sequence[str]) -> Learned:
    """The last of texts, of which each continues the one before; every second part is an answer.

    ``said``: the content of each answer.
    """
    ids: list[int] = []
    learned: list[bool] = []
    before = ""
    for number, text in enumerate(texts):
        part = text.removeprefix(before)
        new = tokenizer.encode(part, parse_special=True, begins=False) if before else tokenizer.prompt(part)
        last = _end_of_answer(tokenizer, new, said[number // 2]) if number % 2 else -1
        ids += new
        learned += [place <= last for place in range(len(new))]
        before = text
    return Learned(ids, learned)


def _end_of_answer(tokenizer: Tokenizer, ids: Sequence[int], said: str) -> int:
    """The place of the first end token behind what an answer says, or of its last end token, or of its last token."""
    ends = [place for place, token in enumerate(ids) if token in tokenizer.ends]
    behind = (place for place in ends if said and said in tokenizer.decode(ids[:place]))
    return next(behind, ends[-1] if ends else len(ids) - 1)


def read_learned(path: str | os.PathLike[str], tokenizer: Tokenizer, template: ChatTemplate | None) -> list[Learned]:
    """The texts of a file: lines of JSON if its name ends with ``.jsonl``, else one plain text, in UTF-8.

    A line is ``{"text": "..."}``, or ``{"messages": [...]}`` with messages as chats have them, and possibly ``tools``,
    schemas of functions.  ``template``: for lines with messages.  Raises ParameterError, which names the line, and
    OSError.
    """
    path = Path(path)
    with open_regular(path) as file:
        data = file.read()
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not valid UTF-8 at byte {error.start}", got=error.start) from None
    if path.suffix != ".jsonl":
        ids = tokenizer.encode(content, add_special=True)
        return [Learned(ids, [True] * len(ids))]
    found: list[Learned] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found += _of_line(line, tokenizer, template)
        except ParameterError as error:
            raise ParameterError(f"{path}, line {number}: {error}", got=number) from None
    return found


def _of_line(line: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[Learned]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"it is no JSON: {error}") from None
    keys = set(value) if isinstance(value, dict) else set()
    if keys == {"text"} and isinstance(value["text"], str):
        return [learned_text(tokenizer, value["text"])]
    messages, tools = (value.get(key) if keys else None for key in ("messages", "tools"))
    if (
        not isinstance(messages, list)
        or not all(isinstance(each, dict) for each in messages)
        or keys - {"messages", "tools"}
        or not isinstance(tools, list | None)
    ):
        wanted = '{"text": "..."} or {"messages": [{"role": "...", "content": "..."}, ...]}'
        raise ParameterError(f"it must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)
    if template is None:
        raise ParameterError("the model has no chat template for messages", remedy="use text lines")
    return learned_chat(template, messages, tools)


class Texts(Dataset):
    """Texts of ``n`` tokens at most as a dataset: a datapoint is a text.

    ``data``: I32 [n, texts], the tokens that are read.  ``labels``: F32 [n, 2, texts], for each token the id of the
    next one, and its weight.  All tokens that are learned weigh the same: the mean loss of all texts is the mean over
    these tokens.  Raises ParameterError if there are none, or for a text that is longer.
    """

    def __init__(self, texts: Sequence[Learned], n: int) -> None:
        count, longest = sum(map(len, texts)), max((len(each.ids) for each in texts), default=0)
        if longest > n + 1:
            raise ParameterError(
                f"a text has {longest} tokens, of which {longest - 1} would be read, not {n} at most",
                got=longest,
                wanted=n + 1,
                remedy="cut it, or divide it into pieces",
            )
        if not count:
            raise ParameterError("no token of the texts is learned", got=len(texts))
        data = np.zeros((len(texts), n), np.int32)
        labels = np.zeros((len(texts), 2, n), np.float32)
        for row, each in enumerate(texts):
            read = len(each.ids) - 1
            data[row, :read] = each.ids[:-1]
            labels[row, 0, :read] = each.ids[1:]
            labels[row, 1, :read] = each.learned[1:]
        labels[:, 1] *= len(texts) / count
        self.tokens = count
        """The number of tokens that are learned."""
        super().__init__(data, labels)

    def batches(self, size: int, order: npt.NDArray[Any] | None = None) -> Iterator[Batch]:
        """As those of any dataset, but only as long as their longest text."""
        for data, labels in super().batches(size, order):
            assert labels is not None
            last = int(np.flatnonzero(labels[:, 1].any(axis=0)).max(initial=0)) + 1
            n = min(-(-last // ROUND) * ROUND, data.shape[1])
            yield Batch(data[:, :n], labels[:, :, :n])


def hold_out(texts: Sequence[Learned], part: float, seed: int) -> tuple[list[Learned], list[Learned]]:
    """The texts to learn from, and those that are held out: a random ``part`` of them, but one of several at least."""
    count = max(1, round(part * len(texts))) if part and len(texts) > 1 else 0
    chosen = set(np.random.default_rng(seed).permutation(len(texts))[:count].tolist())
    return (
        [each for n, each in enumerate(texts) if n not in chosen],
        [each for n, each in enumerate(texts) if n in chosen],
    )
