# SPDX-License-Identifier: MIT OR Apache-2.0
"""Drafting policies side by side: the router against every fixed choice, by class of prompt.

All policies answer the same prompts in one run and must write the same tokens. Their order is drawn anew for
each prompt, as one finds in the caches what the one before left there. The first pass over everything is not
counted: it records passes, and the router learns what its drafters cost.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import Cancelled, UsageError
from engine.measure.workloads import read_classed
from engine.model.backend import PREFILL_CHUNK, Backend
from engine.paths import policies_file
from engine.spec.decode import DecodeLoop
from engine.spec.drafter import Drafter
from engine.spec.sampling import Sampling
from engine.spec.staircut import StairCut

PLAIN, ROUTER, ALL = "plain", "staircut", "all"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's tokens and its class; `follow` is a text to go along, empty for the model's own."""

    workload: str
    token_ids: tuple[int, ...]
    follow: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy on one class of prompts, or on all; times are medians over the turns, summed over prompts."""

    workload: str
    policy: str
    tokens: int
    rounds: float
    decode_ms: float
    tokens_per_round: float
    ms_per_round: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """All rows, and how the router stands to the best fixed policy of each class and over all of them.

    router_share: by class, the time of the best fixed policy (named in `best_fixed`) over the router's; above 1
    the router is faster. choices: what it verified, rounds by candidate. tokens_identical: whether every policy
    wrote the same tokens.
    """

    rows: tuple[PolicyRow, ...]
    best_fixed: dict[str, str]
    router_share: dict[str, float]
    plain_share: dict[str, float]
    choices: dict[str, int]
    nodes_mean: float
    price_source: str
    tokens_identical: bool
    turns: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def read_policy_prompts() -> list[tuple[str, str]]:
    """(class, prompt) of the shipped file."""
    return read_classed(policies_file())


def run_policies(
    backend: Backend,
    policies: Mapping[str, Drafter | None],
    prompts: Sequence[Prompt],
    *,
    stop_ids: frozenset[int],
    tokens: int,
    turns: int,
    on_progress: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
) -> PolicyReport:
    """Let every policy answer every prompt `turns` times; PLAIN and ROUTER are among them.

    Raises:
        UsageError: nothing to measure.
        Cancelled: `cancel` was set; looked at between answers.
    """
    if turns < 1 or tokens < 2 or not prompts:
        raise UsageError(
            "Policies are compared on 1 turn or more, 2 tokens or more and some prompt.",
            next_step="Leave --turns and --tokens out.",
        )
    begun = time.monotonic()
    names = list(policies)
    taken: dict[tuple[str, int], list[_Answer]] = {}
    identical = True
    choices: Counter[str] = Counter()
    nodes: list[int] = []
    for turn in range(turns + 1):
        on_progress(f"turn {turn} of {turns}" if turn else "first pass, not counted")
        for index, prompt in enumerate(prompts):
            written = None
            random.Random(1000 * turn + index).shuffle(names)
            for name in names:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("The comparison was cancelled.", kept="No figures were kept.")
                answer = _decode(backend, policies[name], prompt, stop_ids, tokens)
                identical &= written in (None, answer.tokens)
                written = answer.tokens
                if not turn:
                    continue
                taken.setdefault((name, index), []).append(answer)
                if name == ROUTER:
                    choices.update(answer.candidates)
                    nodes += answer.nodes
    workloads = list(dict.fromkeys(prompt.workload for prompt in prompts))
    if len(workloads) > 1:
        workloads.append(ALL)
    rows = [_row(workload, name, prompts, taken) for workload in workloads for name in policies]
    router = policies[ROUTER]
    return PolicyReport(
        rows=tuple(rows),
        **_shares(rows),
        choices=dict(choices.most_common()),
        nodes_mean=statistics.fmean(nodes) if nodes else 0.0,  # none where the first token ends all
        price_source=router.choice.price_source if isinstance(router, StairCut) else "",
        tokens_identical=identical,
        turns=turns,
        seconds=time.monotonic() - begun,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    tokens: tuple[int, ...]
    rounds: int
    decode_ms: float
    candidates: tuple[str, ...]  # of the router's choices
    nodes: tuple[int, ...]


def _decode(
    backend: Backend,
    drafter: Drafter | None,
    prompt: Prompt,
    stop_ids: frozenset[int],
    tokens: int,
) -> _Answer:
    """One greedy answer of at most `tokens` tokens behind the first one, which the prompt gives."""
    follow = prompt.follow or None
    loop = DecodeLoop(backend, Sampling(), stop_ids, drafter, follow=follow)
    backend.reset(speculate=drafter is not None)
    ids = prompt.token_ids
    for at in range(0, len(ids), PREFILL_CHUNK):
        prefilled = backend.prefill(ids[at : at + PREFILL_CHUNK])
    written = [loop.begin(prefilled, ids)]
    candidates, nodes = [], []
    rounds, decode_ms = 0, 0.0
    while len(written) <= tokens and written[-1] not in stop_ids and loop.room() > 0:
        started = time.perf_counter()
        done = loop.round(tokens + 1 - len(written))
        decode_ms += (time.perf_counter() - started) * 1e3
        rounds += 1
        written += done.tokens
        nodes.append(done.drafted)
        if isinstance(drafter, StairCut):
            candidates.append(drafter.choice.candidate)
    return _Answer(tuple(written), rounds, decode_ms, tuple(candidates), tuple(nodes))


def _row(
    workload: str,
    policy: str,
    prompts: Sequence[Prompt],
    taken: Mapping[tuple[str, int], list[_Answer]],
) -> PolicyRow:
    tokens, rounds, decode_ms = 0, 0.0, 0.0
    for index, prompt in enumerate(prompts):
        if workload in (ALL, prompt.workload):
            answers = taken[policy, index]
            tokens += len(answers[0].tokens) - 1
            rounds += statistics.fmean(answer.rounds for answer in answers)
            decode_ms += statistics.median(answer.decode_ms for answer in answers)
    rounds = max(rounds, 1.0)
    decode_ms = max(decode_ms, 1e-6)
    return PolicyRow(
        workload=workload,
        policy=policy,
        tokens=tokens,
        rounds=rounds,
        decode_ms=decode_ms,
        tokens_per_round=tokens / rounds,
        ms_per_round=decode_ms / rounds,
        tokens_per_s=1e3 * tokens / decode_ms,
    )


def _shares(rows: Sequence[PolicyRow]) -> dict[str, dict[str, Any]]:
    by_class: dict[str, dict[str, float]] = {}
    for row in rows:
        by_class.setdefault(row.workload, {})[row.policy] = row.decode_ms
    best_fixed, router_share, plain_share = {}, {}, {}
    for workload, times in by_class.items():
        fixed = {name: ms for name, ms in times.items() if name != ROUTER}
        best_fixed[workload] = min(fixed, key=fixed.__getitem__)
        router_share[workload] = fixed[best_fixed[workload]] / times[ROUTER]
        plain_share[workload] = times[PLAIN] / times[ROUTER]
    return {"best_fixed": best_fixed, "router_share": router_share, "plain_share": plain_share}
