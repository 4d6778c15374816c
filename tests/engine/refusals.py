# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sound folder for a test to damage, and the error that opening it must give."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import (
    SINGLE,
    make_checkpoint,
)

import engine.load.reader as reader_module
from engine.errors import CheckpointError
from engine.load.checkpoint import read_checkpoint

TRUNK = "model.language_model."
SHARD_2 = "model-00002-of-00003.safetensors"
SHARD_3 = "model-00003-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound single-file checkpoint; a test that reads a weight before the refusal fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("a weight was read before the refusal")

    monkeypatch.setattr(reader_module.TensorReader, "read", refuse)
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(folder: Path) -> Path:
    """A sound checkpoint in three shards with an index."""
    (folder / SINGLE).unlink()
    make_checkpoint(folder, shards=3)
    return folder


def refusal(
    folder: Path, message: str, kind: type[CheckpointError] = CheckpointError
) -> CheckpointError:
    """The error of opening `folder`: of this kind, saying this, with a next step."""
    with pytest.raises(kind, match=message) as raised:
        read_checkpoint(folder)
    assert raised.value.next_step
    return raised.value
