"""Drafts from counts of runs of tokens."""

from __future__ import annotations

import pytest

from ggplug_models.guessing import ngram_drafts
from ggplug_models.guessing.ngram_drafts import NgramCounts, NgramDrafts


def test_the_token_that_mostly_followed_is_guessed() -> None:
    drafts = NgramDrafts(4)
    assert drafts.guess([1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3], 4) == [9, 1, 2, 3]
    text = [1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3, 6, 1, 2, 3]
    assert NgramDrafts(1).guess(text, 1) == [6]
    assert NgramDrafts(1).guess([*text[:-3], 5, 1, 2, 3], 1) == [6], "of several with the same count, the first one"


def test_a_run_with_many_different_continuations_ends_the_draft() -> None:
    text = [token for number in range(10, 20) for token in (1, 2, 3, 4, number)]
    assert NgramDrafts().guess([*text, 1, 2, 3], 3) == [4]


def test_short_runs_must_have_occurred_twice() -> None:
    assert NgramDrafts().guess([7, 8, 1, 7], 2) == []
    assert NgramDrafts().guess([7, 8, 1, 7, 8, 2, 7], 1) == [8]
    assert NgramDrafts().guess([], 2) == NgramDrafts().guess([1], 2) == []


def test_earlier_texts_count_and_each_token_of_a_text_that_grows_counts_once() -> None:
    drafts = NgramDrafts()
    drafts.guess([1, 2, 3, 4, 5, 6], 1)
    assert drafts.guess([9, 1, 2, 3, 4], 2) == [5, 6]
    counts = NgramCounts()
    growing = NgramDrafts(counts=counts)
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    for end in range(1, len(text) + 1):
        growing.guess(text[:end], 1)
    once = NgramCounts()
    once.add(text, 0)
    assert counts._counts == once._counts


def test_several_drafts_can_count_together() -> None:
    counts = NgramCounts()
    a, b = NgramDrafts(counts=counts), NgramDrafts(counts=counts)
    a.guess([1, 2, 3, 4, 5, 6], 1)
    assert b.guess([0, 2, 3, 4, 5], 3) == [6]


def test_full_counts_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_drafts, "MOST_RUNS", 50)
    counts = NgramCounts()
    counts.add(list(range(200)), 0)
    assert len(counts._counts) <= 50
    assert counts.best([195, 196, 197, 198]) == 199
    assert counts.best([5, 6, 7, 8]) is None
