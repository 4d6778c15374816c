# SPDX-License-Identifier: MIT OR Apache-2.0
"""The commands: JSON on stdout and nothing else, exit codes, and errors that name the next step."""

from __future__ import annotations

import errno
import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoints import make_checkpoint

from engine.api import Generation, LoadProgress
from engine.cli import FAILED, GATE, OK, USAGE, _unwritten, main
from engine.commands.doctor import _native, _switches
from engine.commands.generate import _show_progress, figures
from engine.hardware import available_cores
from engine.interrupt import INTERRUPTED
from engine.measure.machine import cpu_model
from kernels.build import machine_isas
from kernels.probe import last_level_cache_bytes

GENERATE_KEYS = {
    "text", "token_ids", "prompt_tokens", "finish_reason", "rounds", "drafted_tokens", "accepted_tokens",
    "tokens_per_round", "acceptance_pct", "ttft_ms", "prefill_tps", "decode_tps", "round_ms_median",
    "bytes_per_round", "read_gbps", "roof_gbps",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, max_position_embeddings=1024)
    return str(folder)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_generate_prints_the_answer_and_every_figure(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    arguments = ("generate", "--model", model, "--prompt", "the pace", "--max-tokens", "20")
    arguments += ("--knob", "QWEN38_LEN_SWITCH=0")  # a router may find that no draft pays
    code, values = run_json(capsys, *arguments, "--threads", "1")
    assert code == OK
    assert values.keys() >= GENERATE_KEYS
    assert values["drafted_tokens"] > 0
    assert values["read_gbps"] > 0
    assert values["roof_gbps"] > 0
    fits = last_level_cache_bytes() > 0  # the weights are some kilobytes
    assert values["roof_place"] == ("cache" if fits else "memory")
    code, plain = run_json(capsys, *arguments, "--threads", "1", "--no-spec")
    assert plain["token_ids"] == values["token_ids"]
    assert plain["drafted_tokens"] == 0
    assert plain["acceptance_pct"] is None
    assert main([*arguments, "--threads", "1"]) == OK
    captured = capsys.readouterr()
    assert captured.out == values["text"] + "\n"
    assert "tok/s" in captured.err


def test_generate_reads_stdin_and_skips_the_template(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO("größer \0 \udcff".encode("utf-8", "surrogateescape")))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, values = run_json(
        capsys, "generate", "--model", model, "--prompt", "-", "--raw", "--max-tokens", "2"
    )
    assert code == OK
    assert values["prompt_tokens"] < 15


def test_a_seed_gives_the_same_text(capsys: pytest.CaptureFixture[str], model: str) -> None:
    common = ("generate", "--model", model, "--prompt", "the", "--max-tokens", "12")
    sampled = (*common, "--temperature", "1.2", "--seed", "4")
    first = run_json(capsys, *sampled)[1]
    assert run_json(capsys, *sampled, "--no-spec")[1]["token_ids"] == first["token_ids"]
    assert run_json(capsys, *sampled[:-1], "5")[1]["token_ids"] != first["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["generate", "--prompt", "x", "--knob", "QWEN38_MTP_DEPHT=1"], USAGE, "QWEN38_MTP_DEPTH"),
        (["generate", "--prompt", "x", "--knob", "QWEN38_MTP_DEPTH=9"], USAGE, "from 0 to 4"),
        (["generate", "--prompt", "x", "--knob", "nonsense"], USAGE, "KEY=value"),
        (["generate", "--prompt", "x", "--profile", "no such"], USAGE, "profile"),
        (["generate", "--prompt", "x", "--threads", "0"], USAGE, "threads"),
        (["generate", "--prompt", "x", "--temperature", "-1"], USAGE, "temperature"),
        (["generate", "--prompt", "  "], FAILED, "empty"),
        (["agree", "--prompts", "no such file"], USAGE, "prompts"),
        (["agree", "--limit", "-1"], USAGE, "limit of -1"),
        (["bench", "--suite", "verify"], USAGE, "--write-tables"),
    ],
)
def test_mistakes_are_named_with_the_next_step(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], code: int, says: str
) -> None:
    arguments += ["--model", model]
    assert main(arguments) == code
    assert says.lower() in capsys.readouterr().err.lower()
    got, values = run_json(capsys, *arguments)
    assert got == code
    assert values["error"]["cause"]


def test_a_folder_that_is_no_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["generate", "--prompt", "x", "--model", str(tmp_path)]) == FAILED
    assert "config.json" in capsys.readouterr().err


def test_usage_errors_of_the_parser_exit_with_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["generate"])
    assert stopped.value.code == USAGE


