# SPDX-License-Identifier: MIT OR Apache-2.0
"""The line of figures under an answer, and how the answer ended in words. No Qt."""

from __future__ import annotations

from app.format import grouped, milliseconds, of_roof, percent, significant
from engine.api import Generation, roof_name

NBSP = "\u00a0"
ENDINGS = {
    "stop": "end of answer",
    "length": "token limit reached",
    "context": "the context is full",
    "cancelled": "by you",
}


def readout(generation: Generation, speculated: bool = True) -> str:
    """E.g. "212 tok · 3 412 tok/s · 3.10 tok/round · acceptance 68 % · first token 9.0 ms · stopped: ..."."""
    tokens = round((generation.tokens_per_round or 0) * generation.rounds)
    tokens = len(generation.token_ids) or tokens
    parts = [f"{grouped(tokens)} tok"]
    if generation.decode_tps is not None:
        parts.append(f"{_rate(generation.decode_tps)} tok/s")
    if generation.tokens_per_round is not None:
        parts.append(f"{generation.tokens_per_round:.2f} tok/round")
    if generation.acceptance_pct is not None:
        parts.append(f"acceptance {percent(generation.acceptance_pct)}")
    elif not speculated:
        parts.append("no speculation")
    if tokens:
        parts.append(f"first token {milliseconds(generation.ttft_ms)}")
    if generation.dropped_prompt_tokens:
        parts.append(f"{grouped(generation.dropped_prompt_tokens)} oldest tokens dropped")
    # A line that wraps keeps every number with its unit.
    parts = [part.replace(" ", NBSP) for part in parts]
    parts.append(f"stopped: {ENDINGS.get(generation.finish_reason, generation.finish_reason)}")
    return " · ".join(parts)


def details(generation: Generation) -> str:
    """The figures that do not fit the line, one a row, for its tool tip."""
    rows = [
        f"prompt: {grouped(generation.prompt_tokens)} tok{_kept(generation)}",
        f"rounds: {grouped(generation.rounds)}",
        f"drafted: {grouped(generation.drafted_tokens)} tok, accepted: {grouped(generation.accepted_tokens)}",
    ]
    if generation.prefill_tps is not None:
        rows.append(f"prefill: {_rate(generation.prefill_tps)} tok/s")
    if generation.round_ms_median is not None:
        rows.append(f"round: {milliseconds(generation.round_ms_median)} (median)")
    if generation.read_gbps is not None:
        rows.append(f"read: {significant(generation.read_gbps)} GB/s")
        if generation.roof_gbps:
            name = roof_name(generation.roof_place)
            share = of_roof(generation.read_gbps, generation.roof_gbps, name)
            rows[-1] += f", {share}"
    return "\n".join(rows)


def _kept(generation: Generation) -> str:
    kept = generation.kept_prompt_tokens
    return f", {grouped(kept)} of them not read again" if kept else ""


def _rate(value: float) -> str:
    return grouped(value) if value >= 100 else significant(value)
