# SPDX-License-Identifier: MIT OR Apache-2.0
"""Moments as records, tables and CSV hold them: ISO 8601, UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_utc(moment: datetime | None = None) -> str:
    """ "2026-01-31T09:05:00Z": a moment that is in UTC, or now."""
    return f"{moment or datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
