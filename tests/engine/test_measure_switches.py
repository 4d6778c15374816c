# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tables of switches: what is compared, on equal rounds, and where the table goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api import GenerateRequest, KnobRow, Message
from engine.engine import Engine
from engine.errors import UsageError
from engine.knobs import PREFIX
from engine.measure.shapes import named_shape
from engine.measure.workloads import check_request
from engine.paths import demo_model
from ops import measure_switches
from ops.measure_switches import main, measure
from ops.slice_model import write_slice
from ops.switch_sections import ALTERNATIVES, SECTIONS, SLICE, candidates, parsed
from ops.switch_table import put

DEMO, ON_SLICE = SECTIONS["demo"], SECTIONS["slice"]
ROUTER = {"LEN_SWITCH": "1", "LOOKUP": "1", "MTP_DEPTH": "4"}
CHAIN = {"LEN_SWITCH": "0", "LOOKUP": "1", "MTP_DEPTH": "3"}
PLAIN = "LEN_SWITCH=0,MTP_DEPTH=0,LOOKUP=0,VERIFY_ROWS=1"
Rows = dict[str, KnobRow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four layers of the demo model's shape."""
    target = tmp_path_factory.mktemp("slice") / "model"
    write_slice(named_shape("demo:4", mtp=True).config, target)
    return target


@pytest.fixture(scope="module")
def rows(folder: Path) -> Rows:
    with Engine.open(folder, threads=1, context_tokens=64) as engine:
        return {row.name.removeprefix(PREFIX): row for row in engine.knob_rows()}


def _served(rows: Rows, values: Mapping[str, str]) -> Rows:
    changed = {name: replace(rows[name], value=value) for name, value in values.items()}
    return {**rows, **changed}


def test_alternatives_differ_from_the_served_value_whichever_is_served(rows: Rows) -> None:
    router = dict(candidates(DEMO, _served(rows, ROUTER)))
    chain = dict(candidates(DEMO, _served(rows, CHAIN)))
    assert {"LEN_SWITCH=0,MTP_DEPTH=3", PLAIN, "LOOKUP=0"} <= set(router)
    assert {"MTP_TREE=2", "MTP_DEPTH=2", "MTP_DEPTH=3"} <= set(router)
    assert not {"LEN_SWITCH=1,LOOKUP=1,MTP_DEPTH=4", "MTP_DEPTH=4", "LOOKUP=1"} & set(router)
    assert {"LEN_SWITCH=1,LOOKUP=1,MTP_DEPTH=4", "MTP_DEPTH=4", "LOOKUP=0"} <= set(chain)
    assert not {"LEN_SWITCH=0,MTP_DEPTH=3", "MTP_DEPTH=3", "LOOKUP=1"} & set(chain)
    assert {router[name] for name in ALTERNATIVES if "MTP" in name and name in router} == {
        "proposes-only"
    }
    assert router["COMMIT_IN_VERIFY=0,FUSED_COMMIT=0"] == "near-tie"


def test_the_plain_alternative_drafts_nothing_on_the_demo_model(rows: Rows) -> None:
    assert PLAIN in dict(candidates(DEMO, _served(rows, ROUTER)))
    changes = {PREFIX + name: value for name, value in parsed(PLAIN).items()}
    request = GenerateRequest(messages=(Message("user", "Why?"),), max_tokens=8)
    with Engine.open(demo_model(), threads=1, context_tokens=128, knobs=changes) as engine:
        assert engine.generate(request).drafted_tokens == 0


def test_a_change_that_amounts_to_another_is_measured_once(rows: Rows) -> None:
    served = _served(rows, {"LEN_SWITCH": "0", "LOOKUP": "1", "MTP_DEPTH": "4"})
    names = [name for name, _ in candidates(DEMO, served)]
    assert "LEN_SWITCH=0,MTP_DEPTH=3" in names
    assert "MTP_DEPTH=3" not in names


def test_kernels_get_equal_rounds_and_drafting_the_served_ones(rows: Rows) -> None:
    kernels = DEMO.request("FUSED_NORM=0", "near-tie", rows, pairs=6, tokens=16)
    assert dict(kernels.base) == {"QWEN38_LEN_SWITCH": "0", "QWEN38_MTP_DEPTH": "3"}
    assert dict(kernels.candidate) == {**dict(kernels.base), "QWEN38_FUSED_NORM": "0"}
    assert kernels.forced
    drafting = DEMO.request("LOOKUP=0", "proposes-only", rows, pairs=6, tokens=16)
    assert drafting.base == ()
    assert drafting.candidate == (("QWEN38_LOOKUP", "0"),)
    assert not drafting.forced


def test_the_slice_has_its_own_list_and_only_takes_any_switch(rows: Rows) -> None:
    named = [name for name, _ in candidates(ON_SLICE, rows)]
    assert named
    assert set(named) <= set(SLICE)
    assert all(
        name in named
        for name in SLICE
        if all(
            rows[each].available and rows[each].value != value
            for each, value in parsed(name).items()
        )
    )
    only = ["COMMIT_IN_VERIFY=0,RANKK=0", "QWEN38_GQA_FROM=1"]
    assert [name for name, _ in candidates(ON_SLICE, rows, only)] == only
    for wrong in ("NO_SUCH=1", "LOOKUP"):
        with pytest.raises(UsageError):
            list(candidates(ON_SLICE, rows, [wrong]))


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
@pytest.mark.parametrize("tokens", [8, 200])
def test_every_request_is_accepted(section: object, tokens: int, rows: Rows) -> None:
    for changes, bits in candidates(section, rows):
        check_request(section.request(changes, bits, rows, pairs=6, tokens=tokens))


def test_a_slice_verifies_and_accepts_the_same_four_rows_on_both_sides(folder: Path) -> None:
    only = ["VERIFY_GRAPH=0", "DECODE_ATTN=0"]
    lines = list(measure(str(folder), ON_SLICE, only=only, pairs=6, tokens=40, threads=1))
    assert [line.candidate for line in lines] == only
    for line in lines:
        report = line.report
        assert report is not None, line.why
        assert report.verdict in ("better", "worse", "not resolved"), report.reason
        assert report.metric == "ms_per_round"
        assert report.engaged_differs
        [rounds] = {(b.rounds, b.drafted_tokens, b.accepted_tokens) for b in report.blocks}
        count, drafted, accepted = rounds
        assert {block.tokens for block in report.blocks} == {40}
        assert accepted == drafted
        # Only the first rounds, before three tokens are known, and the last one are shorter.
        assert 3 * (count - 4) <= drafted <= 3 * count
        assert count <= 14


def test_the_table_replaces_its_own_section_alone(tmp_path: Path) -> None:
    guide = tmp_path / "measured.md"
    guide.write_text(f"# Figures\n\n{DEMO.begin}\nold\n{DEMO.end}\n\n## More\n", "utf-8")
    put("on a slice\n", ON_SLICE, guide)
    put("new\n", DEMO, guide)
    put("on a slice again\n", ON_SLICE, guide)
    assert guide.read_text("utf-8") == (
        f"# Figures\n\n{DEMO.begin}\nnew\n{DEMO.end}\n\n## More\n\n## {ON_SLICE.heading}\n\n"
        f"{ON_SLICE.begin}\non a slice again\n{ON_SLICE.end}\n"
    )


def test_a_guide_with_one_mark_is_left_alone(tmp_path: Path) -> None:
    guide = tmp_path / "measured.md"
    guide.write_text(f"{DEMO.begin}\nold\n", "utf-8")
    with pytest.raises(UsageError, match="once each"):
        put("new\n", DEMO, guide)
    assert guide.read_text("utf-8") == f"{DEMO.begin}\nold\n"


def test_the_command_writes_what_it_prints(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guide = tmp_path / "measured.md"
    guide.write_text("# Figures\n", "utf-8")
    monkeypatch.setattr(measure_switches, "GUIDE", guide)
    few = ["--section", "slice", "--model", str(folder), "--pairs", "6", "--tokens", "12"]
    assert main([*few, "--only", "FUSE_PROJ=0", "--write"]) == 0
    printed = capsys.readouterr().out
    assert "| `FUSE_PROJ=0` | identical |" in printed
    assert "not measured" not in printed
    assert printed.strip() in guide.read_text("utf-8")
    assert main([*few, "--only", "NO_SUCH=1"]) == 1
    assert "NO_SUCH" in capsys.readouterr().err
