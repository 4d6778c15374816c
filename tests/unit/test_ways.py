# SPDX-License-Identifier: MIT OR Apache-2.0
"""The ways that the backends choose between: each follows its switch."""

from __future__ import annotations

from dataclasses import fields

import pytest

from engine.knobs import KnobSet
from engine.model.cuda_switches import CudaSwitches
from engine.model.switches import Switches
from engine.model.ways import Ways, ways_of

KINDS = [Ways, Switches, CudaSwitches]


@pytest.mark.parametrize("kind", KINDS)
def test_a_way_has_the_default_and_the_type_of_its_switch(kind: type[Ways]) -> None:
    asked = ways_of(kind, KnobSet({}))
    assert asked.keys() >= {field.name for field in fields(Ways)}
    types = {field.name: field.type for field in fields(kind)}
    for name, value in asked.items():
        assert value == getattr(kind(), name), name
        assert type(value).__name__ == types[name], name


def test_a_way_takes_the_value_of_its_switch() -> None:
    changes = {
        "QWEN38_NVFP4_PREFILL_V2_UNTIL": "33",
        "QWEN38_FUSED_HEAD": "0",
        "QWEN38_GQA_FROM": "7",
        "QWEN38_OP_TIMES": "1",
    }
    knobs = KnobSet({}).changed(changes)
    native, gpu = Switches.of(knobs, "portable"), CudaSwitches.of(knobs)
    for switches in (native, gpu):
        assert (switches.wide_nvfp4_until, switches.head, switches.norm) == (33, False, True)
    assert native.attention_library_from == 7
    assert gpu.timed


def test_the_kernels_are_the_default() -> None:
    ways = Ways()
    assert ways.wide_nvfp4
    assert ways.wide_nvfp4_until == 1024
    assert not ways.solve
