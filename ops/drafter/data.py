# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chats with the target's residual streams, and which of their tokens the target itself would write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ops.demo.corpus import Entry, normalised
from ops.demo.samples import Batch
from ops.drafter.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A batch of chats as the target read them.

    Attributes:
        ids: int64 [B, T].
        taps: bf16 [B, T, n * hidden], the residual streams behind every token.
        answer: bool [B, T], tokens of an answer.
        written: bool [B, T], tokens of an answer that the target chooses itself, given all before them.
    """

    ids: Tensor
    taps: Tensor
    answer: Tensor
    written: Tensor


def without_prompts(entries: Sequence[Entry], prompts: Iterable[str]) -> list[Entry]:
    """The entries without the phrasings that occur among the test prompts."""
    barred = {normalised(prompt) for prompt in prompts}
    kept = []
    for entry in entries:
        questions = tuple(q for q in entry.questions if normalised(q) not in barred)
        if questions:
            kept.append(replace(entry, questions=questions))
    return kept


def look(target: Target, batch: Batch, streams: tuple[int, ...]) -> Seen:
    """Run the target over a batch."""
    taps, chosen = target.look(batch.ids, streams)
    answer = batch.weight >= 1.0
    same = torch.zeros_like(answer)
    same[:, 1:] = chosen[:, :-1] == batch.ids[:, 1:]
    return Seen(batch.ids, taps, answer, answer & same)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks to train on.

    Attributes:
        anchors: int64 [B, A], positions.
        labels: int64 [B, A, W - 1], the tokens behind each anchor.
        valid: bool [B, A, W - 1], whether the target wrote the token and all between it and the anchor.
    """

    anchors: Tensor
    labels: Tensor
    valid: Tensor


def draw_blocks(seen: Seen, count: int, width: int, generator: torch.Generator) -> Blocks:
    """`count` random anchors a row of the batch, each an answer's token before one the target wrote.

    A row without such a token gets blocks in which nothing is valid.
    """
    tokens = seen.ids.shape[1]
    fit = torch.zeros_like(seen.answer)
    fit[:, :-1] = seen.answer[:, :-1] & seen.written[:, 1:]
    # A row without one draws anything: its labels are not valid.
    weight = torch.where(fit.any(1, keepdim=True), fit, True).float()
    anchors = torch.multinomial(weight, count, replacement=True, generator=generator)
    places = anchors[..., None] + torch.arange(1, width)
    inside = places < tokens
    places = places.clamp(max=tokens - 1)
    rows = torch.arange(len(anchors))[:, None, None]
    valid = (seen.written[rows, places] & inside).cumprod(-1).bool()
    return Blocks(anchors, seen.ids[rows, places], valid)
