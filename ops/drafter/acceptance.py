# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many tokens a round would commit: the greedy walk of the lattice against what the target wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.drafter.losses import embedded
from ops.drafter.network import BlockNetwork, Context
from ops.drafter.target import Target

ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat with the target's own answer; `start` is the answer's first token. kind: the prompt's class."""

    ids: tuple[int, ...]
    start: int
    kind: str


@dataclass(frozen=True, slots=True)
class Tally:
    """Rounds and the tokens they committed, of one class of prompts."""

    kind: str
    answers: int
    rounds: int
    tokens: int

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens a round, the target's own included."""
        return self.tokens / max(1, self.rounds)


@torch.no_grad()
def greedy_walk(
    network: BlockNetwork, w: Mapping[str, Tensor], hidden: Tensor, head: Tensor, anchor: Tensor
) -> Tensor:
    """The chain a lattice yields: int64 [N, slots] from hidden [N, slots, hidden] and anchors [N]."""
    best, candidates = network.logits(hidden, head).topk(network.config.top_k, -1)
    previous, chain = anchor, []
    for slot in range(hidden.shape[1]):
        at = candidates[:, slot]
        scores = best[:, slot] + network.transition(w, hidden[:, slot], previous, at)
        previous = at.gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
        chain.append(previous)
    return torch.stack(chain, 1)


@torch.no_grad()
def tally_rounds(
    network: BlockNetwork,
    w: Mapping[str, Tensor],
    target: Target,
    answers: Sequence[Answer],
    width: int,
) -> list[Tally]:
    """Rounds over whole answers, one tally a class and a last one for all, called "all"."""
    counts: dict[str, list[int]] = {}
    order = sorted(answers, key=lambda answer: len(answer.ids))
    for at in range(0, len(order), ROWS_AT_ONCE):
        group = order[at : at + ROWS_AT_ONCE]
        for answer, (rounds, tokens) in zip(
            group, _walk(network, w, target, group, width), strict=True
        ):
            for kind in (answer.kind, "all"):
                count = counts.setdefault(kind, [0, 0, 0])
                count[0] += 1
                count[1] += rounds
                count[2] += tokens
    last = counts.pop("all", [0, 0, 0])
    return [Tally(kind, *count) for kind, count in (*sorted(counts.items()), ("all", last))]


def _walk(
    network: BlockNetwork,
    w: Mapping[str, Tensor],
    target: Target,
    group: Sequence[Answer],
    width: int,
) -> list[tuple[int, int]]:
    """(rounds, tokens) of each answer; the first token comes from the prompt and counts for no round."""
    length = -(-max(len(answer.ids) for answer in group) // 16) * 16
    ids = torch.zeros(len(group), length, dtype=torch.int64)
    for row, answer in enumerate(group):
        ids[row, : len(answer.ids)] = torch.tensor(answer.ids)
    taps, _ = target.look(ids, network.config.streams)
    context = network.context(w, taps.float())
    positions = [answer.start for answer in group]
    done = [[0, 0] for _ in group]
    while True:
        live = [r for r, answer in enumerate(group) if positions[r] + 1 < len(answer.ids)]
        if not live:
            return [(rounds, tokens) for rounds, tokens in done]
        layers = tuple((k[live], v[live]) for k, v in context.layers)
        anchors = torch.tensor([[positions[row]] for row in live])
        first = ids[live].gather(1, anchors)
        x = embedded(target, network.config.mask_id, first, width)
        hidden = network.block(w, Context(layers), x, anchors, width)[:, 0, 1:]
        drafts = greedy_walk(network, w, hidden, target.head, first[:, 0]).tolist()
        for row, draft in zip(live, drafts, strict=True):
            answer = group[row].ids
            rest = answer[positions[row] + 1 :]
            good = 0
            while good < min(len(draft), len(rest) - 1) and draft[good] == rest[good]:
                good += 1
            done[row][0] += 1
            done[row][1] += good + 1
            positions[row] += good + 1
