# SPDX-License-Identifier: MIT OR Apache-2.0
"""The "Now" sentence: one glyph and what the engine does at this moment, in words. No Qt."""

from __future__ import annotations

from dataclasses import dataclass

from app.format import duration, grouped, of_bytes
from engine.api import LoadProgress, Snapshot

GLYPHS = {
    "empty": "○",
    "loading": "◔",
    "ready": "●",
    "prefilling": "◑",
    "writing": "▶",
    "comparing": "⇄",
    "closing": "◌",
    "closed": "◌",
}
WORDS = {
    "empty": "no model",
    "loading": "loading",
    "ready": "ready",
    "prefilling": "reading",
    "writing": "writing",
    "comparing": "comparing",
    "closing": "closing",
    "closed": "closed",
}


@dataclass(frozen=True, slots=True)
class Now:
    """A glyph, a sentence, a second line (may be empty) and how far along, 0 to 1 (None: no measure)."""

    glyph: str
    sentence: str
    detail: str = ""
    share: float | None = None


def now(
    snapshot: Snapshot,
    progress: LoadProgress | None,
    load_rate_bps: float | None,
    prefill_tps: float | None,
    silence_s: float = 0.0,
) -> Now:
    """What the engine does, from its snapshot and what the console measured.

    `silence_s` is how long it has given no sign of life, 0 while that is no cause for worry.
    """
    if silence_s > 0:
        said = now(snapshot, progress, load_rate_bps, prefill_tps)
        detail = f"no sign of life for {silence_s:.0f} s; Esc asks it to stop"
        return Now("▲", f"was {said.sentence}", detail, said.share)
    glyph = GLYPHS.get(snapshot.state, "○")
    match snapshot.state:
        case "loading":
            return _loading(glyph, progress, load_rate_bps)
        case "prefilling":
            return _prefilling(glyph, snapshot, prefill_tps)
        case "writing":
            verb = "thinking" if snapshot.thinking else "writing"
            return Now(glyph, verb, f"{grouped(snapshot.tokens_out)} tok so far")
        case "comparing":
            return Now(glyph, "comparing", "an A/B is being timed; Esc stops it")
        case "ready":
            return Now(glyph, "ready", "waiting for a message")
        case "empty":
            return Now(glyph, "no model loaded", "Ctrl+O opens a model folder")
    return Now(glyph, WORDS.get(snapshot.state, snapshot.state))


def _loading(glyph: str, progress: LoadProgress | None, rate_bps: float | None) -> Now:
    if progress is None or progress.total_bytes <= 0:
        return Now(glyph, progress.stage if progress else "loading the model")
    done, total = progress.done_bytes, progress.total_bytes
    detail = of_bytes(done, total)
    if rate_bps:
        left = duration((total - done) / rate_bps)
        detail += f" · {rate_bps / 1e9:.2f} GB/s · {left} left"
    return Now(glyph, progress.stage, detail, min(1.0, done / total))


def _prefilling(glyph: str, snapshot: Snapshot, prefill_tps: float | None) -> Now:
    total, done = snapshot.prompt_tokens, snapshot.prompt_done
    if total <= 0:
        return Now(glyph, "reading the prompt")
    detail = f"{grouped(done)} of {grouped(total)} tok ({100 * done // total} %)"
    if prefill_tps and done < total:
        detail += f" · {duration((total - done) / prefill_tps)} left"
    return Now(glyph, "reading the prompt", detail, done / total)
