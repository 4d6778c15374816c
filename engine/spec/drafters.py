# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drafter that the switches ask for, kept as long as the model: what it learned outlasts a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from engine.knobs import KnobSet
from engine.model.backend import Backend
from engine.spec.choose_drafter import SWITCHES, choose_drafter
from engine.spec.default_prices import unmeasured_prices
from engine.spec.drafter import Drafter, Learns
from engine.spec.lookup_memory import Memory
from engine.spec.staircut import StairCut
from engine.spec.staircut_prices import LivePrices

_KEPT = 8  # an A/B goes back and forth between settings


class Drafters:
    """Drafters over one backend, made on first use, by the values of the switches that shape them.

    `measure(knobs)` gives the prices that a router starts from; what the backend's sequence holds is lost.
    """

    def __init__(
        self,
        backend: Backend,
        memory: Memory,
        measure: Callable[[KnobSet], LivePrices] = lambda knobs: unmeasured_prices(),
    ) -> None:
        self._backend = backend
        self._memory = memory
        self._measure = measure
        self._kept: OrderedDict[tuple[str, ...], Drafter | None] = OrderedDict()
        self._frozen = False
        self._prices: LivePrices | None = None
        self._measured = False

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

    def prepare(self, knobs: KnobSet) -> bool:
        """Before a text: measure prices where the router is on and has none; what the sequence holds is lost.

        Whether it measured.

        A router that was switched on in the middle of a text, and began with prices of no measurement, is made
        anew. Raises what `measure` does.
        """
        if not knobs.flag("LEN_SWITCH") or self._measured:
            return False
        self._prices = self._measure(knobs)
        self._measured = True
        for key in [key for key, made in self._kept.items() if isinstance(made, StairCut)]:
            del self._kept[key]
        return True

    def price_anew(self) -> None:
        """Passes take another time from now on: measure again before the next text."""
        self._measured = False

    def _live_prices(self) -> LivePrices:
        """The measured prices; where a text is under way and there are none yet, some that its rounds teach."""
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
