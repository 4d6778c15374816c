# SPDX-License-Identifier: MIT OR Apache-2.0
"""Why something failed, in words for the one who gave the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import reason_of


def _reason(path: Path) -> str:
    with pytest.raises((OSError, UnicodeDecodeError)) as caught:
        path.read_text("utf-8")
    return reason_of(caught.value)


def test_bytes_that_are_no_text_are_told_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ab\xff")
    assert _reason(tmp_path / "binary") == "not UTF-8 text (byte 2)"


def test_a_file_that_cannot_be_opened_is_told_without_its_path(tmp_path: Path) -> None:
    assert _reason(tmp_path / "none") == "No such file or directory"
    assert _reason(tmp_path) == "Is a directory"


def test_an_error_without_words_has_its_name() -> None:
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("too short")) == "too short"
