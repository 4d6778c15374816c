# SPDX-License-Identifier: MIT OR Apache-2.0
"""Scripted answers that several tests of the window ask for."""

from __future__ import annotations

from engine.fake_script import Script

FAST = Script(answer="A short **answer**.\n", round_ms=3.0)
LONG = Script(repeat=30, round_ms=8.0)
