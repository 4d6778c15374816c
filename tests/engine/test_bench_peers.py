# SPDX-License-Identifier: MIT OR Apache-2.0
"""Peers of a bench: those that answer, fail, hang, crash or are missing."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path

import pytest
from bench_world import request, run, tiny_shape

from engine.errors import Cancelled
from engine.measure import bench, contenders
from engine.measure.peers.catalogue import PeerChoice, peer_choices
from engine.measure.peers.process import PeerError, PeerProcess, python_command
from engine.measure.peers.worker import Specification
from engine.measure.shapes import Shape

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def shape() -> Shape:
    return tiny_shape()


# A peer that speaks the protocol without any engine behind it.
ECHO = """
import json, sys
spec = json.loads(sys.stdin.readline())
print(json.dumps({"ready": {"weight_format": "Q4_0", "read_bytes": 4000000, "version": "1"}}), flush=True)
for line in sys.stdin:
    r = json.loads(line)
    %s
    print(json.dumps({"ms": [float(r["rows"]), 2.0 * r["rows"]]}), flush=True)
"""


def peer(code: str, label: str = "echo Q4_0", **limits: float) -> PeerProcess:
    return PeerProcess(label, [sys.executable, "-c", code], {}, **limits)


def with_peers(monkeypatch: pytest.MonkeyPatch, codes: dict[str, str]) -> tuple[str, ...]:
    """Make a bench find these peers; returns the names to ask for."""
    choices = [PeerChoice(name, "Q4_0", name, (), "pip install it") for name in codes]
    monkeypatch.setattr(bench, "peer_choices", lambda names: choices if names else [])
    monkeypatch.setattr(
        contenders, "python_command", lambda module: [sys.executable, "-c", codes[module]]
    )
    return tuple(codes)


def test_peers_take_turns_after_this_engine(
    shape: Shape, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = tmp_path / "turns"
    codes = {
        name: ECHO % f"open({str(turns)!r}, 'a').write('{name} %s %d\\n' % (r['suite'], r['rows']))"
        for name in ("one", "two")
    }
    names = with_peers(monkeypatch, codes)
    report = run(request(shape, peers=names, suites=("verify",), turns=2))
    assert turns.read_text(encoding="utf-8").splitlines() == [
        "one verify 1", "one verify 4", "two verify 1", "two verify 4",
    ] * 2  # fmt: skip
    assert [(r.rows, r.peer) for r in report.rows] == [
        (rows, label) for rows in (1, 4) for label in (None, "one Q4_0", "two Q4_0")
    ]
    four = report.rows[-1]
    assert four.samples_ms == (4.0, 8.0, 4.0, 8.0)
    assert (four.ms_median, four.n, four.weight_format) == (6.0, 4, "Q4_0")
    state = 3 * 4 * 2 * 32 * 32
    kv = 4 * 64 * 32
    assert four.read_gbps == pytest.approx((4_000_000 + state + kv) / 6e6)
    assert report.peer_versions == {"one Q4_0": "1", "two Q4_0": "1"}


def test_a_peer_that_dies_leaves_the_others_running(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = ECHO % "sys.exit('out of luck') if r['rows'] == 4 else None"
    names = with_peers(monkeypatch, {"dying": dying, "well": ECHO % "pass"})
    report = run(request(shape, peers=names, suites=("verify",)))
    assert {r.peer for r in report.rows} == {None, "well Q4_0"}
    assert min(r.n for r in report.rows) >= 5
    [notice] = report.notices
    assert "dying Q4_0 ended early (exit status 1: out of luck)" in notice


def test_a_peer_that_does_not_load_is_a_notice(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = (
        "import sys, json; sys.stdin.readline();"
        "print(json.dumps({'error': 'needs 99 GB', 'next_step': 'Buy some.'}))"
    )
    names = with_peers(monkeypatch, {"refusing": refusing, "broken": "raise ImportError('no lib')"})
    report = run(request(shape, peers=names, suites=("decode",)))
    assert [r.peer for r in report.rows] == [None]
    assert report.notices[0] == "refusing Q4_0: needs 99 GB Buy some."
    assert "broken Q4_0 ended early (exit status 1: ImportError: no lib)" in report.notices[1]


def test_a_peer_that_is_not_installed_says_how_to_get_it(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = run(request(shape, peers=("llama.cpp", "transformers"), suites=("decode",)))
    assert [r.peer for r in report.rows] == [None]
    assert len(report.notices) == 3
    assert all("not installed" in notice for notice in report.notices)
    assert "pip install llama-cpp-python gguf" in report.notices[0]
    assert "pip install transformers" in report.notices[2]


def test_a_peer_that_hangs_is_ended() -> None:
    process = peer(ECHO % "import time; time.sleep(60)", turn_timeout_s=0.3)
    with pytest.raises(PeerError, match=r"did not answer within 0\.3 s"):
        process.turn("verify", 1)
    start = time.monotonic()
    process.close()
    assert time.monotonic() - start < 8


def test_a_closed_peer_is_gone() -> None:
    process = peer(ECHO % "pass")
    assert process.turn("verify", 3) == [3.0, 6.0]
    process.close()
    assert process._process.returncode == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("peer ")]


def test_a_slow_case_gets_fewer_turns_and_says_so(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = with_peers(
        monkeypatch, {"slow": ECHO % "import time; time.sleep(0.2 * (r['rows'] > 1))"}
    )
    report = run(request(shape, peers=names, suites=("verify",), case_limit_s=0.5))
    turns = {(r.peer, r.rows): r.n // 2 for r in report.rows if r.peer}
    assert turns == {("slow Q4_0", 1): 5, ("slow Q4_0", 4): 2}
    assert any("slow Q4_0, verify 4: 2 of 5 turns" in notice for notice in report.notices)


def test_cancel_stops_and_ends_the_peers(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    names = with_peers(monkeypatch, {"echo": ECHO % "pass"})
    cancel = threading.Event()

    def stop_at_second(line: str) -> None:
        if "turn 2 of" in line:
            cancel.set()

    wanted = request(shape, peers=names)
    with pytest.raises(Cancelled):
        run(wanted, cancel=cancel, on_progress=stop_at_second)
    assert not [t for t in threading.enumerate() if t.name.startswith("peer ")]


def test_peer_names() -> None:
    choices = peer_choices(("llama.cpp", "LLAMA.CPP:q4_0", "transformers:int4"))
    assert [(choice.label, choice.repacks) for choice in choices] == [
        ("llama.cpp Q4_0", True),
        ("llama.cpp NVFP4", True),
        ("transformers INT4", False),
    ]


@pytest.mark.parametrize(
    ("module", "variant", "packages"),
    [
        ("transformers", "BF16", ("transformers",)),
        ("llama_cpp", "Q4_0", ("llama_cpp", "gguf")),
        ("llama_cpp", "NVFP4", ("llama_cpp", "gguf")),
    ],
)
def test_a_real_peer_loads_the_shape_and_times_it(
    shape: Shape,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    variant: str,
    packages: tuple[str, ...],
) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the peer package {name} is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    specification = Specification(shape.config, "tiny", variant, 1, 32, 288, 16, 8, 0)
    process = PeerProcess(
        module, python_command(f"engine.measure.peers.{module}"), specification.to_json()
    )
    try:
        assert process.info.weight_format.startswith(variant)
        assert process.info.read_bytes > 50_000
        for suite, rows in (("decode", 1), ("verify", 8), ("prefill", 16)):
            assert all(ms > 0 for ms in process.turn(suite, rows))
    finally:
        process.close()


# A peer that a signal ends when its weights are repacked.
CRASHING = """if True:
    import json, os, signal, sys
    if not json.loads(input())["plain_weights"]:
        os.kill(os.getpid(), signal.%s)
    print(json.dumps({"ready": {"weight_format": "Q4_0", "read_bytes": 1, "version": "1"}}))
    sys.stdout.flush()
    sys.stdin.read()
