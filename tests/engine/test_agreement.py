# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gate on speculation: a cancel is no divergence."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from engine import Engine
from engine.api import GenerateRequest, Generation
from engine.errors import Cancelled
from engine.measure.agreement import agree


def test_a_cancel_in_the_last_answer_is_not_taken_for_a_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path)
    cancel = threading.Event()
    honest = Engine.generate

    def cancelled_when_plain(
        self: Engine, request: GenerateRequest, **options: object
    ) -> Generation:
        if not request.speculate:
            cancel.set()
        return honest(self, request, **options)

    monkeypatch.setattr(Engine, "generate", cancelled_when_plain)
    knobs = {"QWEN38_CPU_ISA": "reference"}
    with (
        Engine.open(tmp_path, profile=None, knobs=knobs, threads=1) as engine,
        pytest.raises(Cancelled),
    ):
        agree(engine, ["the pace"], tokens=8, cancel=cancel)
