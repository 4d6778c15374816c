# SPDX-License-Identifier: MIT OR Apache-2.0
"""The drafter's training losses: every slot's token, then the selector's choice among the best candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ops.drafter.data import Blocks, Seen
from ops.drafter.network import BlockNetwork
from ops.drafter.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """total is minimised; the others are means in nats, and the share of first slots that are right."""

    total: Tensor
    slot: float
    selector: float
    first_pct: float


def embedded(target: Target, config_mask: int, ids: Tensor, width: int) -> Tensor:
    """Block inputs [B, A, width, hidden]: the anchors' embeddings, the mask token's behind them."""
    rows = torch.full((*ids.shape, width), config_mask)
    rows[..., 0] = ids
    return functional.embedding(rows, target.embed)


def slot_decay(width: int) -> Tensor:
    """Weights [width - 1] of the slots: exp(-slot / (width / 2)), a late miss costs less."""
    return torch.exp(-torch.arange(width - 1) / (width / 2))


def block_losses(
    network: BlockNetwork,
    w: Mapping[str, Tensor],
    target: Target,
    seen: Seen,
    blocks: Blocks,
    width: int,
) -> Losses:
    """Losses over all valid slots of the blocks; at least one slot must be valid."""
    context = network.context(w, seen.taps.float())
    anchor_ids = seen.ids.gather(1, blocks.anchors)
    x = embedded(target, network.config.mask_id, anchor_ids, width)
    hidden = network.block(w, context, x, blocks.anchors, width)[:, :, 1:][blocks.valid]
    label = blocks.labels[blocks.valid]
    before = torch.cat((anchor_ids[..., None], blocks.labels[..., :-1]), -1)[blocks.valid]
    scale = slot_decay(width).expand(blocks.valid.shape)[blocks.valid]
    logits = network.logits(hidden, target.head)
    slot = functional.cross_entropy(logits, label, reduction="none")
    best, candidates = logits.topk(network.config.top_k, -1)
    found = candidates == label[:, None]
    among = found.any(-1)
    scores = best + network.transition(w, hidden, before, candidates)
    place = found[among].float().argmax(-1)
    selector = functional.cross_entropy(scores[among], place, reduction="none")
    selector_mean = (selector * scale[among]).sum() / scale.sum()
    first = torch.zeros_like(blocks.valid)
    first[..., 0] = True
    at_first = first[blocks.valid]
    right = candidates[:, 0] == label
    return Losses(
        total=(slot * scale).sum() / scale.sum() + selector_mean,
        slot=float(slot.detach().mean()),
        selector=float(selector.detach().mean()) if len(selector) else 0.0,
        first_pct=100.0 * float(right[at_first].float().mean()),
    )
