"""The record of faults of a computation: the first id out of range, which raises an error after the computation."""

from __future__ import annotations

from ggplug_cpu.compiler import Record, device_function
from ggplug_cpu.context import pause
from ggplug_cpu.records import Atomic, Word


class Fault(Record):
    """The record: whether there is a fault, the node's position in its graph, the index of the faulty id among the
    node's ids, and that id."""

    lock = Atomic(0)
    noted = Word(8)
    at = Word(16)
    order = Word(24)
    got = Word(32)
    bytes = 40


@device_function
def fault(record: int, position: int, order: int, got: int) -> None:
    """Records that id number ``order`` of a node, ``got``, is out of range.

    The record keeps the fault of the first node, as nodes run one after the other; of that node the fault with the
    smallest ``order``, whichever thread finds it first.
    """
    kept = Fault(record)
    while kept.lock.exchange(1) != 0:
        pause()
    earlier = kept.at == position and order < kept.order
    if kept.noted == 0 or earlier:
        kept.noted = 1
        kept.at = position
        kept.order = order
        kept.got = got
    kept.lock.set(0)
