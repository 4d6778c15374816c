# SPDX-License-Identifier: MIT OR Apache-2.0
"""The gate on speculation: what it compares, what it skips, and that it can fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from checkpoints import make_checkpoint

from engine import Engine
from engine.api import GenerateRequest, Generation
from engine.errors import Cancelled, UsageError
from engine.measure.adversaries import half_right, rejecting
from engine.measure.agree_configurations import CONFIGURATIONS, configurations_named
from engine.measure.agreement import AgreementReport, agree
from engine.spec.decode import Round

PROMPTS = ["the pace", "the engine reads"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder)
    knobs = {"QWEN38_CPU_ISA": "reference"}
    with Engine.open(folder, profile=None, knobs=knobs, threads=1) as opened:
        yield opened


def test_a_cancel_in_the_last_answer_is_not_taken_for_a_difference(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    cancel = threading.Event()
    honest = Engine.generate

    def cancelled_when_drafted(
        self: Engine, request: GenerateRequest, **options: object
    ) -> Generation:
        if request.speculate:
            cancel.set()
        return honest(self, request, **options)

    monkeypatch.setattr(Engine, "generate", cancelled_when_drafted)
    before = engine.knobs
    with pytest.raises(Cancelled):
        agree(engine, PROMPTS, tokens=8, cancel=cancel)
    assert engine.knobs is before


def test_the_reference_skips_what_it_lacks_and_says_why(engine: Engine) -> None:
    told: list[tuple[int, int]] = []
    report = agree(
        engine,
        PROMPTS,
        tokens=10,
        configurations=configurations_named(["mtp-2", "trees", "eager", "block"]),
        on_answer=lambda done, total: told.append((done, total)),
    )
    assert report.ok
    assert told[-1] == (10, 10)
    rows = {row.name: row for row in report.configurations}
    assert rows["eager"].skipped == "the readable operations are not recorded"
    assert rows["block"].skipped == "the block drafter is not loaded"
    assert rows["eager"].rounds == rows["block"].rounds == 0
    assert rows["mtp-2"].identical == rows["trees"].identical == 2
    assert rows["mtp-2"].drafted_tokens > rows["mtp-2"].accepted_tokens
    assert report.tokens == 2 * 2 * 10
    assert not report.exact_backend


def test_each_prompt_is_decoded_plainly_once_and_a_difference_names_its_configuration(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    honest, plain = Engine.generate, []

    def dishonest(self: Engine, request: GenerateRequest, **options: object) -> Generation:
        answer = honest(self, request, **options)
        if not request.speculate:
            plain.append(request)
        elif options.get("drafter"):
            ids = list(answer.token_ids)
            ids[4] = (ids[4] + 1) % engine.card.vocab_size
            return replace(answer, token_ids=tuple(ids))
        return answer

    monkeypatch.setattr(Engine, "generate", dishonest)
    configurations = configurations_named(["served", "half-right"])
    report = agree(engine, PROMPTS, tokens=10, configurations=configurations)
    assert len(plain) == 2
    assert [each.configuration for each in report.differences] == ["half-right"] * 2
    assert {each.position for each in report.differences} == {4}
    served, half = report.configurations
    assert (served.identical, half.identical) == (2, 0)
    assert report.identical == 0
    assert half.near_ties + half.divergences == 2


def test_only_what_the_contract_allows_passes() -> None:
    def report(*near_ties: bool) -> AgreementReport:
        from engine.measure.agreement import Difference

        differences = tuple(
            Difference("served", f"prompt {at}", 1, 2, 3, 0.5, near)
            for at, near in enumerate(near_ties)
        )
        return AgreementReport(3, 30, 3 - len(near_ties), differences, 1.0, False, ())

    assert report().ok
    assert report(True, True).ok
    assert (report(True, True).near_ties, report(True, True).divergences) == (2, 0)
    assert not report(True, False).ok
    assert (report(True, False).near_ties, report(True, False).divergences) == (1, 1)


def test_unknown_configurations_and_missing_prompts_are_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no configuration 'tree'"):
        configurations_named(["tree"])
    assert configurations_named([]) == CONFIGURATIONS
    with pytest.raises(UsageError, match="no prompt"):
        agree(engine, [], tokens=5)
    lacking = configurations_named(["block", "eager"])
    with pytest.raises(UsageError, match="block: the block drafter is not loaded"):
        agree(engine, PROMPTS[:1], tokens=2, configurations=lacking)


def test_adversaries_reach_what_they_are_for(engine: Engine) -> None:
    request = GenerateRequest(prompt="the pace", max_tokens=60, ignore_stop_tokens=True)
    text = engine.generate(replace(request, speculate=False)).token_ids
    for make, wanted in ((rejecting, {0, 1, 2, 3, 4, 5, 6}), (half_right, {3})):
        rounds: list[Round] = []
        answer = engine.generate(
            request,
            drafter=make(text, engine.card.vocab_size),
            on_round=lambda done, *_, into=rounds: into.append(done),
        )
        assert answer.token_ids == text
        assert wanted <= {done.accepted for done in rounds}
        assert any(done.accepted < done.drafted for done in rounds)
