# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the registry claims: rows that act are consulted, the others say why, and the guide is in step."""

from __future__ import annotations

import ast

import pytest
from source_tree import ROOT, python_files

from engine.knob_guide import guide
from engine.knob_left_out import LEFT_OUT
from engine.knob_rows import knob_rows, served_values
from engine.knobs import KNOBS, PREFIX, KnobSet, knob_named
from engine.model.ways import way

READERS = ("flag", "number", "decimal", "choice", "text", "path")


def consulted(source: str) -> set[str]:
    """Names of switches that a module asks a KnobSet for, or names as those of its ways."""
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in READERS)
            or (isinstance(node.func, ast.Name) and node.func.id == way.__name__)
        )
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_a_consulted_switch_is_seen() -> None:
    source = 'a = knobs.flag("A") or self.knobs.path("B")\nc = knobs.raw("C")\nd = way("D")'
    assert consulted(source) == {"A", "B", "D"}


def test_every_switch_that_acts_is_consulted_and_every_consulted_one_acts() -> None:
    asked = set().union(*(consulted(p.read_text("utf-8")) for p in python_files("engine")))
    acting = {knob.name for knob in KNOBS if knob.backends}
    known = {knob.name for knob in KNOBS}
    silent, hidden = sorted(acting - asked), sorted((asked & known) - acting)
    assert not silent, "these rows claim to act, but no module asks for them"
    assert not hidden, "these rows are asked for, but claim to act nowhere"


def test_no_name_is_both_declared_and_left_out() -> None:
    assert not {knob.name for knob in KNOBS} & set(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_the_guide_is_in_step() -> None:
    written = (ROOT / "ops" / "guides" / "knobs.md").read_text("utf-8")
    assert written == guide(), "write it anew: python -m engine knobs --markdown"


def test_the_guide_names_every_switch_once_as_a_row() -> None:
    rows = [line.split("|")[1].strip() for line in guide().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(
        f"`{PREFIX}{name}`" for name in [*(knob.name for knob in KNOBS), *LEFT_OUT]
    )


def test_a_row_carries_value_source_served_value_and_count() -> None:
    knobs = KnobSet.resolve(environ={}, changes={"QWEN38_MTP_DEPTH": "1"})
    rows = knob_rows(
        knobs,
        backend="native",
        offers=(),
        engaged={"drafted tokens": 7},
        served={"QWEN38_MTP_DEPTH": "2"},
    )
    assert [row.name for row in rows] == [PREFIX + knob.name for knob in KNOBS]
    row = next(row for row in rows if row.name == "QWEN38_MTP_DEPTH")
    assert (row.value, row.source, row.default, row.served) == ("1", "caller", "3", "2")
    assert (row.low, row.high, row.engaged_count) == (0, 4, 7)
    assert (row.available, row.reason) == (False, "the MTP head is not loaded")
    for row in rows:
        assert row.available or row.reason
        assert "(" not in row.reason or row.reason.endswith(")")


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_row_without_effect_on_the_cpu_is_at_its_default_in_the_served_profile(knob) -> None:
    served = served_values().get(PREFIX + knob.name, knob.default)
    assert "native" in knob.backends or served == knob.default


def test_groups_keep_together() -> None:
    order = [knob.group for knob in KNOBS]
    assert [g for at, g in enumerate(order) if g not in order[:at]] == [
        g for at, g in enumerate(order) if at == 0 or order[at - 1] != g
    ]


def test_a_near_name_is_guessed() -> None:
    with pytest.raises(Exception, match="FUSED_GDNTREE") as caught:
        knob_named("QWEN38_FUSED_GDNTRE")
    assert "Did you mean" in caught.value.next_step
    with pytest.raises(Exception, match="rondo knobs"):
        knob_named("QWEN38_" + "Z" * 9000)
