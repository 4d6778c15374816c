# SPDX-License-Identifier: MIT OR Apache-2.0
"""Per-operation times as a table: shares of the rounds, rates, and what no operation accounts for."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api import KernelRow, KernelTable
from engine.model.backend import OperationTime


def kernel_table(
    times: Sequence[OperationTime] | str, rounds: int, rounds_ms: float
) -> KernelTable:
    """The table of `rounds` rounds that took `rounds_ms` together; `times` may say why there are none."""
    if isinstance(times, str):
        return KernelTable((), rounds, 0.0, 0.0, times)
    if not rounds:
        return KernelTable((), 0, 0.0, 0.0, "no round has run yet", waits=True)
    if not times:
        nothing = "no operation of a round was timed since the last reset"
        return KernelTable((), rounds, 0.0, 0.0, nothing, waits=True)
    rows = [
        KernelRow(
            name=each.name,
            calls=each.calls,
            total_ms=each.total_ms,
            share_pct=100.0 * each.total_ms / rounds_ms,
            read_gbps=each.bytes_read / each.total_ms / 1e6 if each.total_ms else None,
            gflops=each.flops / each.total_ms / 1e6 if each.total_ms else None,
        )
        for each in times
    ]
    rows.sort(key=lambda row: -row.total_ms)
    accounted_ms = sum(row.total_ms for row in rows)
    return KernelTable(tuple(rows), rounds, rounds_ms / rounds, (rounds_ms - accounted_ms) / rounds)
