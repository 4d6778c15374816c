# SPDX-License-Identifier: MIT OR Apache-2.0
"""Round records turned into the figures and curves of the live panel. No Qt, no clock of its own.

A rate is always sum over sum: tokens over the time of the rounds that committed them, never a mean of rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.api import DRAFTERS, ROUND_DTYPE, ROUTES

WINDOW_S = 2.0
SPAN_S = 300.0
BIN_S = 0.5
PARTS = ("draft", "verify", "sample", "commit", "other")


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates over the last rounds; None where nothing was measured. `parts_ms` follows PARTS, a mean."""

    decode_tps: float | None = None
    tokens_per_round: float | None = None
    round_ms: float | None = None
    acceptance_pct: float | None = None
    drafted_per_round: float = 0.0
    accepted_per_round: float = 0.0
    read_gbps: float | None = None
    parts_ms: tuple[float, ...] | None = None
    rounds: int = 0
    drafters: tuple[int, ...] = (0,) * len(DRAFTERS)  # rounds of each, in the order of DRAFTERS
    rows_per_round: float = 0.0  # of a verify pass, the anchor included
    routed: Routed | None = None  # of the rounds that a router chose, None without such


@dataclass(frozen=True, slots=True)
class Routed:
    """What a router chose in some rounds, all of them means a round but for `most`.

    most: what it chose most often (one of ROUTES), in share_pct of the rounds. nodes of left_out + nodes
    drafted were verified. expected_gain: the rate it expected over that of a round without a draft.
    """

    most: str
    share_pct: float
    nodes: float
    left_out: float
    expected_tokens: float
    tokens: float
    expected_gain: float


def figures(rows: np.ndarray) -> Figures:
    """The figures of some round records (dtype ROUND_DTYPE)."""
    if not len(rows):
        return Figures()
    total_ms = float(rows["round_ms"].sum(dtype=np.float64))
    tokens = int(rows["committed_tokens"].sum())
    drafted = int(rows["drafted_tokens"].sum())
    accepted = int(rows["accepted_tokens"].sum())
    count = len(rows)
    named = [float(rows[f"{part}_ms"].mean(dtype=np.float64)) for part in PARTS[:-1]]
    return Figures(
        decode_tps=tokens / total_ms * 1e3 if total_ms > 0 else None,
        tokens_per_round=tokens / count,
        round_ms=total_ms / count,
        acceptance_pct=100 * accepted / drafted if drafted else None,
        drafted_per_round=drafted / count,
        accepted_per_round=accepted / count,
        read_gbps=int(rows["bytes_read"].sum()) / total_ms / 1e6 if total_ms > 0 else None,
        parts_ms=(*named, max(0.0, total_ms / count - sum(named))),
        rounds=count,
        drafters=tuple(
            np.bincount(rows["drafter"], minlength=len(DRAFTERS))[: len(DRAFTERS)].tolist()
        ),
        rows_per_round=float(rows["rows"].mean(dtype=np.float64)),
        routed=_routed(rows[rows["route"] > 0]),
    )


def _routed(rows: np.ndarray) -> Routed | None:
    if not len(rows):
        return None
    counts = np.bincount(rows["route"], minlength=len(ROUTES))
    most = int(counts.argmax())
    fields = ("drafted_tokens", "left_out_nodes", "expected_tokens", "committed_tokens")
    means = [float(rows[name].mean(dtype=np.float64)) for name in (*fields, "expected_gain")]
    return Routed(ROUTES[most], 100 * int(counts[most]) / len(rows), *means)


