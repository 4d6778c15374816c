# SPDX-License-Identifier: MIT OR Apache-2.0
"""Quantising on calibration text: nearer outputs, what the report tells, and what is refused."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import MOE, SINGLE, TRUNK, edit_tensors, make_checkpoint
from safetensors.torch import load_file

from engine import Engine
from engine.api import GenerateRequest, LoadProgress
from engine.cli import OK, USAGE, main
from engine.commands import quantize
from engine.errors import Cancelled, CheckpointError, NumericsError, UsageError
from engine.load import quantise
from engine.load.checkpoint import read_checkpoint
from engine.load.quantise import ModuleReport, quantise_checkpoint
from kernels.nvfp4_linear.gptq import quantise_gptq

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    f"The pace of round {n} is set by memory, and draft {n * n} is checked." for n in range(60)
]
TOKENS = 1000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make_checkpoint(folder)
    return folder


def errors(reports: list[ModuleReport]) -> dict[str, float]:
    return {r.module: r.output_error for r in reports if r.output_error is not None}


def test_outputs_are_nearer_than_by_the_clip_search(source: Path, tmp_path: Path) -> None:
    made = {
        method: quantise_checkpoint(
            source,
            tmp_path / method,
            method=method,
            calibration=TEXTS,
            calibration_tokens=TOKENS,
        )
        for method in ("rtn", "clip", "gptq")
    }
    rtn, clip, gptq = (errors(reports) for reports in made.values())
    assert gptq.keys() == clip.keys() == rtn.keys()
    assert {r.module for r in made["gptq"] if r.format_name == "NVFP4"} == gptq.keys()
    assert "mtp.fc" in gptq
    assert all(gptq[module] < clip[module] for module in gptq)
    assert sum(gptq.values()) < 0.7 * sum(clip.values())
    assert sum(clip.values()) < sum(rtn.values())
    for report in made["gptq"]:
        assert report.method == ("gptq" if report.format_name == "NVFP4" else "")
        mtp, head = report.module.startswith("mtp."), report.module == "lm_head"
        pairs = TOKENS - report.calibration_rows
        assert head or (0 < pairs < 100 if mtp else pairs == 0), report
    # Rounding to nearest does not ask the inputs, so its copy is the one without them.
    quantise_checkpoint(source, tmp_path / "plain", method="rtn")
    with_text, without = (load_file(tmp_path / name / SINGLE) for name in ("rtn", "plain"))
    assert with_text.keys() == without.keys()
    for name, tensor in without.items():
        same = with_text[name].flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))
        assert same, name


def test_the_command_reports_and_the_copy_answers(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("\n\n".join(TEXTS[:20]) + "\n")
    (tmp_path / "scored").write_text("\n\n".join(TEXTS[15:25]))
    out = tmp_path / "copy"
    options = ["--model", str(source), "--method", "gptq", "--text", str(tmp_path / "scored")]
    options += ["--calibration", str(tmp_path / "text"), "--threads", "1"]
    assert main(["quantize", *options, "--out", str(out), "--json"]) == OK
    report = json.loads(capsys.readouterr().out)["report"]
    with Engine.open(out, threads=1) as engine:
        fresh = sum(len(engine.encode(text)) for text in TEXTS[:15])  # the others are scored
        assert report["calibration_tokens"] == fresh
        assert engine.generate(GenerateRequest(prompt="the pace", max_tokens=4)).token_ids
    assert read_checkpoint(out).weight_format == "NVFP4 + FP8 head"
    assert report["method"] == "gptq"
    assert report["clip_for_few_rows"] == 0
    assert 0.0 < report["worst_output_error"] < 0.2
    assert report["loss_change_nats"] == pytest.approx(
        report["loss_after_nats"] - report["loss_before_nats"]
    )
    parts = {part["module"]: part for part in report["modules"]}
    assert parts["lm_head"]["output_error"] is None
    assert parts["lm_head"]["method"] is None
    assert parts["layers.3.self_attn.q_proj"]["method"] == "gptq"
    assert 0.0 < parts["layers.3.self_attn.q_proj"]["output_error"] < 0.2


def test_without_calibration_the_report_says_so(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(source), "--out", str(tmp_path / "copy"), "--no-loss", "--json"]
    assert main(["quantize", *options]) == OK
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["calibration_tokens"], report["worst_output_error"]) == (0, None)
    assert {part["output_error"] for part in report["modules"]} == {None}


def test_experts_that_few_rows_reach_are_made_by_the_clip_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(tmp_path / "source", **(MOE | {"num_experts": 9}))
    (tmp_path / "text").write_text("\n\n".join(TEXTS))
    options = ["--model", str(tmp_path / "source"), "--out", str(tmp_path / "copy"), "--no-loss"]
    options += ["--method", "gptq", "--calibration-tokens", "150"]
    options += ["--calibration", str(tmp_path / "text"), "--json"]
    assert main(["quantize", *options]) == OK
    report = json.loads(capsys.readouterr().out)["report"]
    experts = [part for part in report["modules"] if ".experts." in part["module"]]
    assert len(experts) == 5 * 9 * 3
    for part in experts:
        assert part["method"] == ("gptq" if part["calibration_rows"] >= 32 else "clip"), part
        assert (part["output_error"] is None) == (part["calibration_rows"] == 0)
    few = sum(part["calibration_rows"] < 32 for part in experts)
    assert 0 < few < len(experts)
    assert report["clip_for_few_rows"] == few
    routers = [part for part in report["modules"] if part["module"].endswith("mlp.gate")]
    assert {part["format"] for part in routers} == {"BF16"}
    assert read_checkpoint(tmp_path / "copy").weight_format == "NVFP4 + FP8 head"


def test_a_tied_head_and_a_model_without_mtp(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "tied", tied=True, mtp=False)
    reports = quantise_checkpoint(
        tmp_path / "tied", tmp_path / "copy", method="gptq", calibration=TEXTS
    )
    copy = read_checkpoint(tmp_path / "copy")
    assert not copy.config.tied
    assert copy.weights.mtp is None
    assert [r.module for r in reports].count("lm_head") == 1


def test_text_and_numbers_that_do_not_do_are_refused(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(UsageError, match="needs calibration text"):
        quantise_checkpoint(source, copy, method="gptq")
    with pytest.raises(UsageError, match=r"has \d+ tokens; it takes 128"):
        quantise_checkpoint(source, copy, method="gptq", calibration=TEXTS[:2])
    with pytest.raises(UsageError, match="has 0 tokens"):
        quantise_checkpoint(source, copy, method="gptq", calibration=[])
    with pytest.raises(UsageError, match="on 0 tokens"):
        quantise_checkpoint(source, copy, method="gptq", calibration=TEXTS, calibration_tokens=0)
    make_checkpoint(tmp_path / "wild")
    for part in ("up_proj", "gate_proj"):
        name = f"{TRUNK}layers.1.mlp.{part}.weight"
        edit_tensors(tmp_path / "wild", lambda tensors, name=name: tensors[name].mul_(1e37))
    with pytest.raises(NumericsError, match=r"layers\.1\.mlp\.down_proj"):
        quantise_checkpoint(tmp_path / "wild", copy, method="gptq", calibration=TEXTS)
    (tmp_path / "wild" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        quantise_checkpoint(tmp_path / "wild", copy, method="gptq", calibration=TEXTS)
    assert not copy.exists()


def test_text_is_never_scored_and_calibrated_on(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("\n\n".join(TEXTS))
    text = str(tmp_path / "text")
    options = ["--model", str(source), "--out", str(tmp_path / "copy"), "--method", "gptq"]
    assert main(["quantize", *options, "--text", text, "--calibration", text]) == USAGE
    assert "every paragraph is scored" in capsys.readouterr().err
    chosen = argparse.Namespace(method="gptq", calibration=None, calibration_tokens=None)
    scored = quantize._scored_texts(None)
    calibrated = quantize._calibration_texts(chosen, scored)
    assert calibrated is not None
    assert not set(scored) & set(calibrated)
    assert len(calibrated) > 2 * len(scored)
    chosen.method = "clip"
    assert quantize._calibration_texts(chosen, scored) is None


def test_a_cancel_ends_the_work_on_one_matrix(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = threading.Event()
    finished = []

    def cancelled(*arguments: Any) -> Any:
        cancel.set()
        made = quantise_gptq(*arguments)
        finished.append(made)
        return made

    monkeypatch.setattr(quantise, "quantise_gptq", cancelled)
    with pytest.raises(Cancelled, match="Quantising was cancelled"):
        quantise_checkpoint(
            source, tmp_path / "copy", method="gptq", calibration=TEXTS, cancel=cancel
        )
    assert not finished
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("stage", ["calibrating layer 2 of 4", "calibrating the MTP head"])
def test_a_cancel_while_calibrating_leaves_nothing(
    source: Path, tmp_path: Path, stage: str
) -> None:
    cancel = threading.Event()
    told: list[LoadProgress] = []

    def show(progress: LoadProgress) -> None:
        told.append(progress)
        if progress.stage == stage:
            cancel.set()

    with pytest.raises(Cancelled, match="Quantising was cancelled"):
        quantise_checkpoint(
            source,
            tmp_path / "copy",
            method="gptq",
            calibration=TEXTS,
            calibration_tokens=200,
            on_progress=show,
            cancel=cancel,
        )
    assert not (tmp_path / "copy").exists()
    stages = list(dict.fromkeys(progress.stage for progress in told))
    layers = [f"calibrating layer {n} of 4" for n in (1, 2, 3, 4)]
    wanted = ["quantising", *layers, "calibrating the MTP head"]
    assert stages == wanted[: wanted.index(stage) + 1]
    done = [progress.done_bytes for progress in told]
    assert done == sorted(done)
    assert done[-1] < told[-1].total_bytes
