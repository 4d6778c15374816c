# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does speculation change the text? Plain greedy decoding against the served configuration.

A difference passes as a near tie only on a backend that does not promise equal bits, and only when the two best
logits of the plain run differ by at most one bfloat16 step where the texts part.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.api import GenerateRequest, Message
from engine.engine import Engine
from engine.errors import Cancelled, UsageError


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs of one prompt part."""

    prompt: str
    position: int  # index in the answer
    plain_token: int
    served_token: int
    gap_ulp: float  # distance of the two best logits of the plain run, in bfloat16 steps
    near_tie: bool


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """Result of `agree`; `ok` is the gate."""

    prompts: int
    tokens: int  # compared, over all prompts
    identical: int  # prompts whose whole answers are equal
    differences: tuple[Difference, ...]
    tokens_per_round: float  # of the served runs
    exact_backend: bool

    @property
    def near_ties(self) -> int:
        """Differences that this backend's contract allows."""
        return sum(difference.near_tie for difference in self.differences)

    @property
    def ok(self) -> bool:
        """True when every difference is an allowed near tie."""
        return self.near_ties == len(self.differences)


def agree(
    engine: Engine,
    prompts: Sequence[str],
    *,
    tokens: int,
    cancel: threading.Event | None = None,
    on_prompt: Callable[[int, int], None] | None = None,
) -> AgreementReport:
    """Compare greedy texts of `tokens` tokens, stop tokens ignored, with and without speculation."""
    if not prompts:
        raise UsageError("There is no prompt to compare.", next_step="Give a file with one a line.")
    exact = engine.card.backend == "native"
    compared = identical = rounds = served_tokens = 0
    differences = []
    for index, prompt in enumerate(prompts):
        request = GenerateRequest(
            messages=(Message("user", prompt),), max_tokens=tokens, ignore_stop_tokens=True
        )
        served = engine.generate(request, cancel=cancel)
        plain = engine.generate(_without_drafts(request), cancel=cancel)
        if cancel and cancel.is_set():
            raise Cancelled  # an answer that was cut short differs for no reason
        compared += len(plain.token_ids)
        rounds += served.rounds
        served_tokens += max(0, len(served.token_ids) - 1)
        if served.token_ids == plain.token_ids:
            identical += 1
        else:
            differences.append(
                _difference(engine, request, plain.token_ids, served.token_ids, exact)
            )
        if on_prompt:
            on_prompt(index + 1, len(prompts))
    return AgreementReport(
        prompts=len(prompts),
        tokens=compared,
        identical=identical,
        differences=tuple(differences),
        tokens_per_round=served_tokens / rounds if rounds else 0.0,
        exact_backend=exact,
    )


def bf16_step(value: float) -> float:
    """Distance between neighbouring bfloat16 numbers at `value`: 2^(floor(log2|value|) - 7)."""
    return 2.0 ** (math.floor(math.log2(abs(value))) - 7) if value else 2.0**-133


def _without_drafts(request: GenerateRequest) -> GenerateRequest:
    return replace(request, speculate=False)


def _difference(
    engine: Engine,
    request: GenerateRequest,
    plain: Sequence[int],
    served: Sequence[int],
    exact: bool,
) -> Difference:
    pairs = zip(plain, served, strict=False)
    position = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(served)))
    prompt_ids, _ = engine.prompt_ids(request)
    logits = engine.logits([*prompt_ids, *plain[:position]])[-1]
    best, second = logits.topk(2).values.tolist()
    gap_ulp = (best - second) / bf16_step(best)
    return Difference(
        prompt=request.messages[0].content,
        position=position,
        plain_token=plain[position] if position < len(plain) else -1,
        served_token=served[position] if position < len(served) else -1,
        gap_ulp=gap_ulp,
        near_tie=not exact and gap_ulp <= 1.0,
    )
