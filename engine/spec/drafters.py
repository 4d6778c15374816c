# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drafter that the switches ask for, kept as long as the model: what it learned outlasts a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from engine.knobs import KnobSet
from engine.model.backend import Backend
from engine.spec.choose_drafter import SWITCHES, choose_drafter
from engine.spec.drafter import Drafter, Learns
from engine.spec.lookup_memory import Memory
from engine.spec.price_store import live_prices, unmeasured_prices
from engine.spec.staircut_prices import LivePrices

_KEPT = 8  # an A/B goes back and forth between settings


class Drafters:
    """Drafters over one backend, made on first use, by the values of the switches that shape them."""

    def __init__(self, backend: Backend, memory: Memory) -> None:
        self._backend = backend
        self._memory = memory
        self._kept: OrderedDict[tuple[str, ...], Drafter | None] = OrderedDict()
        self._frozen = False
        self._prices: LivePrices | None = None

    def of(self, knobs: KnobSet) -> Drafter | None:
        """The drafter of these values, None where every source is switched off or missing."""
        key = tuple(knobs.raw(name)[0] for name in SWITCHES)
        if key not in self._kept:
            made = self._kept[key] = choose_drafter(
                knobs, self._backend, self._memory, self._live_prices
            )
            _hold(made, frozen=self._frozen)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def prepare(self, knobs: KnobSet, *, on_error: Callable[[], None] = lambda: None) -> None:
        """Time a few rounds where the router is on and has no prices yet; what the sequence holds is lost.

        Raises UsageError, behind `on_error`, for a QWEN38_STAIR_TABLES file that is no table.
        """
        if not knobs.flag("LEN_SWITCH") or self._prices is not None:
            return
        try:
            self._prices = live_prices(self._backend, knobs.path("STAIR_TABLES") or "")
        except BaseException:
            on_error()
            raise

    def _live_prices(self) -> LivePrices:
        """The prices that were prepared; before that, while a text is under way, some that are learned."""
        if self._prices is None:
            self._prices = unmeasured_prices()
        return self._prices

    def freeze(self, *, frozen: bool = True) -> None:
        """Hold what outlives a text, in every drafter and in what they share, or let it be learned again."""
        self._frozen = frozen
        self._memory.rate.learning = not frozen
        for drafter in self._kept.values():
            _hold(drafter, frozen=frozen)


def _hold(drafter: Drafter | None, *, frozen: bool) -> None:
    if isinstance(drafter, Learns):
        drafter.freeze(frozen=frozen)
