"""Matrices transposed in registers."""

from __future__ import annotations

from .values import Value


def transposed(rows: list[Value]) -> list[Value]:
    """The columns of a matrix given by its rows: ``out[j]`` has lane j of every row.  Counts are powers of two."""
    n, lanes = len(rows), rows[0].count
    if lanes > n:
        parts = [transposed([row.part(start, n) for row in rows]) for start in range(0, lanes, n)]
        return [column for part in parts for column in part]
    # Interleaving the two halves of the list moves the topmost bit of the row's number into the lane's number.
    while rows[0].count < n:
        half, count = len(rows) // 2, rows[0].count
        order = [lane + count * which for lane in range(count) for which in range(2)]
        rows = [a.shuffle(order, b) for a, b in zip(rows[:half], rows[half:], strict=True)]
    # From here on each step moves the topmost bit of the lane's number to the order of the list.
    for _ in range(lanes.bit_length() - 1):
        half = len(rows) // 2
        low = [lane + n * which for lane in range(n // 2) for which in range(2)]
        high = [lane + n // 2 for lane in low]
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [a.shuffle(order, b) for a, b in pairs for order in (low, high)]
    return rows
