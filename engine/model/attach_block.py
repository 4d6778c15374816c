# SPDX-License-Identifier: MIT OR Apache-2.0
"""Brings the block drafter that the switches name to a loaded model."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.allocation import allocating
from engine.api import LoadProgress
from engine.errors import CheckpointError, MemoryShortError, UnsupportedModelError
from engine.knobs import KnobSet
from engine.load.checkpoint import Checkpoint
from engine.load.drafter import OFF, drafter_folder, read_drafter
from engine.load.reader import KEPT
from engine.model.backend import Backend


def attach_block(
    backend: Backend,
    checkpoint: Checkpoint,
    knobs: KnobSet,
    *,
    on_progress: Callable[[LoadProgress], None] | None = None,
    cancel: threading.Event | None = None,
) -> tuple[str, ...]:
    """Read the drafter of QWEN38_DFLASH2, or the one beside the model, and attach it; returns notices.

    A named drafter that cannot be used raises CheckpointError, UnsupportedModelError or MemoryShortError. One
    that merely lies beside the model does not keep the model from running: a notice says why it is not used.
    """
    named = knobs.raw("DFLASH2")[0].strip()
    value = named if named in ("", OFF) else str(knobs.path("DFLASH2"))
    folder = drafter_folder(value, checkpoint.path)
    if folder is None:
        return ()
    try:
        with allocating(f"the block drafter {folder.name}", kept=KEPT):
            block = read_drafter(
                folder,
                checkpoint.config,
                context_tokens=backend.capacity,
                nvfp4=knobs.flag("DRAFT_NVFP4"),
                on_progress=on_progress,
                cancel=cancel,
            )
            backend.attach_block(block)
    except (CheckpointError, UnsupportedModelError, MemoryShortError) as error:
        if named:
            raise
        return (f"The drafter {folder.name} beside the model is not used: {error.cause}",)
    return block.notices
