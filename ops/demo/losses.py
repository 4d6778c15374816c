# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training losses of the trunk and its drafts, and teacher-forced figures on held-out text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ops.demo.network import Network
from ops.demo.samples import Batch

DRAFT_WEIGHTS = (0.3, 0.2, 0.15)


def working_copy(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights cast for the forward; the decay parameters stay in float32."""
    kept = ("A_log", "dt_bias")
    return {n: v if n.endswith(kept) else v.to(dtype) for n, v in tensors.items()}


def training_losses(
    network: Network, w: Mapping[str, Tensor], batch: Batch, draft_rows: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(total to minimise, mean answer loss, first-draft loss), scalars.

    Args:
        draft_rows: indices of the rows on which the draft head is trained.
        depth: chained draft steps.
    """
    hidden = network.trunk(w, batch.ids)
    weight, target = batch.weight[:, 1:], batch.ids[:, 1:]
    chosen = weight > 0
    each = functional.cross_entropy(
        network.logits(w, hidden[:, :-1][chosen]), target[chosen], reduction="none"
    )
    scale = weight[chosen]
    total = (each * scale).sum() / scale.sum()
    answer = each.detach()[scale >= 1.0].mean()
    ids, weight = batch.ids[draft_rows], batch.weight[draft_rows]
    first = torch.zeros(())
    for step, drafted in enumerate(network.draft(w, hidden[draft_rows], ids, depth), 1):
        ahead = step + 1
        chosen = weight[:, ahead:] >= 1.0
        loss = functional.cross_entropy(
            network.logits(w, drafted[:, :-ahead][chosen]), ids[:, ahead:][chosen]
        )
        total = total + DRAFT_WEIGHTS[step - 1] * loss
        if step == 1:
            first = loss.detach()
    return total, answer, first


@dataclass(frozen=True, slots=True)
class Figures:
    """Teacher-forced figures.

    exact means that greedy decoding writes this very answer, begun that its first eight tokens
    are right, which nearly always means that the right subject was found.
    """

    loss: float
    begun_pct: float
    exact_pct: float
    token_pct: float
    tokens_per_round: float


@torch.no_grad()
def held_out_figures(
    network: Network, w: Mapping[str, Tensor], batches: list[Batch], depth: int = 3
) -> Figures:
    """Loss, exact and per-token agreement, and committed tokens a round on the exact answers."""
    losses, right, tokens, exact, begun, rows = 0.0, 0, 0, 0, 0, 0
    rounds, committed = 0, 0
    for batch in batches:
        hidden = network.trunk(w, batch.ids)
        weight, target = batch.weight[:, 1:] >= 1.0, batch.ids[:, 1:]
        logits = network.logits(w, hidden[:, :-1])
        losses += float(functional.cross_entropy(logits[weight], target[weight], reduction="sum"))
        same = logits.argmax(-1) == target
        right += int(same[weight].sum())
        tokens += int(weight.sum())
        whole = (same | ~weight).all(-1)
        exact += int(whole.sum())
        early = weight & (weight.cumsum(-1) <= 8)
        begun += int((same | ~early).all(-1).sum())
        rows += len(whole)
        drafts = [
            network.logits(w, d).argmax(-1) for d in network.draft(w, hidden, batch.ids, depth)
        ]
        for row in whole.nonzero().flatten().tolist():
            places = weight[row].nonzero().flatten()
            position, last = int(places[0]), int(places[-1]) + 1
            while position < last:
                good = 0
                while good < depth and position + good + 2 <= last:
                    if drafts[good][row, position] != batch.ids[row, position + good + 2]:
                        break
                    good += 1
                rounds += 1
                committed += good + 1
                position += good + 1
    return Figures(
        losses / max(tokens, 1),
        100 * begun / max(rows, 1),
        100 * exact / max(rows, 1),
        100 * right / max(tokens, 1),
        committed / max(rounds, 1),
    )
