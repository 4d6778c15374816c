# SPDX-License-Identifier: MIT OR Apache-2.0
"""The verdict of an A/B and its reason in words, from what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from engine.api_compare import FEWEST_PAIRS, ComparePair, CompareReport, WorkloadResult
from engine.knob_kinds import PREFIX
from engine.measure.ab_evidence import (
    BASE,
    CANDIDATE,
    SIDES,
    Evidence,
    kernel_deltas,
    pooled,
    side_figures,
)
from engine.measure.ab_pairs import estimator_words, interrupted_share, pairs_of
from engine.measure.stats import (
    ALPHA,
    bootstrap_interval,
    median_interval,
    noise_floor,
    pairs_for,
    percent,
    shown_effect,
    shown_p,
    signflip_p,
    signs_of,
    smallest_effect,
    spread_of,
)

_KEEPS_TEXT = ("identical", "proposes-only")
_WORTH_SAYING = 0.05  # of the rounds interrupted


@dataclass(frozen=True, slots=True)
class Figures:
    """What the pooled pairs say; None where there are too few of them."""

    n: int
    median: float | None  # log ratio
    interval: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p: float | None
    floor: float | None  # log ratio that noise alone reaches
    smallest: float | None  # log ratio
    more_pairs: int | None
    signs: str


def build_report(
    evidence: Evidence, *, machine: Mapping[str, object], seconds: float
) -> CompareReport:
    """Judge the evidence; nothing is timed here."""
    setting, request = evidence.setting, evidence.request
    blocks = evidence.blocks()
    pairs = pairs_of(blocks, evidence.metric)
    figures = figures_of(pairs, evidence)
    verdict, reason = judge(evidence, figures)
    interrupted = interrupted_share(blocks)
    return CompareReport(
        verdict=verdict,
        reason=reason,
        metric=evidence.metric,
        n_pairs=figures.n,
        planned_pairs=request.pairs,
        ratio_median=None if figures.median is None else math.exp(figures.median),
        ci95_low_pct=_end(figures.interval, 0),
        ci95_high_pct=_end(figures.interval, 1),
        bootstrap_low_pct=_end(figures.bootstrap, 0),
        bootstrap_high_pct=_end(figures.bootstrap, 1),
        p_signflip=figures.p,
        signs=figures.signs,
        noise_floor_pct=_percent(figures.floor),
        noise_source=evidence.noise.source if evidence.noise else "",
        smallest_resolvable_pct=_percent(figures.smallest),
        more_pairs=figures.more_pairs,
        tokens_identical=all(_same_text(evidence, name) for name in evidence.workloads()),
        engaged_differs=engaged_differs(evidence),
        reloaded=setting.reloads,
        base=side_figures(evidence, BASE, setting.base),
        candidate=side_figures(evidence, CANDIDATE, setting.candidate),
        workloads=_workload_results(evidence),
        kernels=kernel_deltas(evidence),
        pairs=pairs,
        workload_pairs=tuple(
            pair
            for name in evidence.workloads()
            for pair in pairs_of(blocks, evidence.metric, name)
        ),
        blocks=tuple(each.block for each in evidence.measured),
        request=request,
        model_name=setting.model_name,
        model_path=setting.model_path,
        weight_format=setting.weight_format,
        threads=setting.threads,
        machine=machine,
        seconds=seconds,
        label=request.label,
        notes=_notes(evidence, pairs),
        base_knobs=setting.base,
        candidate_knobs=setting.candidate,
        estimator=estimator_words(max(1, request.repeats)),
        interrupted_pct=None if interrupted is None else 100 * interrupted,
    )


def figures_of(pairs: tuple[ComparePair, ...], evidence: Evidence) -> Figures:
    """The statistics of the pooled pairs."""
    ratios = [pair.log_ratio for pair in pairs]
    n = len(ratios)
    if not n:
        return Figures(0, None, None, None, None, None, None, None, "")
    median = statistics.median(ratios)
    floor = noise_floor(evidence.noise.log_ratios, n) if evidence.noise else None
    spread = spread_of(ratios)
    smallest = more = None
    if n > 1:
        smallest = max(smallest_effect(spread, n), shown_effect(floor or 0.0, spread, n))
        needed = pairs_for(median, spread) if abs(median) > (floor or 0.0) else None
        more = needed - n if needed and needed > n else None
    return Figures(
        n,
        median,
        median_interval(ratios),
        bootstrap_interval(ratios),
        signflip_p(ratios),
        floor,
        smallest,
        more,
        signs_of(ratios),
    )


def fault_of(evidence: Evidence) -> str:
    """Why the sides cannot be compared, in words; empty where they can. Tokens first, then the paths taken."""
    return _token_fault(evidence) or _path_fault(evidence)


def judge(evidence: Evidence, figures: Figures) -> tuple[str, str]:
    """(verdict, reason): faults first, then the number of pairs, then the test."""
    fault = fault_of(evidence)
    if fault:
        return "invalid", fault
    stopped = evidence.stopped
    if not figures.n:
        return "cancelled", _nothing_to_judge(evidence)
    ended = f" {stopped} after {figures.n} of {evidence.request.pairs} pairs." if stopped else ""
    if figures.n < FEWEST_PAIRS:
        return (
            "not resolved",
            f"{stopped + ' after' if stopped else 'There are'} {_count(figures.n)}; fewer than "
            f"{FEWEST_PAIRS} cannot reach p {ALPHA}.",
        )
    if ended:
        ended += " An end chosen while looking at the figures makes p look smaller than it is."
    assert figures.median is not None
    assert figures.p is not None
    seen = (
        f"median {percent(figures.median):+.2f} % over {_count(figures.n)}"
        f"{_interval(figures)}, {shown_p(figures.p)}"
    )
    least = max(figures.floor or 0.0, math.log1p(evidence.request.min_effect_pct / 100))
    floor = "" if figures.floor is None else f"; noise floor {percent(figures.floor):.2f} %"
    if figures.p <= ALPHA and abs(figures.median) >= least and figures.median != 0:
        verdict = "worse" if figures.median > 0 else "better"
        unit = "round" if evidence.metric == "ms_per_round" else "token"
        word = "longer" if figures.median > 0 else "less time"
        return verdict, f"A {unit} takes {word} on the candidate: {seen}{floor}.{ended}"
    if figures.p <= ALPHA:
        return (
            "not resolved",
            f"The difference repeats but is too small to call: {seen}, below "
            f"{percent(least):.2f} %, which is {_least_name(evidence, figures)}.{ended}",
        )
    hint = ""
    if figures.smallest is not None:
        hint = f" Pairs as noisy as these find {percent(figures.smallest):.2f} % in 4 of 5 runs."
    if figures.more_pairs:
        hint += f" {figures.more_pairs} more pairs would resolve the median if it is real."
    return "not resolved", f"Not resolved, which is not equal: {seen}{floor}.{hint}{ended}"


def engaged_differs(evidence: Evidence) -> bool:
    """Whether any path was taken more often, a round, on one side than on the other."""
    runs = evidence.complete() or evidence.others
    rates: list[dict[str, float]] = []
    for side in SIDES:
        rounds = sum(each.block.rounds for each in runs if each.block.side == side)
        rates.append(
            {name: n / rounds for name, n in evidence.counters(side).items()} if rounds else {}
        )
    base, candidate = rates
    return any(
        not math.isclose(base.get(name, 0.0), candidate.get(name, 0.0), rel_tol=1e-6)
        for name in {*base, *candidate}
    )


def _token_fault(evidence: Evidence) -> str:
    """Why no time may be compared, empty where both sides wrote the same."""
    for name in evidence.workloads():
        for side in SIDES:
            if len(evidence.texts(name, side)) > 1:
                return (
                    f"The {side} did not repeat its own text ({name}); what it writes depends on something "
                    "besides the prompt. Run `rondo agree`."
                )
        if _same_text(evidence, name):
            continue
        names = _names(evidence)
        if all(knob.bits in _KEEPS_TEXT for knob in evidence.setting.switches):
            return f"The texts differ ({name}), although {names} must not change them. Run `rondo agree`."
        return (
            f"The texts differ ({name}): {names} may change them, so the rounds do not do the same work. "
            "Follow one text (`--forced`): both sides then do the same work."
        )
    return ""


def _path_fault(evidence: Evidence) -> str:
    """Why the two sides were the same thing; comparing equal settings is no fault, it measures the noise."""
    switches = evidence.setting.switches
    runs = evidence.complete() or evidence.others
    ran_both = {each.block.side for each in runs} == set(SIDES)
    if not switches or not ran_both or engaged_differs(evidence):
        return ""
    base, candidate = (evidence.counters(side) for side in SIDES)
    # A number or a choice may act on a path that both sides take.
    if any(
        knob.kind != "bool" and base.get(knob.engaged) and candidate.get(knob.engaged)
        for knob in switches
    ):
        return ""
    counted = ", ".join(f"{knob.engaged}: {base.get(knob.engaged, 0)}" for knob in switches)
    return f"Both sides took the same path ({counted} on each): {_names(evidence)} changed nothing here."


def _same_text(evidence: Evidence, workload: str) -> bool:
    base, candidate = (evidence.texts(workload, side) for side in SIDES)
    return not base or not candidate or base == candidate


def _workload_results(evidence: Evidence) -> tuple[WorkloadResult, ...]:
    rows = []
    for name in evidence.workloads():
        blocks = [block for block in evidence.blocks() if block.workload == name]
        pairs = pairs_of(blocks, evidence.metric, name)
        if not pairs:
            continue
        ratios = [pair.log_ratio for pair in pairs]
        interval = median_interval(ratios)
        base, candidate = ([b for b in blocks if b.side == side] for side in SIDES)
        rows.append(
            WorkloadResult(
                workload=name,
                n_pairs=len(pairs),
                base_ms_per_round=pooled(base, "ms_per_round"),
                candidate_ms_per_round=pooled(candidate, "ms_per_round"),
                base_tokens_per_round=pooled(base, "tokens_per_round"),
                candidate_tokens_per_round=pooled(candidate, "tokens_per_round"),
                ratio_median=math.exp(statistics.median(ratios)),
                ci95_low_pct=_end(interval, 0),
                ci95_high_pct=_end(interval, 1),
                p_signflip=signflip_p(ratios),
                signs=signs_of(ratios),
                tokens_identical=_same_text(evidence, name),
            )
        )
    return tuple(rows)


def _notes(evidence: Evidence, pairs: tuple[ComparePair, ...]) -> tuple[str, ...]:
    notes = []
    if evidence.metric == "ms_per_token":
        notes.append(
            f"{_names(evidence)} changes how many tokens a round commits, so the time of a token is compared."
        )
    if evidence.setting.reloads:
        notes.append(
            "The model was loaded anew for each side, with an untimed answer behind every load."
        )
    elif evidence.setting.settles:
        notes.append(
            "A flip starts other workers and records the passes anew; an untimed answer follows it."
        )
    interrupted = interrupted_share(evidence.blocks())
    if interrupted is not None and interrupted >= _WORTH_SAYING:
        notes.append(
            f"Other programs interrupted {100 * interrupted:.0f} % of the rounds. The verdict is on the rest; "
            "the mean figures of the two sides are of all."
        )
    notes += _short_answers(evidence)
    if evidence.request.forced:
        notes.append("Both sides followed one given text: the times are those of its rounds.")
    if not evidence.setting.switches:
        notes.append("Both sides are the same setting: this measures the noise.")
    marked = [pair for pair in pairs if pair.outlier]
    if marked:
        which = ", ".join(f"{pair.index} ({pair.outlier})" for pair in marked)
        notes.append(f"Outliers, marked and kept: pair {which}.")
    return tuple(notes)


def _short_answers(evidence: Evidence) -> list[str]:
    """A note on every workload whose answers have fewer tokens than were asked for."""
    asked, notes = evidence.request.tokens, []
    for name in evidence.workloads():
        blocks = [each.block for each in (*evidence.others, *evidence.measured)]
        short = [b for b in blocks if b.workload == name and b.tokens < asked]
        if short:
            full = any(block.finish_reason == "context" for block in short)
            why = "the context was full" if full else "the text they follow ends there"
            tokens = max(block.tokens for block in short)
            notes.append(f"Answers ({name}) have {tokens} tokens, not {asked}: {why}.")
    return notes


def _nothing_to_judge(evidence: Evidence) -> str:
    """What is left of a run without a pair, and how to get an answer."""
    kept = "nothing is kept"
    if evidence.noise:
        kept = (
            f"only the noise floor is kept, for an hour ({evidence.noise.source}): the same run then begins "
            "with its pairs"
        )
    return (
        f"{evidence.stopped or 'It ended'} before a pair was complete, so there are no figures; {kept}. "
        f"Start it again and let {FEWEST_PAIRS} pairs or more end; shorter answers make a pair shorter."
    )


def _names(evidence: Evidence) -> str:
    return ", ".join(PREFIX + knob.name for knob in evidence.setting.switches) or "the same setting"


def _least_name(evidence: Evidence, figures: Figures) -> str:
    wanted = math.log1p(evidence.request.min_effect_pct / 100)
    return (
        "the noise floor" if (figures.floor or 0.0) >= wanted else "the smallest effect asked for"
    )


def _count(n: int) -> str:
    return "1 pair" if n == 1 else f"{n} pairs"


def _interval(figures: Figures) -> str:
    if figures.interval is None:
        return ""
    low, high = (percent(end) for end in figures.interval)
    return f" (95 % interval {low:+.2f} to {high:+.2f} %)"


def _percent(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else percent(log_ratio)


def _end(interval: tuple[float, float] | None, index: int) -> float | None:
    return None if interval is None else percent(interval[index])
