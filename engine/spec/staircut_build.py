# SPDX-License-Identifier: MIT OR Apache-2.0
"""A StairCut router over whichever drafters a loaded model has."""

from __future__ import annotations

from collections import Counter

from engine.model.backend import MAX_DRAFT, Backend
from engine.spec.drafter import Drafter
from engine.spec.lookup import LookupDrafter
from engine.spec.lookup_rate import LookupRate
from engine.spec.mtp import MtpChain, MtpTree
from engine.spec.staircut import StairCut
from engine.spec.staircut_heads import BlockHead, Head, StepHead
from engine.spec.staircut_lookup import LookupArm
from engine.spec.staircut_prices import LivePrices


def build_staircut(
    backend: Backend,
    prices: LivePrices,
    *,
    lookup: LookupDrafter | None = None,
    rate: LookupRate | None = None,
    mtp_steps: int = MAX_DRAFT,
    mtp_branches: int = 0,
    block: Drafter | None = None,
    skip: bool = True,
    whole: bool = False,
    counts: Counter[str] | None = None,
) -> StairCut:
    """The router; see `StairCut` for `skip`, `whole` and `counts`.

    Args:
        rate: the learned rate that `lookup` was made with.
        mtp_steps: the most steps of the MTP head, 0 for none; a model without the head has none either.
        mtp_branches: side branches at each of its steps.
        block: a block drafter over `backend`.
    """
    heads: list[Head] = []
    if mtp_steps and backend.config.mtp_layers:
        heads.append(
            StepHead(
                [
                    MtpTree(backend, steps, mtp_branches)
                    if mtp_branches
                    else MtpChain(backend, steps)
                    for steps in range(1, mtp_steps + 1)
                ],
                prices.draft_ms,
            )
        )
    if block is not None:
        heads.append(BlockHead(block, prices.block_ms))
    arm = LookupArm(lookup, rate) if lookup is not None else None
    return StairCut(prices, lookup=arm, heads=heads, skip=skip, whole=whole, counts=counts)
