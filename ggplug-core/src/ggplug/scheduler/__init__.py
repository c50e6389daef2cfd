"""The scheduler: one graph on several devices.

=================  ===============================================================================================
:mod:`.support`    what the streams can do
:mod:`.assign`     which stream computes which node, and why
:mod:`.split`      runs of nodes on one stream, and what each needs copied from elsewhere
:mod:`.schedule`   all that follows from a graph's structure, groups included; equal graphs share it
:mod:`.ordering`   keeping streams that run on by themselves in order
:mod:`.execution`  a schedule bound to tensors and memory, and how it is run
:mod:`.explain`    all of this in words and tables
:mod:`.scheduler`  :class:`Scheduler`
=================  ===============================================================================================
"""

from ggplug.scheduler.assign import Policy, Reason
from ggplug.scheduler.execution import EvalCallback
from ggplug.scheduler.explain import CopyRow, Explanation, GroupRow, MissedRow, Row, SplitRow
from ggplug.scheduler.scheduler import Scheduler

__all__ = [
    "CopyRow",
    "EvalCallback",
    "Explanation",
    "GroupRow",
    "MissedRow",
    "Policy",
    "Reason",
    "Row",
    "Scheduler",
    "SplitRow",
]
