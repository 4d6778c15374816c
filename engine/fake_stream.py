# SPDX-License-Identifier: MIT OR Apache-2.0
"""One scripted answer: its text as it grows, and its figures at the end."""

from __future__ import annotations

import re
from bisect import bisect_right

from engine.api import Generation
from engine.fake_script import ROOF_GBPS


class TextStream:
    """The characters of one answer; appended by the engine thread, read from any position."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self._end = 0

    def append(self, piece: str) -> None:
        self._pieces.append(piece)
        self._starts.append(self._end)
        self._end += len(piece)

    def since(self, cursor: int) -> tuple[str, int]:
        count = len(self._starts)  # the piece is there before its start is
        if not count or cursor >= self._starts[count - 1] + len(self._pieces[count - 1]):
            return "", cursor
        first = max(0, bisect_right(self._starts, cursor, 0, count) - 1)
        text = "".join(self._pieces[first:count])[cursor - self._starts[first] :]
        return text, cursor + len(text)

    def text(self) -> str:
        return "".join(self._pieces)


def pieces_of(text: str) -> list[str]:
    """Token-like pieces of up to six characters."""
    return re.findall(r"\s*\S{1,6}|\s+", text)


def generation_of(
    stream: TextStream,
    reason: str,
    prompt_tokens: int,
    rows: list[tuple[int, int, int, float]],
    ttft_ms: float,
    prefill_tps: float | None,
) -> Generation:
    """The answer as it ends; `rows` are its rounds: tokens, drafted, accepted, milliseconds."""
    raw = stream.text()
    reasoning, mark, text = raw.partition("</think>")
    if not raw.startswith("<think>"):
        reasoning, text = "", raw
    elif not mark:
        text = ""
    tokens, drafted, accepted, total_ms = (
        (sum(column) for column in zip(*rows, strict=True)) if rows else (0, 0, 0, 0.0)
    )
    return Generation(
        text=text.lstrip("\n"),
        reasoning=reasoning.removeprefix("<think>").strip("\n"),
        token_ids=(),
        prompt_tokens=prompt_tokens,
        dropped_prompt_tokens=0,
        finish_reason=reason,
        rounds=len(rows),
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        tokens_per_round=tokens / len(rows) if rows else None,
        acceptance_pct=100 * accepted / drafted if drafted else None,
        ttft_ms=ttft_ms,
        prefill_tps=prefill_tps or None,
        decode_tps=tokens / total_ms * 1e3 if tokens > 1 else None,
        round_ms_median=sorted(row[3] for row in rows)[len(rows) // 2] if rows else None,
        bytes_per_round=None,
        read_gbps=None,
        roof_gbps=ROOF_GBPS,
    )