"""


def open_crashing(
    shape: Shape, monkeypatch: pytest.MonkeyPatch, signal: str, *, repacks: bool
) -> contenders.PeerContender:
    code = CRASHING % signal
    monkeypatch.setattr(contenders, "python_command", lambda module: [sys.executable, "-c", code])
    choice = PeerChoice("crashing", "Q4_0", "none", (), "", repacks)
    specification = Specification(shape.config, "tiny", "Q4_0", 1, 32, 288, 16, 8, 0)
    return contenders.open_peer(choice, specification)


def test_a_peer_that_crashes_is_measured_without_repacked_weights(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = open_crashing(shape, monkeypatch, "SIGSEGV", repacks=True)
    try:
        assert peer.notice.startswith("crashing Q4_0 ended early (exit status -11")
        assert peer.notice.endswith("It is measured with its weights as they lie in the file.")
    finally:
        peer.close()


@pytest.mark.parametrize(("signal", "repacks"), [("SIGKILL", True), ("SIGSEGV", False)])
def test_a_peer_that_plain_weights_cannot_help_is_left_out(
    shape: Shape, monkeypatch: pytest.MonkeyPatch, signal: str, repacks: bool
) -> None:
    with pytest.raises(PeerError, match="crashing Q4_0 ended early"):
        open_crashing(shape, monkeypatch, signal, repacks=repacks)
