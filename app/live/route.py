# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the router chose in the last rounds, in two short lines. No Qt."""

from __future__ import annotations

from app.format import NONE
from app.live.series import Figures


def route_words(found: Figures) -> tuple[str, str]:
    """(what it chose and how much of the draft was verified, what it expected and what came)."""
    routed = found.routed
    if not found.rounds:
        return f"Router: {NONE}", ""
    if routed is None:
        return "Router: not available: it chose no round", "QWEN38_LEN_SWITCH=1 turns it on"
    offered = routed.nodes + routed.left_out
    return (
        f"Router: {routed.most} in {routed.share_pct:.0f} % · {routed.nodes:.1f} of {offered:.1f} nodes",
        f"expected {routed.expected_tokens:.2f} tok, got {routed.tokens:.2f} · "
        f"{routed.expected_gain:.2f} times plain",
    )