def test_agree_holds_on_a_random_model_and_counts(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# a comment\nthe pace\n\nthe engine reads\n", "utf-8")
    code, values = run_json(
        capsys, "agree", "--model", model, "--prompts", str(prompts), "--tokens", "14"
    )
    assert code == OK
    assert (values["prompts"], values["identical"], values["divergences"]) == (2, 2, 0)
    assert values["ok"] is True
    rows = {row["name"]: row for row in values["configurations"]}
    ran = {name for name, row in rows.items() if not row["skipped"]}
    assert {"served", "mtp-4", "mtp-tree", "wrong", "trees", "reject", "commit-pass"} <= ran
    assert rows["wrong"]["accepted_tokens"] == 0
    assert rows["wrong"]["tokens_per_round"] == 1.0
    assert 0 < rows["half-right"]["accepted_tokens"] < rows["half-right"]["drafted_tokens"]
    assert rows["trees"]["accepted_tokens"] > 0


def test_agree_exits_with_3_when_drafts_change_the_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """A verify pass that accepts a wrong token must be caught: the gate can fail."""
    from engine.model.backend import Verified
    from engine.model.native import NativeBackend

    honest = NativeBackend.verify

    def dishonest(
        self: NativeBackend, ids: list[int], parents: list[int] | None = None
    ) -> Verified:
        verified = honest(self, ids, parents)
        return Verified([*ids[1:], verified.best[-1]], verified.logits)

    monkeypatch.setattr(NativeBackend, "verify", dishonest)
    code, values = run_json(
        capsys,
        "agree",
        "--model",
        model,
        "--limit",
        "2",
        "--tokens",
        "16",
        "--configs",
        "wrong,mtp-3",
    )
    assert code == GATE
    assert values["divergences"] == 2
    assert [row["divergences"] for row in values["configurations"]] == [2, 2]


def test_knobs_lists_every_switch_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, values = run_json(capsys, "knobs", "--knob", "QWEN38_MTP_DEPTH=2")
    assert code == OK
    rows = {row["name"]: row for row in values["knobs"]}
    assert (rows["QWEN38_MTP_DEPTH"]["value"], rows["QWEN38_MTP_DEPTH"]["source"]) == (
        "2",
        "caller",
    )
    assert rows["QWEN38_VERIFY_GRAPH"]["source"] == "profile"


def test_probe_measures_and_refuses_a_set_inside_the_caches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, values = run_json(capsys, "probe", "--threads", "1", "--megabytes", "128")
    assert code == OK
    assert values["working_set_bytes"] == 128 << 20
    assert 0 < values["read_gbps"] < 1000
    assert main(["probe", "--megabytes", "1"]) == USAGE


def test_check_reports_every_kernel_and_can_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernels.e2m1.reference as twin

    arguments = ("check", "--only", "e2m1", "--isa", "portable")
    code, values = run_json(capsys, *arguments)
    assert code == OK
    assert values["failed"] == 0
    assert {
        "kernel",
        "implementation",
        "status",
        "max_abs_err",
        "row_invariant",
        "reason",
    } <= values["checks"][0].keys()
    assert main(["check", "--only", "no such operation"]) == USAGE
    assert main(["check", "--isa", "no such level"]) == USAGE
    names = [name for name in vars(twin) if name.startswith(("encode", "decode"))]
    for name in names:
        monkeypatch.setattr(twin, name, lambda *_, **__: torch.zeros(1))
        monkeypatch.setattr(
            f"kernels.e2m1.check.{name}", lambda *_, **__: torch.zeros(1), raising=False
        )
    code, values = run_json(capsys, *arguments)
    assert code == GATE
    assert values["failed"] > 0
    assert main(list(arguments)) == GATE
    table = capsys.readouterr().out
    assert "FAIL portable" in table
    assert "1 of 1 checks hold" not in table


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "17.5 GB/s (42 % of roof 41.2)"),
        ({"roof_place": "cache", "read_gbps": 0.2}, "0.2 GB/s (0.5 % of cache roof 41.2)"),
        ({"roof_gbps": None}, "17.5 GB/s, ended: stop"),
    ],
)
def test_the_summary_names_the_roof_that_a_rate_is_compared_with(
    changes: dict[str, object], said: str
) -> None:
    answer = Generation(
        text="x", reasoning="", token_ids=(1, 2), prompt_tokens=3, dropped_prompt_tokens=0,
        finish_reason="stop", rounds=1, drafted_tokens=0, accepted_tokens=0, tokens_per_round=1.0,
        acceptance_pct=None, ttft_ms=9.0, prefill_tps=3.0, decode_tps=3.0, round_ms_median=0.9,
        bytes_per_round=16_000_000, read_gbps=17.5, roof_gbps=41.2,
    )  # fmt: skip
    assert said in figures(replace(answer, **changes))


