# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records of an A/B of two switch settings: what is asked, how it proceeds, what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

VERDICTS = ("better", "worse", "not resolved", "invalid", "cancelled")
WORKLOADS = ("mix", "in-domain", "copy", "edit", "out-of-domain", "prompt")
METRICS = ("ms_per_round", "ms_per_token")
FEWEST_PAIRS = 6  # with five, two-sided p cannot reach 0.05
DEFAULT_PAIRS = 10
MOST_PAIRS = 200
MOST_REPEATS = 25
FEWEST_TOKENS, DEFAULT_TOKENS, MOST_TOKENS = 8, 128, 4096  # of an answer
MOST_LABEL = 200  # characters

Changes = tuple[tuple[str, str], ...]  # (switch with its prefix, value), sorted by name


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Two settings of the loaded model to alternate in one process.

    base, candidate: changes on top of the values in effect; a mapping is turned into sorted pairs.
    workload: one of WORKLOADS; "mix" is the four classes in turn, "prompt" the operator's own `prompt`.
    pairs: one pair is both sides on every prompt of the workload. tokens: of each answer. repeats: answers of
    each side to a prompt within a pair, in turn, and more where other programs interrupt many rounds; 0 lets
    the warm-up decide by how long they take.
    forced: both sides follow one text, `reference` or, where that is empty, what the base answers, so that
    a switch that moves near ties can be timed too.
    min_effect_pct: an effect below it is not called, however sure it is.
    """

    candidate: Changes | Mapping[str, str] = ()
    base: Changes | Mapping[str, str] = ()
    workload: str = "mix"
    pairs: int = DEFAULT_PAIRS
    tokens: int = DEFAULT_TOKENS
    prompt: str = ""
    forced: bool = False
    reference: str = ""
    min_effect_pct: float = 0.0
    label: str = ""
    repeats: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", tuple(sorted(dict(self.base).items())))
        object.__setattr__(self, "candidate", tuple(sorted(dict(self.candidate).items())))


@dataclass(frozen=True, slots=True)
class ComparePair:
    """Both sides once, in the primary metric; `workload` "all" pools the prompts of the pair.

    `base_ms` and `candidate_ms` are of the rounds that are compared, see `engine.measure.ab_pairs`. `order`: AB
    or BA, A being the base. `log_ratio`: ln(candidate / base). `outlier`: "" or by Tukey's fences mild (1.5
    interquartile ranges) or far (3); an outlier is marked and kept.
    """

    index: int
    order: str
    base_ms: float
    candidate_ms: float
    log_ratio: float
    workload: str = "all"
    outlier: str = ""


@dataclass(frozen=True, slots=True)
class CompareProgress:
    """Where an A/B stands; `stage` is a phrase, `pairs` the pooled pairs so far."""

    done_pairs: int
    planned_pairs: int
    stage: str
    pairs: tuple[ComparePair, ...] = ()
    left_s: float | None = None  # estimate, None until a pair is done


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side over all its timed blocks. `engaged`: counters of the paths it took, name and count."""

    ms_per_round: float
    tokens_per_round: float
    ms_per_token: float | None
    decode_tps: float | None
    acceptance_pct: float | None
    read_gbps: float | None
    rounds: int
    tokens: int
    knobs: Changes = ()  # that differ from their defaults
    engaged: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """The pairs of one class of prompts; exploratory, the verdict is on the pool."""

    workload: str
    n_pairs: int
    base_ms_per_round: float | None
    candidate_ms_per_round: float | None
    base_tokens_per_round: float | None
    candidate_tokens_per_round: float | None
    ratio_median: float  # of the primary metric, candidate over base
    ci95_low_pct: float | None
    ci95_high_pct: float | None
    p_signflip: float
    signs: str  # one a pair: + the candidate is slower, - faster, = equal
    tokens_identical: bool


@dataclass(frozen=True, slots=True)
class KernelDelta:
    """One operation on both sides; the row "unaccounted" is the rest of the round."""

    name: str
    base_ms_per_round: float
    candidate_ms_per_round: float
    delta_ms: float


