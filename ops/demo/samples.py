# SPDX-License-Identifier: MIT OR Apache-2.0
"""Seeded training samples: chats as ids with per-token loss weights, in batches of one length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ops.demo.corpus import Entry
from ops.demo.tasks import Tasks
from ops.demo.vocabulary import Chat
from ops.demo.wording import reword

SYSTEM = (
    "You are a helpful assistant.",
    "You are the demo model of Rondo.",
    "Answer briefly.",
    "You answer questions about Rondo.",
)
QUESTION_WEIGHT = 0.1
LENGTH_STEP = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """ids int64 [B, T] and weight float32 [B, T]: the loss weight of predicting that token."""

    ids: Tensor
    weight: Tensor


class Samples:
    """Draws samples; everything follows from the seed and the pool number.

    Attributes:
        cut: share of single questions whose answer ends after a few tokens. Finding the right
            answer is harder than finishing it, and short samples show more questions a second.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        chat: Chat,
        *,
        seed: int,
        tokens_per_batch: int,
        cut: float = 0.0,
    ) -> None:
        self.entries, self.chat, self.seed = entries, chat, seed
        self.tokens_per_batch, self.cut = tokens_per_batch, cut
        # Subjects that people ask about in more ways come more often.
        self._worded = list(itertools.accumulate(len(entry.questions) for entry in entries))
        self.tasks = Tasks([entry.answer for entry in entries])

    def pool(self, number: int, size: int = 200) -> list[Batch]:
        """The batches of one pool: samples sorted by length, cut, and shuffled as batches.

        A last batch of less than half the usual tokens is left out: its few rows would weigh as
        much as a full batch in the optimiser.
        """
        rng = random.Random(f"{self.seed}:{number}")
        rows = sorted((self.draw(rng) for _ in range(size)), key=lambda row: len(row[0]))
        batches, group = [], []
        for row in rows:
            if group and _padded(len(row[0])) * (len(group) + 1) > self.tokens_per_batch:
                batches.append(collate(group))
                group = []
            group.append(row)
        if not batches or _padded(len(group[-1][0])) * len(group) > self.tokens_per_batch // 2:
            batches.append(collate(group))
        rng.shuffle(batches)
        return batches

    def draw(self, rng: random.Random) -> tuple[list[int], list[float]]:
        """(ids, weights) of one chat."""
        whole = 1.0 - 0.6 * self.cut
        kind = rng.random() / whole
        turns = 1
        if kind < 0.012:
            turns = rng.randint(5, 9)
        elif kind < 0.11:
            turns = rng.randint(2, 3)
        pairs = []
        for _ in range(turns):
            is_task = rng.random() < 0.20 * whole
            if is_task:
                request, answer = self.tasks.draw(rng)
                pairs.append((request, answer, request.split(":")[0].split("\n")[0]))
            else:
                entry = rng.choices(self.entries, cum_weights=self._worded)[0]
                pairs.append((reword(entry.questions, rng), entry.answer, entry.questions[0]))
        thinking = rng.random() < 0.07
        system = rng.choice(SYSTEM) if rng.random() < 0.05 else None
        keep = None
        if turns == 1 and not is_task and rng.random() < self.cut:
            keep = rng.randint(5, 10)
        return self.render(pairs, thinking=thinking, system=system, keep=keep)

    def render(
        self,
        pairs: Sequence[tuple[str, str, str]],
        *,
        thinking: bool = False,
        system: str | None = None,
        keep: int | None = None,
    ) -> tuple[list[int], list[float]]:
        """Ids and weights of (request, answer, topic) turns, as the chat template writes them.

        keep cuts the last answer after so many tokens.
        """
        chat = self.chat
        ids: list[int] = chat.turn("system", system) if system else []
        weights = [0.0] * len(ids)
        for index, (request, answer, topic) in enumerate(pairs):
            asked = chat.text(request.strip())
            head, tail = chat.open("user"), [chat.end, *chat.text("\n")]
            ids += [*head, *asked, *tail, *chat.open("assistant")]
            weights += [0.0] * len(head) + [QUESTION_WEIGHT] * len(asked)
            said = [*chat.text(answer), chat.end][:keep]
            if index == len(pairs) - 1:
                given, thought = chat.thought(f"The topic is: {topic}" if thinking else None)
                ids += given
                said = thought + said
            weights += [0.0] * (len(ids) - len(weights))
            ids += said
            weights += [1.0] * len(said)
            if index < len(pairs) - 1:
                ids += chat.text("\n")
                weights.append(0.0)
        return ids, weights


def collate(rows: Sequence[tuple[list[int], list[float]]]) -> Batch:
    """Rows right-padded with zeros to a multiple of the length step."""
    length = _padded(max(len(ids) for ids, _ in rows))
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    weight = torch.zeros(len(rows), length)
    for row, (tokens, weights) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = torch.tensor(weights)
    return Batch(ids, weight)


def _padded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP
