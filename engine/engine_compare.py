# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a loaded engine offers for measurements that need the same work twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.api_compare import CompareReport, CompareRequest

if TYPE_CHECKING:
    from engine.spec.drafters import Drafters


class EngineCompares:
    """Mixed into `engine.engine.Engine`."""

    _drafters: Drafters

    def compare(
        self, base: Mapping[str, str], candidate: Mapping[str, str], **options: Any
    ) -> CompareReport:
        """An A/B of two sets of switches; `options` are further fields of `CompareRequest`.

        Blocks until there is a verdict; nothing is stored. Raises UsageError for switches or options that
        cannot be compared on a loaded model, CompareStopped for any other error.
        """
        from engine.measure.ab_session import compare_on

        request = CompareRequest(base=base, candidate=candidate, **options)
        return compare_on(self, request)

    def freeze_learning(self, *, frozen: bool = True) -> None:
        """Hold what drafters learn across answers, so that equal texts get equal drafts; or let it go on."""
        self._drafters.freeze(frozen=frozen)
