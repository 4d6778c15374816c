# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which drafter the switches ask for. Another drafter, or a router over several, is added here."""

from __future__ import annotations

from collections.abc import Callable

from engine.knobs import KnobSet
from engine.model.backend import Backend
from engine.spec.block import WIDE, BlockDrafter
from engine.spec.default_prices import unmeasured_prices
from engine.spec.drafter import Drafter
from engine.spec.lookup import LookupDrafter, LookupOptions
from engine.spec.lookup_first import LookupFirst
from engine.spec.lookup_memory import Memory
from engine.spec.lookup_rate import LookupRate
from engine.spec.mtp import MtpChain, MtpTree
from engine.spec.staircut import StairCut
from engine.spec.staircut_build import build_staircut
from engine.spec.staircut_prices import LivePrices

OFF = "off"
# The switches that shape a drafter: while none of them changes, a drafter that was made can be kept.
SWITCHES = (
    "MTP_DEPTH", "MTP_TREE", "LOOKUP", "DEEP", "DEEP_AFTER", "DFLASH2", "DF2_TEMP", "DF2_TREE_MODE",
    "LEN_SWITCH", "LEN_MODE", "STAIR_SKIP",
)  # fmt: skip


def choose_drafter(
    knobs: KnobSet,
    backend: Backend,
    memory: Memory,
    prices: Callable[[], LivePrices] = unmeasured_prices,
) -> Drafter | None:
    """A new drafter over `backend`; None where every source is switched off or missing.

    `prices` gives the router's, which all settings of one backend share.
    """
    block, head = block_drafter(knobs, backend, memory), _mtp(knobs, backend)
    if block is not None and (head is None or _is_named(knobs)):
        head = block
    lookup = _lookup(knobs, memory)
    if knobs.flag("LEN_SWITCH") and (head is not None or lookup is not None):
        return _router(knobs, backend, memory, prices(), lookup, block)
    if head is not None and lookup is not None:
        return LookupFirst(lookup, head)
    return lookup or head


def speculation_words(knobs: KnobSet, backend: Backend) -> str:
    """Who drafts by these switches, as `choose_drafter` has it: "MTP, depth 3", or "off: why"."""
    depth, width = knobs.number("MTP_DEPTH"), knobs.number("MTP_TREE")
    has_mtp = bool(backend.config.mtp_layers)
    mtp = f"MTP, depth {depth}" if has_mtp and depth else ""
    if mtp and width:
        mtp += f", {width} side branches a step"
    block = "" if backend.block is None else f"block drafter {backend.block.name}"
    lookup = "lookup" if knobs.flag("LOOKUP") else ""
    if not (mtp or block or lookup):
        return f"{OFF}: " + (
            "QWEN38_MTP_DEPTH is 0" if has_mtp else "this checkpoint has no MTP head"
        )
    if knobs.flag("LEN_SWITCH"):
        *others, last = [source for source in (lookup, block, mtp) if source]
        return f"router over {', '.join(others)} and {last}" if others else f"router over {last}"
    head = block if block and (not mtp or _is_named(knobs)) else mtp
    return f"{lookup} first, then {head}" if lookup and head else lookup or head


def _is_named(knobs: KnobSet) -> bool:
    """Whether a block drafter was asked for; one that merely lies beside the model was not."""
    return bool(knobs.raw("DFLASH2")[0].strip())


def _router(
    knobs: KnobSet,
    backend: Backend,
    memory: Memory,
    prices: LivePrices,
    lookup: LookupDrafter | None,
    block: BlockDrafter | None,
) -> StairCut:
    return build_staircut(
        backend,
        prices,
        lookup=lookup,
        rate=memory.rate,
        mtp_steps=knobs.number("MTP_DEPTH"),
        mtp_branches=knobs.number("MTP_TREE"),
        block=block,
        skip=knobs.flag("STAIR_SKIP"),
        whole=knobs.choice("LEN_MODE") == "fixed",
        counts=memory.counts,
    )


def block_drafter(
    knobs: KnobSet, backend: Backend, memory: Memory, *, width: int = WIDE
) -> BlockDrafter | None:
    """The block drafter over blocks of `width` rows, or None where none is attached."""
    if backend.block is None:
        return None
    return BlockDrafter(
        backend,
        width=width,
        temperature=knobs.decimal("DF2_TEMP"),
        mode=knobs.choice("DF2_TREE_MODE"),
        counts=memory.counts,
    )


def _mtp(knobs: KnobSet, backend: Backend) -> Drafter | None:
    depth, width = knobs.number("MTP_DEPTH"), knobs.number("MTP_TREE")
    if not depth or not backend.config.mtp_layers:
        return None
    return MtpTree(backend, depth, width) if width else MtpChain(backend, depth)


def _lookup(knobs: KnobSet, memory: Memory) -> LookupDrafter | None:
    return lookup_drafter(knobs, memory, memory.rate) if knobs.flag("LOOKUP") else None


def lookup_drafter(knobs: KnobSet, memory: Memory, rate: LookupRate) -> LookupDrafter:
    """The lookup drafter over the stores of `memory`, whether or not it is switched on."""
    options = LookupOptions(deep=knobs.number("DEEP"), deep_after=knobs.number("DEEP_AFTER"))
    return LookupDrafter(options, stores=memory.stores, rate=rate, counts=memory.counts)
