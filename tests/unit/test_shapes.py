# SPDX-License-Identifier: MIT OR Apache-2.0
"""Named shapes: geometry of the published models, slices and refusals."""

from __future__ import annotations

import json

import pytest

from engine.errors import UsageError
from engine.measure import shapes
from engine.measure.shapes import CUT_VOCAB, dense_config, named_shape, shape_names
from engine.model.config import FULL, LINEAR

# Text parameters in billions without vision and MTP, as published.
PARAMETERS = {
    "qwen3.5-0.8b": 0.752,
    "qwen3.5-2b": 1.882,
    "qwen3.5-4b": 4.206,
    "qwen3.5-9b": 8.954,
    "qwen3.8-27b": 26.896,
    "qwen3.5-35b-a3b": 34.661,
    "qwen3.5-122b-a10b": 122.112,
}


@pytest.mark.parametrize(("name", "billions"), PARAMETERS.items())
def test_whole_shapes_have_the_published_parameter_counts(name: str, billions: float) -> None:
    shape = named_shape(name)
    assert shape.config.parameters / 1e9 == pytest.approx(billions, abs=6e-4)
    assert shape.name == name
    assert shape.note == ""


def test_every_name_is_covered() -> None:
    assert set(PARAMETERS) == set(shape_names()) - {"demo"}


def test_a_slice_keeps_the_mix_of_layers_and_says_what_was_cut() -> None:
    shape = named_shape("Qwen3.8-27B:8")
    assert shape.name == "qwen3.8-27b:8"
    assert shape.config.layer_types == (LINEAR, LINEAR, LINEAR, FULL) * 2
    assert shape.config.vocab_size == CUT_VOCAB
    assert shape.config.hidden_size == 5120
    assert shape.note == "8 of 64 layers, vocabulary 8192 in place of 248320"


def test_all_layers_are_not_a_slice() -> None:
    assert named_shape("qwen3.8-27b:64") == named_shape("qwen3.8-27b")


def test_vocab_sets_the_rows_of_slices_and_whole_models() -> None:
    assert named_shape("qwen3.8-27b:4", vocab=4096).config.vocab_size == 4096
    whole = named_shape("qwen3.5-9b", vocab=1000)
    assert whole.config.vocab_size == 1000
    assert whole.note == "vocabulary 1000 in place of 248320"


def test_mtp_is_kept_only_when_asked_for() -> None:
    assert named_shape("qwen3.8-27b:4").config.mtp_layers == 0
    assert named_shape("qwen3.8-27b:4", mtp=True).config.mtp_layers == 1


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(UsageError) as error:
        named_shape("qwen9-1b")
    assert all(name in error.value.next_step for name in shape_names())


@pytest.mark.parametrize("count", ["", "0", "3", "6", "68", "-4", "8.0", "٨", "eight", "999999999"])
def test_layer_counts_that_break_the_mix_are_refused(count: str) -> None:
    with pytest.raises(UsageError, match="cannot be cut"):
        named_shape(f"qwen3.8-27b:{count}")


@pytest.mark.parametrize("vocab", [0, -1, 1 << 23])
def test_absurd_vocabularies_are_refused(vocab: int) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        named_shape("qwen3.8-27b:4", vocab=vocab)


def test_demo_reads_the_demo_models_config(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "demo_model", lambda: tmp_path)
    config = dense_config("qwen3.5-0.8b") | {"hidden_size": 256, "vocab_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert named_shape("demo").config.hidden_size == 256
    assert named_shape("demo:4").config.vocab_size == 4096  # a cut never adds rows
    (tmp_path / "config.json").unlink()
    with pytest.raises(UsageError, match=r"demo model's config\.json"):
        named_shape("demo")
