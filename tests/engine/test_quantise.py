# SPDX-License-Identifier: MIT OR Apache-2.0
"""A quantised copy opens, answers nearly alike, and is refused where it cannot be made."""

from __future__ import annotations

import json
import resource
import threading
from pathlib import Path

import pytest
import torch
from checkpoints import edit_tensors, make_checkpoint

from engine import Engine
from engine.cli import OK, main
from engine.errors import Cancelled, CheckpointError, UsageError
from engine.load import quantise
from engine.load.checkpoint import read_checkpoint
from engine.load.quantise import quantise_checkpoint
from engine.load.stored import Dense, Fp8Row, Nvfp4
from engine.load.weights import AttentionLayerWeights
from engine.numbers import byte_size


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make_checkpoint(folder, hidden_size=128, intermediate_size=256)
    return folder


@pytest.mark.parametrize("method", ["rtn", "clip"])
def test_the_copy_has_the_right_formats_and_small_errors(
    source: Path, tmp_path: Path, method: str
) -> None:
    reports = quantise_checkpoint(source, tmp_path / "copy", method=method)
    copy = read_checkpoint(tmp_path / "copy")
    assert copy.weight_format == "NVFP4 + FP8 head"
    assert isinstance(copy.weights.head, Fp8Row)
    layer = copy.weights.layers[0]
    assert isinstance(layer.gate, Nvfp4)
    assert isinstance(layer.in_b, Dense)
    assert copy.weights.mtp is not None
    assert isinstance(copy.weights.mtp.fc, Nvfp4)
    errors = {report.module: report.relative_error for report in reports}
    assert errors["lm_head"] < 0.03
    assert 0.02 < errors["layers.0.mlp.gate_proj"] < 0.12
    assert errors["layers.0.linear_attn.in_proj_b"] == 0.0
    original = read_checkpoint(source)
    assert torch.equal(copy.weights.embed, original.weights.embed)
    attention = copy.weights.layers[3]
    assert isinstance(attention, AttentionLayerWeights)
    before = original.weights.layers[3].q.dequantise().float()
    after = attention.q.dequantise().float()
    assert float((after - before).norm() / before.norm()) == pytest.approx(
        errors["layers.3.self_attn.q_proj"], rel=0.05
    )


def test_a_tied_head_gets_codes_of_its_own(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "tied", hidden_size=128, intermediate_size=256, tied=True)
    quantise_checkpoint(tmp_path / "tied", tmp_path / "copy")
    copy = read_checkpoint(tmp_path / "copy")
    assert not copy.config.tied
    assert isinstance(copy.weights.head, Fp8Row)
    head, embed = copy.weights.head.dequantise().float(), copy.weights.embed.float()
    assert float((head - embed).norm() / embed.norm()) < 0.03


def test_clip_search_is_never_worse_than_rounding(source: Path, tmp_path: Path) -> None:
    totals = []
    for method in ("rtn", "clip"):
        reports = quantise_checkpoint(source, tmp_path / method, method=method)
        totals.append(sum(r.relative_error for r in reports if r.format_name == "NVFP4"))
    assert totals[1] <= totals[0]


def test_the_command_tells_parts_of_any_size(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "copy"), "--method", "rtn", "--no-loss"]
    assert main(["quantize", "--model", str(source), *out]) == OK
    told = capsys.readouterr().out.splitlines()
    sizes = [line.partition(": ")[2] for line in told[:-1]]
    bytes_by_format: dict[str, int] = {}
    for module in quantise_checkpoint(source, tmp_path / "again"):
        known = bytes_by_format.get(module.format_name, 0)
        bytes_by_format[module.format_name] = known + module.nbytes
    assert sizes == [byte_size(size) for size in bytes_by_format.values()]
    assert all(size.endswith(" kB") for size in sizes)


def test_the_copy_answers_with_the_same_tokenizer_and_template(
    source: Path, tmp_path: Path
) -> None:
    quantise_checkpoint(source, tmp_path / "copy")
    ids = list(range(10, 60))
    knobs = {"QWEN38_CPU_ISA": "reference"}
    logits = []
    for folder in (source, tmp_path / "copy"):
        with Engine.open(folder, profile=None, knobs=knobs, threads=1) as engine:
            logits.append(engine.logits(ids))
            assert engine.encode("the pace")
    agreement = torch.nn.functional.cosine_similarity(logits[0], logits[1], dim=-1)
    assert float(agreement.mean()) > 0.8


def test_large_models_are_written_in_shards(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise, "_SHARD_BYTES", 100_000)
    quantise_checkpoint(source, tmp_path / "copy")
    index = json.loads((tmp_path / "copy" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert read_checkpoint(tmp_path / "copy").weight_format == "NVFP4 + FP8 head"


def test_a_target_in_use_and_a_quantised_source_are_refused(source: Path, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not empty"):
        quantise_checkpoint(source, used)
    assert (used / "mine.txt").read_text() == "keep"
    quantise_checkpoint(source, tmp_path / "once")
    with pytest.raises(CheckpointError, match="quantised already"):
        quantise_checkpoint(tmp_path / "once", tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize("part", ["mlp.up_proj.weight", "input_layernorm.weight"])
def test_a_source_with_a_value_that_is_no_number_is_refused(tmp_path: Path, part: str) -> None:
    make_checkpoint(tmp_path / "source")
    name = f"model.language_model.layers.1.{part}"
    edit_tensors(tmp_path / "source", lambda tensors: tensors[name].view(-1)[3:5].fill_(torch.inf))
    with pytest.raises(CheckpointError, match=f"{name} holds 2 of .* NaN or infinite"):
        quantise_checkpoint(tmp_path / "source", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_target_that_cannot_be_written_is_named_and_removed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    with pytest.raises(UsageError, match="is a file"):
        quantise_checkpoint(source, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "keep"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot be written") as refused:
            quantise_checkpoint(source, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in refused.value.cause
    assert not (tmp_path / "copy").exists()


def test_a_cancelled_copy_leaves_nothing(source: Path, tmp_path: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(Cancelled, match="Quantising was cancelled") as stopped:
        quantise_checkpoint(
            source, tmp_path / "copy", on_progress=lambda _: cancel.set(), cancel=cancel
        )
    assert "removed" in stopped.value.kept
    assert not (tmp_path / "copy").exists()