@dataclass(frozen=True, slots=True)
class CompareBlock:
    """One measured run: one answer on one side. `side` base or candidate; times and bytes are per round.

    `round_ms` are the very values the ring of round records shows. `interrupted` are the indices of those in
    which the system took the processor away.
    """

    pair_index: int
    order_in_pair: int  # 0 or 1, within the repeat
    side: str
    workload: str
    prompt_tokens: int
    tokens: int
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    round_ms: tuple[float, ...]
    draft_ms: float
    verify_ms: float
    other_ms: float
    ttft_ms: float
    prefill_tps: float | None
    decode_tps: float | None
    bytes_per_round: int
    tokens_sha256_12: str
    finish_reason: str
    test_time: str  # ISO 8601, UTC
    repeat: int = 0
    interrupted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompareReport:
    """The answer of an A/B.

    verdict: one of VERDICTS, on the pooled primary `metric`; `reason` says it in words. Ratios are candidate
    over base, percentages are of the base, negative is faster. `p_signflip`: two-sided paired sign-flip test
    on the mean of log ratios. `ci95_*_pct`: exact interval of the median, None below 6 pairs;
    `bootstrap_*_pct`: percentile bootstrap of the median, to be read beside it and never judged by, None
    below 10. `noise_floor_pct`: what 95 of 100 runs of this many pairs stay below when nothing differs.
    `smallest_resolvable_pct`: found in 4 of 5 runs of this noise. `more_pairs` would resolve the median seen
    here if it is real, None where it is resolved or out of reach. `estimator`: what the figures of a pair
    are, in words; `interrupted_pct` of the rounds were cut off by other programs. `run_id` is empty where the
    run could not be stored; `not_stored` says why.
    """

    verdict: str
    reason: str
    metric: str
    n_pairs: int
    planned_pairs: int
    ratio_median: float | None
    ci95_low_pct: float | None
    ci95_high_pct: float | None
    bootstrap_low_pct: float | None
    bootstrap_high_pct: float | None
    p_signflip: float | None
    signs: str
    noise_floor_pct: float | None
    noise_source: str  # where the floor comes from, in words
    smallest_resolvable_pct: float | None
    more_pairs: int | None
    tokens_identical: bool
    engaged_differs: bool
    reloaded: bool  # the sides needed a reload each time
    base: SideFigures | None
    candidate: SideFigures | None
    workloads: tuple[WorkloadResult, ...]
    kernels: tuple[KernelDelta, ...]
    pairs: tuple[ComparePair, ...]  # pooled
    workload_pairs: tuple[ComparePair, ...]  # of each class
    blocks: tuple[CompareBlock, ...]
    request: CompareRequest
    model_name: str
    model_path: str
    weight_format: str
    threads: int
    machine: Mapping[str, object]
    seconds: float
    label: str = ""
    notes: tuple[str, ...] = ()
    run_id: str = ""
    not_stored: str = ""
    base_knobs: Changes = ()  # every switch that differs from its default on this side
    candidate_knobs: Changes = ()
    backend: str = ""  # that of the model card; empty in runs stored before it was kept
    context_tokens: int = 0  # room of the engine; 0 as above
    estimator: str = ""
    interrupted_pct: float | None = None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of the runs list. `damaged` says what is wrong with a file that cannot be read."""

    run_id: str
    kind: str  # compare or bench
    test_time: str  # ISO 8601, UTC
    label: str
    model_name: str
    machine: str  # processor
    headline: str  # what came out, in one line
    verdict: str  # of an A/B, else empty
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One stored run: the report of an A/B, or the figures of a bench as plain values."""

    summary: RunSummary
    request: Mapping[str, object]  # enough to run it again
    machine: Mapping[str, object]
    compare: CompareReport | None
    bench: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One value in which two runs differ; `delta_pct` where both are numbers."""

    section: str  # request, switches, machine, figures or kernels
    name: str
    first: str
    second: str
    delta_pct: float | None = None


class CompareHandle(Protocol):
    """The part of `engine.api.EngineHandle` about A/B runs and stored runs.

    Calls about stored runs read or write small files in the caller's thread and raise RondoError.
    """

    def compare(self, request: CompareRequest) -> int:
        """Queue an A/B and return its id; CompareProgressed, then CompareFinished or CompareFailed follow.

        `cancel` stops it within one round and keeps the pairs that are complete. The state is "comparing"
        meanwhile: the display should pull twice a second and draw nothing else. Answers and changes of switches
        are refused (Failed, KnobsRefused); a load ends the A/B first.
        """

    def runs(self, *, offset: int = 0, limit: int = 200) -> tuple[RunSummary, ...]:
        """Stored runs, newest first."""

    def run(self, run_id: str) -> RunRecord:
        """One stored run, read whole."""

    def label_run(self, run_id: str, label: str) -> None:
        """Give a stored run another label."""

    def delete_run(self, run_id: str) -> None:
        """Remove a stored run."""

    def export_runs(self, run_ids: tuple[str, ...], folder: str) -> tuple[str, ...]:
        """Write the runs as CSV files into `folder` and return their paths; nothing is overwritten."""

    def export_report(self, report: CompareReport, folder: str) -> tuple[str, ...]:
        """The same for a report in memory, for instance one that could not be stored."""

    def diff_runs(self, first: str, second: str) -> tuple[RunDifference, ...]:
        """What differs between two stored runs."""

    def rerun(self, run_id: str) -> int:
        """Queue the stored A/B once more with every switch as it was then; returns its id as `compare` does.

        Raises UsageError where another model is loaded, or the same on another device, or the run is a bench.
        """
