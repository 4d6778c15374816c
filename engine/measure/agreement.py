# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does speculation change the text? Plain greedy decoding against every way to draft and to compute.

A difference passes as a near tie only on a backend that does not promise equal bits, and only when the two best
logits of the plain run differ by at most one bfloat16 step where the texts part.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.api import GenerateRequest, Generation, Message
from engine.engine import Engine
from engine.errors import Cancelled, UsageError
from engine.measure.agree_configurations import CONFIGURATIONS, Configuration


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs of one prompt part."""

    configuration: str
    prompt: str
    position: int  # index in the answer
    plain_token: int
    served_token: int
    gap_ulp: float  # distance of the two best logits of the plain run, in bfloat16 steps
    near_tie: bool


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """One configuration against plain decoding; `skipped` says why it did not run."""

    name: str
    prompts: int
    tokens: int  # compared
    identical: int  # prompts whose whole answers are equal
    near_ties: int
    divergences: int  # differences that are no near tie
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    tokens_per_round: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """Result of `agree`; `ok` is the gate."""

    prompts: int
    tokens: int  # compared, over all prompts and configurations
    identical: int  # prompts whose whole answers are equal in every configuration
    differences: tuple[Difference, ...]
    tokens_per_round: float  # of the first configuration that ran
    exact_backend: bool
    configurations: tuple[ConfigurationRow, ...]
    ended_by_context: int = 0  # plain answers that the context cut short

    @property
    def divergences(self) -> int:
        """Prompts that differ in a way this backend's contract does not allow."""
        return len({each.prompt for each in self.differences if not each.near_tie})

    @property
    def near_ties(self) -> int:
        """Prompts that differ, only in the way that it allows."""
        return len({each.prompt for each in self.differences}) - self.divergences

    @property
    def ok(self) -> bool:
        """True when every difference is an allowed near tie."""
        return not self.divergences


def agree(
    engine: Engine,
    prompts: Sequence[str],
    *,
    tokens: int,
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    cancel: threading.Event | None = None,
    on_answer: Callable[[int, int], None] | None = None,
) -> AgreementReport:
    """Compare greedy texts of `tokens` tokens, stop tokens ignored; each prompt is decoded plainly once.

    `on_answer(done, total)` follows the answers. Raises UsageError where nothing can be compared: no prompt, or
    no configuration that can run here.
    """
    if not prompts:
        raise UsageError("There is no prompt to compare.", next_step="Give a file with one a line.")
    run = _Run(engine, prompts, tokens, cancel, on_answer, len(prompts) * (1 + len(configurations)))
    rows, differences = [], []
    for configuration in configurations:
        row, found = run.compare(configuration)
        rows.append(row)
        differences += found
    if all(row.skipped for row in rows):
        raise UsageError(
            f"No configuration can run here: {rows[0].name}: {rows[0].skipped.rstrip('.')}.",
            kept="Nothing was compared.",
            next_step="Name others with --configs.",
        )
    first = next((row for row in rows if row.rounds), rows[0])
    return AgreementReport(
        prompts=len(prompts),
        tokens=sum(row.tokens for row in rows),
        identical=len(prompts) - len({each.prompt for each in differences}),
        differences=tuple(differences),
        tokens_per_round=first.tokens_per_round,
        exact_backend=run.exact,
        configurations=tuple(rows),
        ended_by_context=run.ended_by_context,
    )


def bf16_step(value: float) -> float:
    """Distance between neighbouring bfloat16 numbers at `value`: 2^(floor(log2|value|) - 7)."""
    return 2.0 ** (math.floor(math.log2(abs(value))) - 7) if value else 2.0**-133


class _Run:
    """The plain answers and what is compared with them."""

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[str],
        tokens: int,
        cancel: threading.Event | None,
        on_answer: Callable[[int, int], None] | None,
        total: int,
    ) -> None:
        self._engine = engine
        self._cancel = cancel
        self._on_answer = on_answer
        self._done, self._total = 0, total
        self.exact = engine.card.backend == "native"
        self._requests = [
            GenerateRequest(
                messages=(Message("user", prompt),), max_tokens=tokens, ignore_stop_tokens=True
            )
            for prompt in prompts
        ]
        self._plain = [self._answer(replace(each, speculate=False)) for each in self._requests]
        self.ended_by_context = sum(each.finish_reason == "context" for each in self._plain)

    def compare(self, configuration: Configuration) -> tuple[ConfigurationRow, list[Difference]]:
        """Every prompt in one configuration; the switches stand as before afterwards."""
        engine, before = self._engine, self._engine.knobs
        try:
            engine.set_knobs(configuration.changes(engine))
        except UsageError as error:
            self._tell(len(self._requests))
            return ConfigurationRow(
                configuration.name, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, error.cause
            ), []
        try:
            answers = list(self._answers(configuration))
        finally:
            engine.restore_knobs(before)
        differences = [
            self._difference(configuration.name, request, plain.token_ids, answer.token_ids)
            for request, plain, answer in zip(self._requests, self._plain, answers, strict=True)
            if plain.token_ids != answer.token_ids
        ]
        rounds = sum(answer.rounds for answer in answers)
        added = sum(max(0, len(answer.token_ids) - 1) for answer in answers)
        near_ties = sum(each.near_tie for each in differences)
        return ConfigurationRow(
            name=configuration.name,
            prompts=len(answers),
            tokens=sum(len(plain.token_ids) for plain in self._plain),
            identical=len(answers) - len(differences),
            near_ties=near_ties,
            divergences=len(differences) - near_ties,
            rounds=rounds,
            drafted_tokens=sum(answer.drafted_tokens for answer in answers),
            accepted_tokens=sum(answer.accepted_tokens for answer in answers),
            tokens_per_round=added / rounds if rounds else 0.0,
        ), differences

    def _answers(self, configuration: Configuration) -> Iterator[Generation]:
        for request, plain in zip(self._requests, self._plain, strict=True):
            adversary = configuration.adversary
            if adversary is None:
                yield self._answer(request)
            else:
                drafter = adversary(plain.token_ids, self._engine.card.vocab_size)
                yield self._answer(request, drafter=drafter)

    def _answer(self, request: GenerateRequest, **options: object) -> Generation:
        answer = self._engine.generate(request, cancel=self._cancel, **options)
        if self._cancel and self._cancel.is_set():
            raise Cancelled  # an answer that was cut short differs for no reason
        self._tell(1)
        return answer

    def _tell(self, answers: int) -> None:
        self._done += answers
        if self._on_answer:
            self._on_answer(self._done, self._total)

    def _difference(
        self,
        configuration: str,
        request: GenerateRequest,
        plain: Sequence[int],
        served: Sequence[int],
    ) -> Difference:
        pairs = zip(plain, served, strict=False)
        shorter = min(len(plain), len(served))
        position = next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
        prompt_ids, _ = self._engine.prompt_ids(request)
        logits = self._engine.logits([*prompt_ids, *plain[:position]])[-1]
        best, second = logits.topk(2).values.tolist()
        gap_ulp = (best - second) / bf16_step(best)
        return Difference(
            configuration=configuration,
            prompt=request.messages[0].content,
            position=position,
            plain_token=plain[position] if position < len(plain) else -1,
            served_token=served[position] if position < len(served) else -1,
            gap_ulp=gap_ulp,
            near_tie=not self.exact and gap_ulp <= 1.0,
        )
