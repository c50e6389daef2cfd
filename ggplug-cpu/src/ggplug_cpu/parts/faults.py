"""The record of what went wrong in a computation: an id that is out of range, to be raised after it."""

from __future__ import annotations

from ggplug_cpu.compiler import device_function
from ggplug_cpu.context import atomic_exchange, atomic_store, load_word, pause, store_word

#: Words of the record: a lock; whether there is a fault; the node's position in its graph; where among the node's ids
#: the offending one stands; that id.
LOCK, NOTED, AT, ORDER, GOT = range(5)
FAULT_WORDS = 5


@device_function
def fault(record, position, order, got):  # type: ignore[no-untyped-def]
    """Note that id number ``order`` of a node, ``got``, is out of range, to be raised after the computation.

    The first node's is kept, for nodes run one after the other; of these the one with the smallest ``order``, whichever
    thread meets it first.
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