class RoundSeries:
    """The last rounds for the figures, and bins of BIN_S seconds over SPAN_S for the curves."""

    def __init__(self) -> None:
        self._recent = np.zeros(0, ROUND_DTYPE)
        size = int(SPAN_S / BIN_S)
        self._size = size
        self._tokens = np.zeros(size)
        self._bytes = np.zeros(size)
        self._busy_s = np.zeros(size)
        self._last_bin: int | None = None
        self.lost = 0

    def add(self, rows: np.ndarray, lost: int = 0) -> None:
        """Take round records in order of time."""
        self.lost += lost
        if not len(rows):
            return
        newest_s = float(rows["end_s"][-1])
        recent = np.concatenate([self._recent, rows])
        self._recent = recent[recent["end_s"] > newest_s - WINDOW_S]
        self._advance(int(newest_s // BIN_S))
        ends = rows["end_s"]
        starts = ends - rows["round_ms"] / 1e3
        first, last = (starts // BIN_S).astype(np.int64), (ends // BIN_S).astype(np.int64)
        whole = first == last
        self._put(last[whole], rows[whole], 1.0)
        for at in np.nonzero(~whole)[0]:
            # A round longer than what is left of its bin is spread over the bins it spans.
            span = np.arange(first[at], last[at] + 1)
            edges = np.clip(np.append(span, span[-1] + 1) * BIN_S, starts[at], ends[at])
            shares = np.diff(edges) / max(ends[at] - starts[at], 1e-9)
            for index, share in zip(span, shares, strict=True):
                self._put(np.array([index]), rows[at : at + 1], float(share))

    def figures(self) -> Figures:
        """Over the rounds of the last WINDOW_S seconds before the newest round."""
        return figures(self._recent)

    def is_filling(self, now_s: float) -> bool:
        """Whether the newest round ended in the bin that is still filled, which `curves` leaves out."""
        return self._last_bin is not None and self._last_bin >= int(now_s // BIN_S)

    def curves(self, now_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(seconds before now, tok/s, GB/s), each of SPAN_S / BIN_S values; NaN where no round ran.

        The bin that is still filling is left out.
        """
        ages_s = (np.arange(self._size) - self._size) * BIN_S
        if self._last_bin is None:
            nothing = np.full(self._size, np.nan)
            return ages_s, nothing, nothing
        now_bin = int(now_s // BIN_S)
        wanted = np.arange(now_bin - self._size, now_bin)
        known = (wanted <= self._last_bin) & (wanted > self._last_bin - self._size)
        slots = wanted % self._size
        busy_s = np.where(known, self._busy_s[slots], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            tps = np.where(busy_s > 0, self._tokens[slots] / busy_s, np.nan)
            gbps = np.where(busy_s > 0, self._bytes[slots] / busy_s / 1e9, np.nan)
        return ages_s, tps, gbps

    def _advance(self, newest_bin: int) -> None:
        if self._last_bin is None:
            self._last_bin = newest_bin
            return
        fresh = np.arange(self._last_bin + 1, newest_bin + 1)[-self._size :] % self._size
        for column in (self._tokens, self._bytes, self._busy_s):
            column[fresh] = 0.0
        self._last_bin = max(self._last_bin, newest_bin)

    def _put(self, bins: np.ndarray, rows: np.ndarray, share: float) -> None:
        kept = bins > (self._last_bin or 0) - self._size
        slots = bins[kept] % self._size
        rows = rows[kept]
        np.add.at(self._tokens, slots, rows["committed_tokens"] * share)
        np.add.at(self._bytes, slots, rows["bytes_read"] * share)
        np.add.at(self._busy_s, slots, rows["round_ms"] / 1e3 * share)


class PrefillRate:
    """Tokens a second while a prompt is read, from (time, tokens done) pairs of the last two seconds."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []
        self._request_id = 0
        self.rate_tps: float | None = None

    def add(self, request_id: int, now_s: float, done: int) -> None:
        if request_id != self._request_id:
            self._request_id, self._marks, self.rate_tps = request_id, [], None
        if self._marks and done == self._marks[-1][1]:
            return
        self._marks = [mark for mark in self._marks if now_s - mark[0] <= WINDOW_S]
        self._marks.append((now_s, done))
        (begin_s, begin), (end_s, end) = self._marks[0], self._marks[-1]
        if end_s > begin_s:
            self.rate_tps = (end - begin) / (end_s - begin_s)
