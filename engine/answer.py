# SPDX-License-Identifier: MIT OR Apache-2.0
"""One answer as it grows: its text as it may be shown, and the sums behind its figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from engine.api import Generation
from engine.load.checkpoint import Checkpoint
from engine.spec.decode import Round
from engine.spec.stopping import StopScanner


class AnswerStream:
    """Turns token ids into shown text: whole characters, nothing past a stop string."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        stops: tuple[str, ...],
        thinking: bool,
        on_text: Callable[[str], None] | None,
    ) -> None:
        self.ids: list[int] = []
        self._detokeniser = checkpoint.tokenizer.detokeniser()
        self._scanner = StopScanner(stops)
        self._parts: list[str] = []
        self._on_text = on_text
        if thinking:
            self._show("<think>\n")

    def add(self, tokens: Sequence[int]) -> bool:
        """Append tokens up to the one that completes a stop string; True when there was one.

        What a round committed behind it is left out, so that `ids` do not depend on the drafter.
        """
        shown = []
        for token in tokens:
            self.ids.append(token)
            shown.append(self._scanner.feed(self._detokeniser.feed(token)))
            if self._scanner.stopped:
                break
        self._show("".join(shown))
        return self._scanner.stopped

    def finish(self) -> None:
        """Show what was held back for a character or a stop string that did not come."""
        if not self._scanner.stopped:
            self._show(self._scanner.feed(self._detokeniser.flush()))
            self._show(self._scanner.flush())

    def split(self) -> tuple[str, str]:
        """(answer, reasoning): the text after and inside the thinking part."""
        text = "".join(self._parts)
        if not text.startswith("<think>"):
            return text, ""
        inside, _, answer = text.removeprefix("<think>").partition("</think>")
        return answer.lstrip("\n"), inside.strip("\n")

    def _show(self, text: str) -> None:
        if text:
            self._parts.append(text)
            if self._on_text:
                self._on_text(text)


class AnswerTally:
    """Sums over the rounds of one answer."""

    def __init__(self) -> None:
        self._round_ms: list[float] = []
        self._tokens = self._drafted = self._accepted = self._bytes = self._written = 0

    def count(self, done: Round, round_ms: float) -> None:
        self._round_ms.append(round_ms)
        self._tokens += len(done.tokens)
        self._drafted += done.drafted
        self._accepted += done.accepted
        self._bytes += done.bytes_read
        self._written += done.bytes_written

    def generation(
        self,
        stream: AnswerStream,
        *,
        prompt_tokens: int,
        kept: int,
        dropped: int,
        finish: str,
        ttft_s: float,
        decode_s: float,
        roof_gbps: float | None,
        roof_place: str,
    ) -> Generation:
        """The answer with its figures; decode rates leave out the first token, which the prefill gave."""
        text, reasoning = stream.split()
        rounds = len(self._round_ms)
        rounds_s = sum(self._round_ms) / 1e3
        return Generation(
            text=text,
            reasoning=reasoning,
            token_ids=tuple(stream.ids),
            prompt_tokens=prompt_tokens,
            kept_prompt_tokens=kept,
            dropped_prompt_tokens=dropped,
            finish_reason=finish,
            rounds=rounds,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            tokens_per_round=self._tokens / rounds if rounds else None,
            acceptance_pct=100.0 * self._accepted / self._drafted if self._drafted else None,
            ttft_ms=ttft_s * 1e3,
            prefill_tps=(prompt_tokens - kept) / ttft_s if ttft_s > 0 and stream.ids else None,
            decode_tps=self._tokens / decode_s if rounds and decode_s > 0 else None,
            round_ms_median=statistics.median(self._round_ms) if rounds else None,
            bytes_per_round=self._bytes // rounds if rounds else None,
            read_gbps=self._bytes / rounds_s / 1e9 if rounds_s > 0 else None,
            roof_gbps=roof_gbps,
            roof_place=roof_place,
            written_bytes_per_round=self._written // rounds if rounds else None,
        )
