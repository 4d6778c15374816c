# SPDX-License-Identifier: MIT OR Apache-2.0
"""The ways that both backends choose between: every field has its switch."""

from __future__ import annotations

from dataclasses import fields

from engine.knobs import KnobSet
from engine.model.ways import Ways, ways_of


def test_every_way_is_asked_for_by_a_switch_that_defaults_to_the_kernels() -> None:
    asked = ways_of(KnobSet({}))
    assert asked.keys() == {field.name for field in fields(Ways)}
    assert Ways(**asked) == Ways()
    assert Ways().wide_nvfp4_until == 1024
