# SPDX-License-Identifier: MIT OR Apache-2.0
"""The protocol and the verdicts of an A/B, on sides whose true difference and noise are known."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_ab import FLIP, compare

from engine.api import CompareProgress, CompareRequest
from engine.errors import UsageError
from engine.fake_compare import CompareScript, ScriptedSides
from engine.measure.ab import NOISE_PAIRS
from engine.measure.ab_noise import NoiseStore
from engine.measure.ab_pairs import SETTLING_ROUNDS
from engine.measure.workloads import CLASSES, workloads_of


@pytest.fixture
def store(tmp_path: Path) -> NoiseStore:
    return NoiseStore(tmp_path / "noise")


def test_a_faster_candidate_is_better_and_the_figures_agree(store: NoiseStore) -> None:
    report = compare(store, CompareScript(effect_pct=-3.0))
    assert report.verdict == "better"
    assert report.metric == "ms_per_round"
    assert report.n_pairs == report.planned_pairs == 10
    assert report.ratio_median == pytest.approx(0.97, abs=0.004)
    assert report.ci95_low_pct < -3.0 + 0.4 < report.ci95_high_pct + 0.8
    assert report.ci95_low_pct <= 100 * (report.ratio_median - 1) <= report.ci95_high_pct
    assert report.p_signflip == 2 / 2**10
    assert report.signs == "-" * 10
    assert report.candidate.ms_per_round / report.base.ms_per_round == pytest.approx(0.97, abs=5e-3)
    assert report.base.tokens_per_round == report.candidate.tokens_per_round
    assert report.tokens_identical
    assert report.engaged_differs
    assert {row.workload for row in report.workloads} == set(CLASSES)
    assert all(row.n_pairs == 10 for row in report.workloads)
    assert 0 < report.noise_floor_pct < 1
    assert report.noise_floor_pct <= report.smallest_resolvable_pct < 1.5
    assert report.more_pairs is None
    assert "less time" in report.reason


def test_pairs_alternate_and_swap_their_order(store: NoiseStore) -> None:
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1, workload="copy")
    sides = ScriptedSides(request, CompareScript())
    report = compare(store, sides=sides, workload="copy")
    assert [pair.order for pair in report.pairs] == ["AB", "BA"] * 5
    names = [side for side, _ in sides.entered]
    noise = ["base"] * 2 * NOISE_PAIRS
    pairs = ["candidate", "base"] + ["base", "candidate", "candidate", "base"] * 5
    assert names == ["base", "candidate", *noise, *pairs]
    blocks = [(b.pair_index, b.order_in_pair, b.side) for b in report.blocks]
    assert sides.held == [1, 2]  # behind the base's warm-up, and before anything is timed
    assert blocks[:4] == [(1, 0, "base"), (1, 1, "candidate"), (2, 0, "candidate"), (2, 1, "base")]
    assert sides.restored == 1


def test_sides_that_draft_differently_both_learn_in_their_warm_up(store: NoiseStore) -> None:
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1, workload="copy")
    sides = ScriptedSides(request, CompareScript())
    sides.setting = replace(sides.setting, drafts_alike=False)
    compare(store, sides=sides, workload="copy")
    assert sides.held == [2]


def test_what_learns_is_warmed_for_a_while(store: NoiseStore) -> None:
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1, workload="copy")
    sides = ScriptedSides(request, CompareScript())
    sides.setting = replace(sides.setting, learning_s=0.05)
    report = compare(store, sides=sides, workload="copy")
    base, both = sides.held
    assert base > 2
    assert both == base + 1  # the candidate drafts by what the base learned
    assert report.n_pairs == 10


def test_a_pair_is_the_pool_of_its_blocks(store: NoiseStore) -> None:
    report = compare(store)
    assert len(report.pairs) == 10
    for pair in report.pairs:
        for side, ms in (("base", pair.base_ms), ("candidate", pair.candidate_ms)):
            times = [
                ms
                for block in report.blocks
                if (block.pair_index, block.side) == (pair.index, side)
                for ms in block.round_ms[SETTLING_ROUNDS:]
            ]
            assert ms == pytest.approx(
                math.fsum(times) / len(times), rel=1e-3
            )  # prompts weigh alike
        assert pair.log_ratio == pytest.approx(math.log(pair.candidate_ms / pair.base_ms))


def test_kernel_differences_add_up_to_that_of_the_round(store: NoiseStore) -> None:
    report = compare(store, CompareScript(effect_pct=5.0))
    assert report.kernels[-1].name == "unaccounted"
    assert report.kernels[0].name == "MLP gate, up"  # the largest share, so the largest difference
    for side in ("base", "candidate"):
        total = sum(getattr(row, f"{side}_ms_per_round") for row in report.kernels)
        assert total == pytest.approx(getattr(report, side).ms_per_round)
    delta = report.candidate.ms_per_round - report.base.ms_per_round
    assert sum(row.delta_ms for row in report.kernels) == pytest.approx(delta)


def test_a_against_a_is_resolved_in_at_most_3_of_40_runs(tmp_path: Path) -> None:
    verdicts = [
        compare(
            NoiseStore(tmp_path / str(seed)),
            CompareScript(effect_pct=0.0, noise_pct=0.7, seed=seed),
            candidate={},
        ).verdict
        for seed in range(40)
    ]
    assert len(verdicts) - verdicts.count("not resolved") <= 3


def test_two_percent_slower_is_called_worse_in_9_of_10_runs(tmp_path: Path) -> None:
    verdicts = [
        compare(
            NoiseStore(tmp_path / str(seed)),
            CompareScript(effect_pct=2.0, noise_pct=1.0, seed=100 + seed),
        ).verdict
        for seed in range(10)
    ]
    assert verdicts.count("worse") >= 9


BUSY = CompareScript(effect_pct=2.0, noise_pct=1.0, interrupted_pct=30.0)


def test_on_a_busy_machine_a_against_a_is_still_resolved_in_at_most_3_of_40_runs(
    tmp_path: Path,
) -> None:
    """Three rounds of ten last a time slice longer, which has nothing to do with either side."""
    reports = [
        compare(
            NoiseStore(tmp_path / str(seed)),
            replace(BUSY, effect_pct=0.0, seed=seed),
            candidate={},
            workload="copy",
            repeats=3,
        )
        for seed in range(40)
    ]
    assert [report.verdict for report in reports].count("not resolved") >= 37
    assert all(25 < report.interrupted_pct < 35 for report in reports)
    assert all("Other programs interrupted" in " ".join(report.notes) for report in reports)


def test_on_a_busy_machine_two_percent_slower_is_called_worse_in_9_of_10_runs(
    tmp_path: Path,
) -> None:
    reports = [
        compare(
            NoiseStore(tmp_path / str(seed)),
            replace(BUSY, seed=200 + seed),
            workload="copy",
            repeats=3,
        )
        for seed in range(10)
    ]
    assert [report.verdict for report in reports].count("worse") >= 9
    medians = [100 * (report.ratio_median - 1) for report in reports]
    assert statistics.fmean(medians) == pytest.approx(2.0, abs=0.3)


def test_repeats_alternate_and_all_of_them_make_a_pair(store: NoiseStore) -> None:
    report = compare(store, workload="copy", repeats=3)
    assert len(report.blocks) == 10 * 3 * 2
    first = [(b.repeat, b.order_in_pair, b.side) for b in report.blocks[:6]]
    assert first == [
        (0, 0, "base"), (0, 1, "candidate"), (1, 0, "candidate"), (1, 1, "base"), (2, 0, "base"),
        (2, 1, "candidate"),
    ]  # fmt: skip
    second = [b.side for b in report.blocks[6:12]]
    assert second == ["candidate", "base", "base", "candidate", "candidate", "base"]
    assert [pair.order for pair in report.pairs] == ["AB", "BA"] * 5
    assert "median of its 3 or more repeats" in report.estimator


def test_a_pair_goes_on_repeating_on_a_busy_machine(store: NoiseStore) -> None:
    """With three rounds of four interrupted, three repeats leave a third of the rounds on both sides."""
    busy = CompareScript(effect_pct=2.0, interrupted_pct=75.0, seed=4)
    report = compare(store, busy, workload="copy", repeats=3)
    sizes = [sum(b.pair_index == n for b in report.blocks) for n in range(1, 11)]
    assert min(sizes) >= 6
    assert 6 < max(sizes) <= 18
    assert all(size % 2 == 0 for size in sizes)
    assert report.n_pairs == 10
    assert report.ratio_median == pytest.approx(1.02, abs=0.006)


def test_the_warm_up_decides_how_often_answers_repeat(store: NoiseStore) -> None:
    """Five rounds of 12 ms: ten of them would be 600 ms, the most are nine."""
    report = compare(store, workload="copy", tokens=16, repeats=0)
    assert report.request.repeats == 9
    assert len(report.blocks) == 10 * 9 * 2


def test_a_floor_of_fewer_pairs_is_measured_again(store: NoiseStore) -> None:
    compare(store, pairs=6)
    assert "10 pairs, in this run" in compare(store).noise_source
    assert "10 pairs, 0 min before" in compare(store, pairs=6).noise_source


def test_noise_is_not_called_a_difference_and_the_reason_says_what_would_be(
    store: NoiseStore,
) -> None:
    report = compare(store, CompareScript(effect_pct=0.1, noise_pct=2.0, seed=3))
    assert report.verdict == "not resolved"
    assert "not equal" in report.reason
    assert f"{report.smallest_resolvable_pct:.2f} % in 4 of 5 runs" in report.reason


def test_a_steady_difference_below_the_floor_is_not_called(store: NoiseStore) -> None:
    quiet = CompareScript(effect_pct=0.5, noise_pct=0.02, seed=1)
    assert compare(store, quiet).verdict == "worse"
    report = compare(store, quiet, min_effect_pct=1.0)
    assert report.verdict == "not resolved"
    assert report.p_signflip < 0.01
    assert "smallest effect asked for" in report.reason


def test_the_noise_is_measured_once_an_hour(store: NoiseStore, tmp_path: Path) -> None:
    first = compare(store)
    assert "in this run" in first.noise_source
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1)
    sides = ScriptedSides(request, CompareScript(seed=9))
    second = compare(store, sides=sides)
    assert "min before" in second.noise_source
    assert len(sides.entered) == 2 + 8 * (1 + 10)
    assert second.noise_floor_pct == first.noise_floor_pct
    longer = compare(store, tokens=80)
    assert "in this run" in longer.noise_source
    [file, _] = sorted((tmp_path / "noise").glob("*.json"))
    file.write_text("{}")
    for other in (tmp_path / "noise").glob("*.json"):
        other.write_text("not json")
    assert "in this run" in compare(store).noise_source


def test_noise_that_cannot_be_kept_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "noise").write_text("no folder")
    store = NoiseStore(tmp_path / "noise")
    for _ in range(2):
        assert "in this run" in compare(store, workload="copy", pairs=6).noise_source
    assert [path.name for path in tmp_path.iterdir()] == ["noise"]


def test_a_switch_that_only_proposes_is_compared_by_the_token(store: NoiseStore) -> None:
    report = compare(store, candidate={"QWEN38_MTP_DEPTH": "2"})
    assert report.metric == "ms_per_token"
    assert any("time of a token" in note for note in report.notes)
    assert report.pairs[0].base_ms == pytest.approx(report.base.ms_per_token, rel=0.05)


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ({"QWEN38_VERIFY_GRAPH": "0"}, "must not change"),
        ({"QWEN38_CPU_ISA": "portable"}, "forced"),
    ],
)
def test_different_texts_make_it_invalid_before_anything_is_timed(
    store: NoiseStore, switch: dict[str, str], words: str
) -> None:
    report = compare(store, CompareScript(same_text=False), candidate=switch)
    assert report.verdict == "invalid"
    assert not report.tokens_identical
    assert words in report.reason
    assert report.blocks == ()
    assert report.n_pairs == 0


def test_the_same_path_on_both_sides_makes_it_invalid(store: NoiseStore) -> None:
    report = compare(store, CompareScript(same_path=True))
    assert report.verdict == "invalid"
    assert not report.engaged_differs
    assert "QWEN38_VERIFY_GRAPH changed nothing" in report.reason


def test_equal_settings_are_no_fault(store: NoiseStore) -> None:
    report = compare(store, candidate={})
    assert report.verdict == "not resolved"
    assert not report.engaged_differs
    assert any("same setting" in note for note in report.notes)


def test_reloads_happen_once_a_side_change_and_answers_behind_them_are_untimed(
    store: NoiseStore,
) -> None:
    request = CompareRequest(
        candidate={"QWEN38_CPU_ISA": "portable"}, tokens=64, workload="copy", pairs=6, repeats=1
    )
    sides = ScriptedSides(request, CompareScript())
    report = compare(store, sides=sides, candidate=request.candidate, workload="copy", pairs=6)
    assert report.reloaded
    assert any("loaded anew" in note for note in report.notes)
    names = [side for side, _ in sides.entered]
    changes = sum(one != other for one, other in itertools.pairwise(names))
    # Warming, back for the noise, both sides of the uncounted pair, then one a pair.
    assert changes == 1 + 1 + 2 + 6
    assert sum(fresh for _, fresh in sides.entered) == 6
    assert sides.runs == 2 + 4 * (6 + 1 + 6)
    assert len(report.blocks) == 12


def test_progress_counts_pairs_and_guesses_what_is_left(store: NoiseStore) -> None:
    seen: list[CompareProgress] = []
    report = compare(store, on_progress=seen.append, workload="copy")
    assert [p.done_pairs for p in seen] == sorted(p.done_pairs for p in seen)
    assert (
        seen[0].left_s is seen[1].left_s is None
    )  # how often answers repeat is decided behind these
    assert seen[-1].done_pairs == 9
    assert seen[-1].pairs == report.pairs[:9] or len(seen[-1].pairs) == 9
    assert all(p.left_s >= 0 for p in seen[2:])
    stages = [p.stage for p in seen]
    assert "warming the base" in stages[0]
    assert any(stage.startswith("noise of the base against itself, 10 of 10") for stage in stages)
    assert stages[-1] == "pair 10 of 10: copy, base"


def test_no_garbage_is_collected_inside_an_answer(store: NoiseStore) -> None:
    states = []
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1, workload="copy")
    sides = ScriptedSides(request, CompareScript(), lambda ms, n: states.append(gc.isenabled()))
    assert gc.isenabled()
    compare(store, sides=sides, workload="copy")
    assert not any(states)
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pairs": 5}, "5 pairs"),
        ({"pairs": 201}, "201 pairs"),
        ({"repeats": 26}, "26 repeats"),
        ({"repeats": -1}, "-1 repeats"),
        ({"tokens": 7}, "7 tokens"),
        ({"workload": "prose"}, "'prose' is not a workload"),
        ({"workload": "prompt"}, "empty"),
        ({"prompt": "Hello"}, "the workload is mix"),
        ({"reference": "Hello"}, "reference text"),
        ({"reference": "Hello", "forced": True}, "reference text"),
        ({"min_effect_pct": -1.0}, "-1.0 %"),
        ({"min_effect_pct": math.nan}, "nan %"),
    ],
)
def test_a_request_that_measures_nothing_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        workloads_of(replace(CompareRequest(candidate=FLIP), **changes))


def test_an_outlier_is_marked_and_kept(store: NoiseStore) -> None:
    request = CompareRequest(candidate=FLIP, tokens=64, repeats=1, workload="copy")
    sides = ScriptedSides(request, CompareScript(effect_pct=3.0, noise_pct=0.1))
    late = 2 + 2 * NOISE_PAIRS + 2 + 2 * 4

    class Hiccup:
        setting = sides.setting
        enter, hold, restore = sides.enter, sides.hold, sides.restore

        def run(self, *args: object, **kwargs: object) -> object:
            one = sides.run(*args, **kwargs)
            if sides.runs != late + 1:
                return one
            slow = tuple(ms * 1.5 for ms in one.block.round_ms)
            return replace(one, block=replace(one.block, round_ms=slow))

    report = compare(store, sides=Hiccup(), workload="copy")
    assert [pair.outlier for pair in report.pairs].count("far") == 1
    assert report.n_pairs == 10
    assert any(note.startswith("Outliers, marked and kept: pair 5") for note in report.notes)
