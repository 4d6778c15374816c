# SPDX-License-Identifier: MIT OR Apache-2.0
"""Options of `rondo generate` that cannot be met are refused by name, without a model where that is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint

from engine.cli import FAILED, OK, USAGE, main
from engine.load import checkpoint


def test_a_sampling_value_out_of_range_is_told_before_a_model_is_opened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["generate", "--model", "/no such folder", "--prompt", "hi"]
    assert main([*asked, "--temperature", "-1"]) == USAGE
    assert "temperature -1.0 is not accepted" in capsys.readouterr().err
    assert main([*asked, "--max-tokens", "0"]) == USAGE
    assert "max_tokens 0 is not accepted" in capsys.readouterr().err
    assert main([*asked, "--stop", ""]) == USAGE
    assert "An empty stop string is not accepted" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--thinking", "on"), ("--system", "be brief")])
def test_a_raw_prompt_refuses_what_only_the_template_can_do(
    capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    asked = ["generate", "--model", "/no such folder", "--prompt", "hi", "--raw", *option]
    code = main([*asked, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert code == USAGE
    assert "chat template" in error["cause"]
    assert error["next_step"].startswith("Leave ")


@pytest.mark.parametrize("choice", ["on", "off"])
def test_a_thinking_choice_needs_a_template_with_the_switch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, choice: str
) -> None:
    make_checkpoint(tmp_path)
    asked = ["generate", "--model", str(tmp_path), "--prompt", "hi", "--max-tokens", "1"]
    assert main([*asked, "--thinking", choice]) == OK
    (tmp_path / "chat_template.jinja").unlink()
    assert main(asked) == OK
    capsys.readouterr()
    code = main([*asked, "--thinking", choice, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert code == USAGE
    assert error["cause"].endswith(
        f"has no thinking switch, so thinking cannot be switched {choice}."
    )
    assert "chat_template.jinja" in error["next_step"]


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (("--prompt", "hi", "--thinking", "on"), USAGE, "has no thinking switch"),
        (("--prompt", " \n"), FAILED, "The message is empty"),
        (("--prompt", "", "--raw"), FAILED, "The prompt is empty"),
        (("--prompt", "a b " * 20, "--context", "8"), FAILED, "--truncate"),
        pytest.param(
            ("--prompt", "hi", "--device", "cuda"),
            FAILED,
            "PyTorch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_what_the_model_cannot_be_asked_is_told_before_its_weights_are_read(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    asked: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "TensorReader", _no_weight)
        assert main(["generate", "--model", str(tmp_path), *asked]) == code
        assert said in capsys.readouterr().err
    if "--context" in asked:  # a prompt that may be cut is no reason to refuse
        one = ["--truncate", "--max-tokens", "1"]
        assert main(["generate", "--model", str(tmp_path), *asked, *one]) == OK


def _no_weight(*_: object) -> None:
    raise AssertionError("a weight was read")
