# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stop strings in streamed text: what may be shown now, what must wait, where to cut."""

from __future__ import annotations


class StopScanner:
    """Lets text through up to the first stop string, holding back what could become one.

    The first one is that which is complete first, as in a stream of single characters: what is shown does not
    depend on how the text was cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that is safe to show after `text` arrived; nothing once a stop string was met."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        self._held += text
        met = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if met:
            self.stopped = True
            shown, self._held = self._held[: min(met)[1]], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text held back, when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` but is shorter than it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