def test_a_second_interrupt_ends_a_command_that_does_not_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    presses = []

    def press_twice() -> bytes:
        for _ in range(2):
            presses.append(1)
            signal.raise_signal(signal.SIGINT)
        return b"never reached"

    stdin = SimpleNamespace(buffer=SimpleNamespace(read=press_twice))
    monkeypatch.setattr(sys, "stdin", stdin)
    before = signal.getsignal(signal.SIGINT)
    assert main(["generate", "--prompt", "-"]) == INTERRUPTED
    assert len(presses) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_doctor_names_the_compiler_the_build_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(
        "shutil.which", lambda name, *_, **__: "/bin/clang++" if name == "clang++" else None
    )
    findings = {found.subject: found for found in _native()}
    assert findings["compiler"].found == "/bin/clang++"


def test_doctor_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    _, values = run_json(capsys, "doctor")
    found = {finding["subject"]: finding for finding in values["findings"]}
    assert found["torch"]["status"] == "ok"
    assert {"native kernels", "memory", "GPU", "switches", "demo model"} <= found.keys()


def test_doctor_says_whether_a_table_of_sizes_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(content: dict[str, object]) -> tuple[str, str]:
        path = tmp_path / "tiles.json"
        path.write_text(json.dumps(content), "utf-8")
        monkeypatch.setenv("QWEN38_FP8_TILES", str(path))
        found = {each.subject: each for each in _switches()}
        assert found["switches"].status == "ok"
        return found["QWEN38_FP8_TILES"].status, found["QWEN38_FP8_TILES"].found

    def level(name: str, cpu: str) -> dict[str, object]:
        origin = {"machine": {"cpu_model": cpu}}
        return {"levels": {name: {"tiles": {"16x16": {}}, "tiles_from": origin}}}

    here = machine_isas()[0]
    assert told(level(here, cpu_model())) == ("ok", f"a table for {here}, entries: 1")
    assert told(level(here, "a Z80")) == (
        "note",
        f"a table for {here}, entries: 1; measured on a Z80, not on this processor",
    )
    assert told(level("sse2", cpu_model())) == (
        "note",
        f"measured at sse2, this is {here}: the defaults are used",
    )
    # The level that is forced counts.
    monkeypatch.setenv("QWEN38_CPU_ISA", "portable")
    assert told(level("portable", cpu_model())) == ("ok", "a table for portable, entries: 1")
    monkeypatch.setenv("QWEN38_CPU_ISA", "reference")
    monkeypatch.setenv("QWEN38_FP8_TILES", "no such file")
    assert [each.subject for each in _switches()] == ["switches"]
    monkeypatch.setenv("QWEN38_CPU_ISA", "")
    (found,) = _switches()
    assert found.status == "missing"
    assert "no such file is not used as a tile table" in found.found


def test_progress_shows_a_share_only_of_stages_that_count_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _show_progress(LoadProgress("packing layer 1 of 8", 0, 0))
    _show_progress(LoadProgress("reading weights", 1, 4))
    _show_progress(LoadProgress("reading weights", 4, 4))
    shown = capsys.readouterr().err
    assert shown == "packing layer 1 of 8\nreading weights:  25 %\rreading weights: 100 %\n"


def test_an_output_without_room_is_named(model: str) -> None:
    command = [sys.executable, "-m", "engine", "generate", "--model", model, "--prompt", "hi"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*command, "--max-tokens", "2"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == FAILED
    assert "The output could not be written: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("closing", "prompt", "code", "printed", "told"),
    [
        (">&-", "hi", OK, False, "tok/s"),
        ("2>&-", "hi", OK, True, ""),
        ("<&-", "hi", OK, True, "tok/s"),
        ("<&-", "-", FAILED, False, "The message is empty."),
        ("<&- >&- 2>&-", "hi", OK, False, ""),
    ],
)
def test_a_closed_stream_is_an_empty_one(
    model: str, closing: str, prompt: str, code: int, printed: bool, told: str
) -> None:
    command = [sys.executable, "-m", "engine", "generate", "--model", model, "--max-tokens", "2"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closing}', "bash", *command, "--prompt", prompt],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert bool(done.stdout.strip()) == printed
    assert (told in done.stderr) if told else not done.stderr
    assert "Traceback" not in done.stderr


def test_more_threads_than_cores_are_told_and_not_measured(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    many = str(available_cores() + 1)
    asked = ["generate", "--model", model, "--prompt", "hi", "--max-tokens", "2"]
    assert main([*asked, "--threads", many, "--json"]) == OK
    out, err = capsys.readouterr()
    assert f"{many} threads share" in err
    assert json.loads(out)["roof_gbps"] is None


def test_a_switch_named_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    twice = "QWEN38_MTP_DEPTH=1,QWEN38_MTP_DEPTH=2"
    assert main(["ab", "--candidate", twice]) == USAGE
    assert "--candidate names QWEN38_MTP_DEPTH twice." in capsys.readouterr().err


def test_a_file_without_room_is_not_taken_for_the_output() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "some file")
    assert _unwritten(full) is None
