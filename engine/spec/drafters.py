# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drafter that the switches ask for, kept as long as the model: what it learned outlasts a text."""

from __future__ import annotations

from collections import OrderedDict

from engine.knobs import KnobSet
from engine.model.backend import Backend
from engine.spec.drafter import Drafter
from engine.spec.mtp import MtpChain, MtpTree

_SWITCHES = ("MTP_DEPTH", "MTP_TREE")  # that say which drafter it is
_KEPT = 8  # an A/B goes back and forth between settings


class Drafters:
    """Drafters over one backend, made on first use, by the values of the switches that shape them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: OrderedDict[tuple[str, ...], Drafter | None] = OrderedDict()

    def of(self, knobs: KnobSet) -> Drafter | None:
        """The drafter of these values, None where every source is switched off or missing."""
        key = tuple(knobs.raw(name)[0] for name in _SWITCHES)
        if key not in self._kept:
            self._kept[key] = build_drafter(self._backend, knobs)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def build_drafter(backend: Backend, knobs: KnobSet) -> Drafter | None:
    """A new drafter over `backend`; see `Drafters.of`."""
    depth, width = knobs.number("MTP_DEPTH"), knobs.number("MTP_TREE")
    if not depth or not backend.config.mtp_layers:
        return None
    return MtpTree(backend, depth, width) if width else MtpChain(backend, depth)
