# SPDX-License-Identifier: MIT OR Apache-2.0
"""Profiles that are written: what is read back, and that a failed write leaves the old file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import RondoError, UsageError
from engine.knob_rows import profile_of
from engine.knobs import KnobSet, read_profile, write_profile


def test_a_written_profile_is_read_back(tmp_path: Path) -> None:
    knobs = KnobSet.resolve(
        environ={}, changes={"QWEN38_MTP_DEPTH": " 1 ", "QWEN38_CORPUS": "a folder/ü = #1"}
    )
    path = tmp_path / "new folder" / "my profile.env"
    write_profile(path, profile_of(knobs), note="two\nlines")
    assert path.read_text("utf-8").startswith("# two\n# lines\nQWEN38_")
    assert (
        read_profile(path)
        == profile_of(knobs)
        == {
            "QWEN38_MTP_DEPTH": "1",
            "QWEN38_CORPUS": "a folder/ü = #1",
        }
    )
    assert KnobSet.resolve(profile=path, environ={}).signature() == knobs.signature()


def test_a_set_of_defaults_is_an_empty_profile(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.env", profile_of(KnobSet({})))
    assert read_profile(tmp_path / "p.env") == {}


@pytest.mark.parametrize(
    "values", [{"QWEN38_NO": "1"}, {"QWEN38_MTP_DEPTH": "9"}, {"QWEN38_CORPUS": "a\nQWEN38_X=1"}]
)
def test_what_no_profile_may_hold_is_not_written(values: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "p.env"
    path.write_text("QWEN38_MTP_DEPTH=2\n")
    with pytest.raises(UsageError):
        write_profile(path, values)
    assert read_profile(path) == {"QWEN38_MTP_DEPTH": "2"}


def test_a_place_that_takes_no_file_is_named_and_nothing_is_left_over(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RondoError, match="cannot be written"):
        write_profile(tmp_path / "folder", {})
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "file").touch()
    with pytest.raises(RondoError, match="cannot be written"):
        write_profile(tmp_path / "file" / "p.env", {})
