"""When bindings go stale: a revision number for each graph, and who advances it.

Plans, schedules and addresses are made from what a graph's tensors were at some moment: their flags, and the buffers
and offsets of the persistent ones.  What keeps such a thing (a scheduler, a plan) keeps the number of the graph's
:class:`Revision` with it, and looks at the tensors again only when that number has moved.

A tensor without a buffer knows the graphs that contain it, and advances their revisions when it is marked or placed.
Persistent tensors do not know them: a model has thousands, and language models build a graph for each token.  The
buffer that they lie in does, by its :class:`Watchers`; a graph adds itself to those of its few buffers just before its
tensors are looked at.  So graphs that share no tensor and no buffer never make each other stale.
"""

from __future__ import annotations

import itertools
import weakref

_numbers = itertools.count(1)
_PRUNE_AT = 64
"""References that a buffer gathers before it looks for dead ones."""


class Revision:
    """A number that moves when something changes that a graph depends on.

    ``now``: the number.  It only grows, also if several threads advance it.  ``watched``: the number that it had when
    it was last added to the watchers of the graph's buffers.
    """

    __slots__ = ("__weakref__", "now", "watched")

    def __init__(self) -> None:
        self.now = next(_numbers)
        self.watched = 0

    def advance(self) -> None:
        self.now = next(_numbers)


class Watchers:
    """The revisions to advance when a buffer, or a tensor in it, changes.

    Held weakly, and until the next change only: an advanced revision has to be added again before the next look.
    Each step is one operation on a dictionary: whatever comes in between, none is taken out that is not advanced.
    """

    __slots__ = ("_prune_at", "_revisions")

    def __init__(self) -> None:
        self._revisions: dict[weakref.ref[Revision], None] = {}
        self._prune_at = _PRUNE_AT

    def add(self, revision: Revision) -> None:
        """From now on :meth:`advance` advances this revision, too."""
        if len(self._revisions) >= self._prune_at:
            for reference in list(self._revisions):
                if reference() is None:
                    self._revisions.pop(reference, None)
            self._prune_at = max(_PRUNE_AT, 2 * len(self._revisions))
        self._revisions[weakref.ref(revision)] = None

    def advance(self) -> None:
        """Something changed: what was made of it is stale."""
        for reference in list(self._revisions):
            revision, number = reference(), next(_numbers)
            if reference in self._revisions:
                del self._revisions[reference]
            if revision is not None:
                revision.now = number

    def __len__(self) -> int:
        return len(self._revisions)
