# SPDX-License-Identifier: MIT OR Apache-2.0
"""How numbers are written, and the readout under an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app import format as fmt
from app.chat.readout import NBSP, details, readout
from app.live.now import now
from engine.api import Generation, LoadProgress, Snapshot
from engine.numbers import SPACE

DONE = Generation(
    text="x", reasoning="", token_ids=tuple(range(212)), prompt_tokens=31, dropped_prompt_tokens=0,
    finish_reason="stop", rounds=68, drafted_tokens=204, accepted_tokens=144, tokens_per_round=212 / 68,
    acceptance_pct=100 * 144 / 204, ttft_ms=9.04, prefill_tps=3411.6, decode_tps=3412.3,
    round_ms_median=0.913, bytes_per_round=16_000_000, read_gbps=17.5, roof_gbps=41.2,
)  # fmt: skip
SNAPSHOT = Snapshot("ready", 1.0, 1, 3000, 1024, 212, False, 500, 4096, 10**9, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0.913, "0.913"),
        (9.13, "9.13"),
        (91.34, "91.3"),
        (9130.4, "9 130"),
    ],
)
def test_significant(value: float | None, text: str) -> None:
    assert fmt.significant(value) == text.replace(" ", SPACE)


def test_units() -> None:
    assert fmt.byte_size(16_400_000) == "16.4 MB"
    assert fmt.byte_size(12) == "12 B"
    assert fmt.of_bytes(1.2e9, 3.41e9) == "1.20 of 3.41 GB"
    assert fmt.duration(0.42) == "0.4 s"
    assert fmt.duration(185) == "3 min 5 s"
    assert fmt.milliseconds(1234) == "1.23 s"
    assert fmt.parameters(27_000_000_000) == "27.0 B"
    assert fmt.percent(None) == "—"


def test_readout() -> None:
    assert readout(DONE).replace(SPACE, " ").replace(NBSP, " ") == (
        "212 tok · 3 412 tok/s · 3.12 tok/round · acceptance 71 % · first token 9.04 ms · "
        "stopped: end of answer"
    )
    assert "read: 17.5 GB/s, 42 % of roof 41.2" in details(DONE)
    cached = replace(DONE, roof_place="cache", read_gbps=0.2)
    assert "read: 0.200 GB/s, 0.5 % of cache roof 41.2" in details(cached)
    assert details(replace(DONE, roof_gbps=None)).endswith("read: 17.5 GB/s")
    assert "not read again" not in details(DONE)
    resumed = replace(DONE, prompt_tokens=1234, kept_prompt_tokens=1200)
    first = details(resumed).replace(SPACE, " ").splitlines()[0]
    assert first == "prompt: 1 234 tok, 1 200 of them not read again"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("length", "token limit reached"),
        ("context", "the context is full"),
        ("cancelled", "by you"),
    ],
)
def test_every_ending_has_words(reason: str, words: str) -> None:
    assert readout(replace(DONE, finish_reason=reason)).endswith(f"stopped: {words}")


def test_what_was_not_measured_is_left_out() -> None:
    bare = replace(
        DONE, token_ids=(), rounds=0, tokens_per_round=None, acceptance_pct=None, decode_tps=None
    )
    assert readout(bare) == f"0{NBSP}tok · stopped: end of answer"
    assert f"no{NBSP}speculation" in readout(replace(DONE, acceptance_pct=None), speculated=False)


def test_the_now_sentence() -> None:
    reading = now(replace(SNAPSHOT, state="prefilling"), None, None, 988.0)
    assert reading.sentence == "reading the prompt"
    assert reading.detail.replace(SPACE, " ") == "1 024 of 3 000 tok (34 %) · 2.0 s left"
    assert reading.share == pytest.approx(1024 / 3000)
    loading = now(
        replace(SNAPSHOT, state="loading"),
        LoadProgress("reading weights", 10**9, 4 * 10**9),
        5e8,
        None,
    )
    assert loading.detail == "1.00 of 4.00 GB · 0.50 GB/s · 6.0 s left"
    thinking = now(replace(SNAPSHOT, state="writing", thinking=True), None, None, None)
    assert (thinking.sentence, thinking.detail) == ("thinking", "212 tok so far")
    silent = now(replace(SNAPSHOT, state="writing"), None, None, None, 9.4)
    assert "no sign of life for 9 s" in silent.detail
    assert silent.sentence == "was writing"
