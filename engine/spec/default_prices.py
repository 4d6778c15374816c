# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prices of verify passes where nothing was measured: those of the demo model, for their proportions."""

from __future__ import annotations

from dataclasses import replace

from engine.paths import shipped_prices
from engine.spec.prices import PriceTable, read_prices
from engine.spec.staircut_prices import LivePrices


def default_prices() -> PriceTable:
    """The shipped table: of the demo model on the machine it names, elsewhere good for its proportions only."""
    path = shipped_prices()
    table = read_prices(path, source="")
    machine = table.provenance.get("machine", "another machine")
    return replace(table, source=f"shipped default: proportions of the demo model on {machine}")


def unmeasured_prices() -> LivePrices:
    """Prices to start from while a text is under way, when nothing can be timed: learned as rounds run."""
    return LivePrices(default_prices(), learns_rows=True, relative=True)
