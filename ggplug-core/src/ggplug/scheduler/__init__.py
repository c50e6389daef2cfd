"""The scheduler: one graph on several devices.

=================  ===============================================================================================
:mod:`.support`    what the streams can do
:mod:`.assign`     which stream computes which node, and why
:mod:`.split`      sequences of nodes on one stream, and the tensors that are copied to it for them
:mod:`.schedule`   all decisions that depend on a graph's structure only; equal graphs share it
:mod:`.ordering`   keeps the order of accesses by asynchronous streams
:mod:`.under_way`  the order of computations that are under way at the same time
:mod:`.execution`  a schedule bound to tensors and memory, and how it is run
:mod:`.explain`    the decisions as text and tables
:mod:`.scheduler`  :class:`Scheduler`
:mod:`.pipeline`   :class:`Pipeline`, several computations at the same time
:mod:`.fit`        which placement the memory of devices allows, and what each device will hold
:mod:`.feed`       :class:`Feed`, a graph that is computed again and again with other inputs
=================  ===============================================================================================
"""

from ggplug.scheduler.assign import Policy, Reason
from ggplug.scheduler.execution import EvalCallback
from ggplug.scheduler.explain import CopyRow, Explanation, GroupRow, MissedRow, Row, SplitRow
from ggplug.scheduler.feed import Feed
from ggplug.scheduler.fit import GraphFit, Holding, fit_placement
from ggplug.scheduler.pipeline import Pipeline
from ggplug.scheduler.scheduler import Scheduler

__all__ = [
    "CopyRow",
    "EvalCallback",
    "Explanation",
    "Feed",
    "GraphFit",
    "GroupRow",
    "Holding",
    "MissedRow",
    "Pipeline",
    "Policy",
    "Reason",
    "Row",
    "Scheduler",
    "SplitRow",
    "fit_placement",
]
