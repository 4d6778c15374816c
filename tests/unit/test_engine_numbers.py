# SPDX-License-Identifier: MIT OR Apache-2.0
"""Numbers as people read them: one way of grouping everywhere, on terminals of any encoding."""

from __future__ import annotations

import ast
import io
import sys

import numpy as np
import pytest
from source_tree import ROOT, python_files

from engine.cli import USAGE, main
from engine.numbers import byte_size, grouped, significant


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (999, 0, "999"),
        (9090, 0, "9\u202f090"),
        (12345.6, 0, "12\u202f346"),
        (12345.6, 1, "12\u202f345.6"),
        (-1234, 0, "-1\u202f234"),
        (np.int64(4096), 0, "4\u202f096"),
        (2**63 - 1, 0, "9\u202f223\u202f372\u202f036\u202f854\u202f775\u202f807"),
    ],
)
def test_groups_of_three_are_parted_and_no_digit_is_lost(
    value: float, decimals: int, text: str
) -> None:
    assert grouped(value, decimals) == text


def test_small_sizes_are_not_rounded_to_nothing() -> None:
    sizes = (12, 1_234, 49_152, 16_400_000, 5_120_000_000, 2_000_000_000_000_000)
    texts = ["12 B", "1.23 kB", "49.2 kB", "16.4 MB", "5.12 GB", "2\u202f000 TB"]
    assert [byte_size(size) for size in sizes] == texts
    assert significant(0) == "0.00"


@pytest.mark.parametrize(
    ("encoding", "text"), [("utf-8", "9\u202f999"), ("latin-1", "9 999"), ("ascii", "9 999")]
)
def test_a_terminal_without_the_space_gets_a_plain_one(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str
) -> None:
    told = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stderr", told)
    for _ in range(2):
        assert main(["bench", "--suite", "plan", "--context", "9999"]) == USAGE
    told.flush()
    written = told.buffer.getvalue().decode(encoding)
    assert written.count(f"A context of {text} tokens") == 2


def test_what_else_an_encoding_lacks_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stderr", told)
    main(["bench", "--suite", "plan", "--context", "9999"])
    print("5\u202f€", file=told, flush=True)
    assert told.buffer.getvalue().endswith(b"5 \\u20ac\n")


def test_every_number_is_grouped_by_the_one_rule() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("app", "engine", "ops", "kernels")
        if path != ROOT / "engine/numbers.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FormattedValue)
        and isinstance(node.format_spec, ast.JoinedStr)
        and any(
            "," in getattr(part, "value", "")
            for part in node.format_spec.values
            if isinstance(part, ast.Constant)
        )
    ]
    assert not found, f"use engine.numbers.grouped: {found}"
