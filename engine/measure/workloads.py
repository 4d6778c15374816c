# SPDX-License-Identifier: MIT OR Apache-2.0
"""What an A/B lets both sides answer: fixed prompts by class, or the operator's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.api_compare import (
    FEWEST_PAIRS,
    FEWEST_TOKENS,
    MOST_PAIRS,
    MOST_REPEATS,
    MOST_TOKENS,
    WORKLOADS,
    CompareRequest,
)
from engine.errors import RondoError, UsageError, reason_of
from engine.paths import workloads_file

CLASSES = ("in-domain", "copy", "edit", "out-of-domain")


@dataclass(frozen=True, slots=True)
class Workload:
    """One prompt, sent as a user message. `reference` is a text both sides have to follow, empty for none."""

    name: str
    prompt: str
    tokens: int
    forced: bool = False
    reference: str = ""


def workloads_of(request: CompareRequest) -> tuple[Workload, ...]:
    """The prompts of a request; UsageError for a request that measures nothing."""
    check_request(request)
    if request.workload == "prompt":
        prompts = {"prompt": request.prompt}
    else:
        classes = CLASSES if request.workload == "mix" else (request.workload,)
        known = read_workloads()
        prompts = {name: known[name] for name in classes}
    return tuple(
        Workload(name, prompt, request.tokens, request.forced, request.reference)
        for name, prompt in prompts.items()
    )


def check_request(request: CompareRequest) -> None:
    """UsageError for values that an A/B cannot use."""
    _require(
        FEWEST_PAIRS <= request.pairs <= MOST_PAIRS,
        f"{request.pairs} pairs are not accepted.",
        f"Use {FEWEST_PAIRS} to {MOST_PAIRS}: fewer cannot reach p 0.05.",
    )
    _require(
        0 <= request.repeats <= MOST_REPEATS,
        f"{request.repeats} repeats are not accepted.",
        f"Use 1 to {MOST_REPEATS}, or 0 to let the length of the answers decide.",
    )
    _require(
        FEWEST_TOKENS <= request.tokens <= MOST_TOKENS,
        f"{request.tokens} tokens an answer are not accepted.",
        f"Use {FEWEST_TOKENS} to {MOST_TOKENS}.",
    )
    _require(
        request.workload in WORKLOADS,
        f"{request.workload!r} is not a workload.",
        f"Use one of {', '.join(WORKLOADS)}.",
    )
    _require(
        request.workload != "prompt" or bool(request.prompt.strip()),
        "The workload is your own prompt, and it is empty.",
        "Write a prompt, or choose another workload.",
    )
    _require(
        not request.prompt or request.workload == "prompt",
        f"A prompt is given, but the workload is {request.workload}.",
        "Choose the workload prompt.",
    )
    _require(
        not request.reference or (request.forced and request.workload == "prompt"),
        "A reference text is given, but no prompt that it answers is forced along it.",
        "Use it with forced and the workload prompt.",
    )
    _require(
        0 <= request.min_effect_pct <= 100,
        f"A smallest effect of {request.min_effect_pct} % is not accepted.",
        "Use 0 to 100.",
    )


def read_workloads() -> dict[str, str]:
    """The shipped prompt of each class."""
    path = workloads_file()
    prompts = dict(read_classed(path))
    missing = [name for name in CLASSES if not prompts.get(name)]
    if missing:
        raise RondoError(f"{path} has no prompt of the class {missing[0]}.")
    return prompts


def read_classed(path: Path) -> list[tuple[str, str]]:
    """(class, prompt) of every line of a file with a tab between them; RondoError where it cannot be read."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RondoError(f"{path}: cannot read the prompts: {reason_of(error)}.") from error
    parts = (line.partition("\t") for line in lines if not line.startswith("#"))
    return [(name, prompt) for name, tab, prompt in parts if tab]


def _require(holds: bool, cause: str, next_step: str) -> None:
    if not holds:
        raise UsageError(cause, kept="Nothing was measured.", next_step=next_step)
