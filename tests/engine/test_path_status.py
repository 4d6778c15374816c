# SPDX-License-Identifier: MIT OR Apache-2.0
"""A path whose links lead in a circle is named as such, wherever a user may give one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

from engine.cli import main
from engine.commands.doctor import _data
from engine.errors import RondoError
from engine.load.files import model_folder, read_text
from engine.load.writer import new_folder
from engine.measure.export_csv import require_new
from engine.path_status import is_folder, make_folder, path_status
from engine.paths import profile_path
from engine.replace_file import replace_text
from engine.spec.corpus import build_corpus, open_corpus, refuse_occupied
from engine.spec.suffix_store import StoreOptions, SuffixStore

CIRCLE = os.strerror(errno.ELOOP)


@pytest.fixture
def circle(tmp_path: Path) -> Path:
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path / "there"


def test_what_stands_at_a_path(tmp_path: Path, circle: Path) -> None:
    assert path_status(tmp_path / "none") is None
    assert path_status(tmp_path / "none" / "below") is None
    assert not is_folder(tmp_path / "none")
    assert is_folder(tmp_path)
    (tmp_path / "file").write_text("")
    assert path_status(tmp_path / "file") is not None
    assert not is_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        path_status(tmp_path / "file" / "below")
    for path in (circle, circle / "below"):
        for ask in (path_status, is_folder, make_folder):
            with pytest.raises(OSError, match=CIRCLE):
                ask(path)
    make_folder(tmp_path / "new" / "below", mode=0o700)
    assert (tmp_path / "new" / "below").stat().st_mode & 0o777 == 0o700
    make_folder(tmp_path / "new")


def _open_writer(folder: Path) -> None:
    with new_folder(folder, kept=""):
        pass


PLACES: dict[str, Callable[[Path], object]] = {
    "model": model_folder,
    "file of a model": lambda path: read_text(path.parent, path.name),
    "file in a model": lambda path: read_text(path, "config.json"),
    "profile": profile_path,
    "new model": _open_writer,
    "corpus": lambda path: open_corpus(path, tokenizer_sha256="", vocab_size=9),
    "place of a corpus": refuse_occupied,
    "new corpus": lambda path: build_corpus(path, [[1]], tokenizer_sha256=""),
    "csv": lambda path: require_new(path / "rounds.csv"),
    "read-only store": lambda path: SuffixStore(
        path, tokenizer_sha256="", vocab_size=9, options=StoreOptions(read_only=True)
    ),
}


@pytest.mark.parametrize("below", ["", "below"])
@pytest.mark.parametrize("place", PLACES)
def test_a_circle_of_links_is_named(circle: Path, place: str, below: str) -> None:
    with pytest.raises(RondoError, match=CIRCLE) as raised:
        PLACES[place](circle / below)
    assert raised.value.next_step


def test_a_suffix_store_says_so_and_answers_go_on(circle: Path) -> None:
    told: list[str] = []
    SuffixStore(circle, tokenizer_sha256="", vocab_size=9, on_trouble=told.append).finish([1])
    assert len(told) == 1
    assert CIRCLE in told[0]


def test_a_file_below_a_circle_is_not_written(circle: Path) -> None:
    with pytest.raises(OSError, match=CIRCLE):
        replace_text(circle / "profile.env", "")


def test_doctor_does_not_take_a_circle_for_a_folder_to_make(
    circle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(circle))
    [found] = _data()
    assert found.status == "note"
    assert found.found.endswith(f"cannot be written: {CIRCLE}")


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "{circle}"),
        ("--profile", "{circle}"),
        ("--knob", "QWEN38_DFLASH2={circle}"),
        ("--knob", "QWEN38_CORPUS={circle}"),
        ("--knob", "QWEN38_SUFFIX_STORE={circle}:ro"),
        ("--knob", "QWEN38_SKINNY_TILES={circle}"),
    ],
)
def test_the_command_line_names_it(
    circle: Path, tmp_path: Path, options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(tmp_path / "model")
    asked = ["generate", "--prompt", "hi", "--max-tokens", "1", "--model", str(tmp_path / "model")]
    assert main([*asked, *(word.format(circle=circle) for word in options)]) != 0
    said = capsys.readouterr().err
    assert CIRCLE in said
    assert "exist" not in said
