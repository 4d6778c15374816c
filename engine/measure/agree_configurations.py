# SPDX-License-Identifier: MIT OR Apache-2.0
"""What `rondo agree` holds against plain decoding: drafters honest and hostile, and the ways to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.engine import Engine
from engine.errors import UsageError
from engine.knobs import PREFIX, knob_named, status_of
from engine.measure.adversaries import (
    alternating,
    always_wrong,
    half_right,
    random_trees,
    rejecting,
)
from engine.spec.drafter import Drafter

# Of the drafters that switches turn on, for a configuration that wants one alone.
_OFF = {"MTP_DEPTH": "0", "MTP_TREE": "0", "LOOKUP": "0", "LEN_SWITCH": "0", "TREE_NODES": "0"}
_BLOCK = "the block drafter"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode.

    switches: values it needs, by name without prefix. alone: every other drafter is switched off. offer: what
    the loaded model must have. adversary: makes a drafter from the plain text and the size of the vocabulary.
    """

    name: str
    switches: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    offer: str = ""
    adversary: Callable[[Sequence[int], int], Drafter] | None = None

    def changes(self, engine: Engine) -> dict[str, str]:
        """The switches to set on this engine, with prefix. UsageError says why it cannot run here."""
        if self.offer and self.offer not in engine.offers:
            raise UsageError(f"{self.offer} is not loaded")
        wanted = {}
        for name, value in ((_OFF if self.alone else {}) | dict(self.switches)).items():
            status = status_of(knob_named(PREFIX + name), engine.card.backend, engine.offers)
            if status.available:
                wanted[PREFIX + name] = value
            elif name in self.switches:
                raise UsageError(status.reason)
        return wanted


CONFIGURATIONS = (
    Configuration("served"),
    *(
        Configuration(f"mtp-{depth}", {"MTP_DEPTH": str(depth)}, alone=True)
        for depth in range(1, 5)
    ),
    Configuration("mtp-tree", {"MTP_DEPTH": "4", "MTP_TREE": "3"}, alone=True),
    Configuration("lookup", {"LOOKUP": "1"}, alone=True),
    Configuration("block", alone=True, offer=_BLOCK),
    Configuration("lookup-first", {"LOOKUP": "1", "MTP_DEPTH": "3", "LEN_SWITCH": "0"}),
    Configuration("router", {"LOOKUP": "1", "LEN_SWITCH": "1"}),
    Configuration("wrong", adversary=always_wrong),
    Configuration("half-right", adversary=half_right),
    Configuration("trees", adversary=random_trees),
    Configuration("reject", adversary=rejecting),
    Configuration("alternating", adversary=alternating),
    Configuration("commit-pass", {"COMMIT_IN_VERIFY": "0"}, adversary=random_trees),
    Configuration("eager", {"VERIFY_GRAPH": "0", "DRAFT_GRAPH": "0"}, adversary=random_trees),
    Configuration("threads-1", {"CPU_THREADS": "1"}, adversary=random_trees),
    Configuration("threads-2", {"CPU_THREADS": "2"}, adversary=random_trees),
)


def configurations_named(names: Sequence[str]) -> tuple[Configuration, ...]:
    """The configurations of these names, all for none. UsageError for an unknown one."""
    known = {each.name: each for each in CONFIGURATIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"There is no configuration {unknown[0]!r}.", next_step=f"Known: {', '.join(known)}."
        )
    return tuple(known[name] for name in names) or CONFIGURATIONS
