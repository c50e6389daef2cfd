"""The record of faults of a computation: the first id out of range, which raises an error after the computation."""

from __future__ import annotations

from ggplug_cpu.compiler import device_function
from ggplug_cpu.context import atomic_exchange, atomic_store, load_word, pause, store_word

#: Words of the record: a lock; whether there is a fault; the node's position in its graph; the index of the
#: faulty id among the node's ids; that id.
LOCK, NOTED, AT, ORDER, GOT = range(5)
FAULT_WORDS = 5


@device_function
def fault(record: int, position: int, order: int, got: int) -> None:
    """Records that id number ``order`` of a node, ``got``, is out of range.

    The record keeps the fault of the first node, as nodes run one after the other; of that node the fault with the
    smallest ``order``, whichever thread finds it first.
    """
    while atomic_exchange(record + 8 * LOCK, 1) != 0:
        pause()
    earlier = load_word(record + 8 * AT) == position and order < load_word(record + 8 * ORDER)
    if load_word(record + 8 * NOTED) == 0 or earlier:
        store_word(record + 8 * NOTED, 1)
        store_word(record + 8 * AT, position)
        store_word(record + 8 * ORDER, order)
        store_word(record + 8 * GOT, got)
    atomic_store(record + 8 * LOCK, 0)
