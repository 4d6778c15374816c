# SPDX-License-Identifier: MIT OR Apache-2.0
"""The bench: order of turns, figures of its rows, peers that answer, fail, hang or are missing."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.errors import Cancelled, MemoryShortError, UsageError
from engine.load.stored import Dense, Fp8Block, Fp8Row, Nvfp4
from engine.load.synthetic import synthetic_weights
from engine.measure import bench, contenders
from engine.measure.bench import linear_flops, run_bench, stored_bytes
from engine.measure.bench_export import run_rows
from engine.measure.bench_report import BenchReport, BenchRequest
from engine.measure.export_csv import RUN_COLUMNS, csv_text
from engine.measure.peers import worker
from engine.measure.peers.catalogue import PeerChoice, peer_choices
from engine.measure.peers.process import PeerError, PeerProcess, python_command
from engine.measure.peers.worker import Specification
from engine.measure.rounds import CONTEXT_SPAN, RoundTimer
from engine.measure.shapes import Shape, dense_config, named_shape
from engine.model.byte_model import ByteModel
from engine.model.config import ModelConfig
from engine.model.reference import ReferenceBackend

VOCAB = 64


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny matrices gain nothing from threads, and other work may want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shape() -> Shape:
    fields = {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "mtp_num_hidden_layers": 0,
        "tie_word_embeddings": False,
    }
    config = ModelConfig.from_dict(dense_config("qwen3.5-0.8b") | fields)
    return Shape("tiny", config, 4, VOCAB)


class FixedProbes:
    """Probes with known figures that take part in the log of turns."""

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self._reads = iter([10.0, 30.0, 20.0] * 20)

    def read_gbps(self) -> float:
        self._log.append("read")
        return next(self._reads)

    def dot_gflops(self) -> float:
        self._log.append("dot")
        return 100.0

    def barrier_ns(self) -> float:
        self._log.append("barrier")
        return 150.0


class InstantBackend:
    """Computes nothing, keeps a length, and logs its passes."""

    name = "instant"

    def __init__(self, config: ModelConfig, capacity: int, log: list[str]) -> None:
        self.config, self.capacity, self.length, self.log = config, capacity, 0, log

    def reset(self, *, speculate: bool) -> None:
        assert not speculate
        self.length = 0

    def prefill(self, ids: Sequence[int]) -> None:
        self.log.append(f"prefill {len(ids)}")
        self.length += len(ids)
        assert self.length <= self.capacity

    def verify(self, ids: Sequence[int]) -> None:
        self.log.append(f"verify {len(ids)}")
        assert self.length + len(ids) <= self.capacity
        self.rows = len(ids)

    def commit(self, keep: int) -> None:
        assert keep == self.rows
        self.length += keep

    def round_bytes(self, rows: int, drafted: int) -> int:
        return 1000 * self.length + rows

    def close(self) -> None:
        self.log.append("close")


def instant(log: list[str]):
    def open_backend(config, weights, *, capacity: int, threads: int) -> InstantBackend:
        assert threads == 1
        return InstantBackend(config, capacity, log)

    return open_backend


def reference(config, weights, *, capacity: int, threads: int) -> ReferenceBackend:
    return ReferenceBackend(config, weights, capacity=capacity, dtype=torch.bfloat16)


def request(shape: Shape, **changes: object) -> BenchRequest:
    values = {"rows": (1, 4), "prefill_tokens": (16,), "budget_s": 0.0, "weight_format": "bf16"}
    return BenchRequest(shape, **(values | changes))


def run(wanted: BenchRequest, log: list[str] | None = None, **options: object) -> BenchReport:
    log = [] if log is None else log
    options = {"probes": FixedProbes(log), "machine": {"cpu_model": "a"}} | options
    return run_bench(wanted, options.pop("backend", instant(log)), **options)


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


def test_rows_hold_what_was_measured(shape: Shape) -> None:
    report = run(request(shape), backend=reference)
    assert report.backend == "reference"
    assert [(r.suite, r.rows) for r in report.rows] == [
        ("decode", 1),
        ("verify", 1),
        ("verify", 4),
        ("prefill", 16),
    ]
    for row in report.rows:
        assert row.peer is None
        assert row.n == len(row.samples_ms) >= 5
        assert row.ms_median == statistics.median(row.samples_ms)
        assert 0 < row.ms_min <= row.ms_median <= row.ms_max
        assert row.tokens_per_s == pytest.approx(1e3 * row.rows / row.ms_median)
        assert (row.roof_gbps, row.peak_gflops, row.threads) == (20.0, 100.0, 1)
        head_rows = 1 if row.suite == "prefill" else row.rows
        flops = linear_flops(shape.config, row.rows, head_rows)
        assert row.gflops == pytest.approx(flops / (row.ms_median * 1e6))
        if row.suite == "prefill":
            assert row.read_gbps is None
        else:
            weights = synthetic_weights(shape.config, "bf16")
            model = ByteModel.of(shape.config, weights)
            least = model.round_bytes(row.rows, 0, row.context_tokens)
            most = model.round_bytes(row.rows, 0, row.context_tokens + CONTEXT_SPAN)
            assert least <= row.read_gbps * row.ms_median * 1e6 <= most + 1


def test_the_json_row_has_the_agreed_keys(shape: Shape) -> None:
    report = run(request(shape, suites=("decode",)))
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    agreed = (
        "suite rows threads ms_median ms_min ms_max read_gbps roof_gbps gflops peak_gflops "
        "tokens_per_s peer n shape weight_format context_tokens"
    )
    assert set(agreed.split()) <= set(values["rows"][0])
    assert values["machine"] == {"cpu_model": "a"}
    assert values["barrier_samples_ns"] == [150.0] * 5
    assert "samples_ms" not in values["rows"][0]
    assert report.to_json(samples=True)["rows"][0]["samples_ms"]


def test_probes_alternate_with_every_case(shape: Shape) -> None:
    log: list[str] = []
    report = run(request(shape, turns=3), log)
    repetitions = [i for i, entry in enumerate(log) if entry == "read"]
    assert len(repetitions) == report.turns == 3
    assert log.pop() == "close"
    for start, end in zip(repetitions, [*repetitions[1:], len(log)], strict=True):
        turn = log[start:end]
        assert turn[1:5] == ["dot", "dot", "dot", "barrier"]
        order = list(dict.fromkeys(entry for entry in turn[5:] if entry != "prefill 32"))
        assert order == ["verify 1", "verify 4", "prefill 16"]


def test_linear_flops_of_the_27b_match_its_matrices() -> None:
    config = named_shape("qwen3.8-27b").config
    # Twice the weights of all linears and the head, small vectors left out.
    products = 13.684e9 / 0.5625 + 2 * 48 * 48 * 5120 + 248320 * 5120
    assert linear_flops(config, 1, 1) == pytest.approx(2 * products, rel=1e-4)
    assert linear_flops(config, 8, 8) == 8 * linear_flops(config, 1, 1)


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


def test_the_time_budget_adds_turns(shape: Shape) -> None:
    few = run(request(shape, suites=("decode",), turns=2))
    more = run(request(shape, suites=("decode",), turns=2, budget_s=1e6))
    assert few.turns == 2
    assert more.turns == len(more.roof_samples_gbps) == 50  # the most there are


def test_cancel_stops_and_ends_the_peers(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    names = with_peers(monkeypatch, {"echo": ECHO % "pass"})
    cancel = threading.Event()

    def stop_at_second(line: str) -> None:
        if line == "repetition 2":
            cancel.set()

    wanted = request(shape, peers=names)
    with pytest.raises(Cancelled):
        run(wanted, cancel=cancel, on_progress=stop_at_second)
    assert not [t for t in threading.enumerate() if t.name.startswith("peer ")]


@pytest.mark.parametrize(
    "changes",
    [
        {"suites": ()},
        {"suites": ("decode", "speed")},
        {"rows": (0,)},
        {"rows": (33,)},
        {"rows": ()},
        {"prefill_tokens": (2000,)},
        {"threads": 0},
        {"context_tokens": 0},
        {"context_tokens": 1024},
        {"turns": 0},
        {"weight_format": "int3"},
        {"peers": ("vllm",)},
        {"peers": ("llama.cpp:Q9",)},
    ],
)
def test_requests_that_measure_nothing_are_refused(shape: Shape, changes: dict) -> None:
    with pytest.raises(UsageError) as error:
        run(request(shape, **changes))
    assert error.value.next_step


def test_peer_names() -> None:
    choices = peer_choices(("llama.cpp", "LLAMA.CPP:q4_0", "transformers:int4"))
    assert [(choice.label, choice.repacks) for choice in choices] == [
        ("llama.cpp Q4_0", True),
        ("llama.cpp NVFP4", True),
        ("transformers INT4", False),
    ]


class CountingModel:
    """Keeps a position as an engine would and refuses to leave its room."""

    vocab_size = 10

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length, self.restarts, self.rounds = capacity, 0, 0, 0

    def restart(self, ids: Sequence[int]) -> None:
        self.length, self.restarts = len(ids), self.restarts + 1

    def advance(self, ids: Sequence[int]) -> None:
        assert all(0 <= i < self.vocab_size for i in ids)
        self.length += len(ids)
        self.rounds += 1
        assert self.length <= self.capacity

    def prefill(self, ids: Sequence[int]) -> None:
        assert self.length == 0
        self.length = len(ids)


def test_the_timer_stays_in_its_room_and_goes_on_where_it_was() -> None:
    model = CountingModel(32 + CONTEXT_SPAN)
    timer = RoundTimer(model, context_tokens=32)
    first = timer.turn("verify", 32)
    assert len(first) == 64  # rounds of no length: the burst ends by count
    assert model.restarts == 9  # eight rounds of 32 rows fill the span
    restarts = model.restarts
    model.length = 0  # what follows must not depend on the model's own idea
    assert len(timer.turn("prefill", 100)) == 1
    assert model.restarts == restarts + 1
    timer.turn("decode", 1)
    assert model.restarts == restarts + 2  # a prefill's sequence is not one to decode on


@pytest.mark.parametrize(
    ("weight_format", "linear", "head"),
    [("nvfp4", Nvfp4, Fp8Row), ("fp8", Fp8Block, Fp8Row), ("bf16", Dense, Dense)],
)
def test_synthetic_weights_have_the_shapes_and_scales_of_the_model(
    shape: Shape, weight_format: str, linear: type, head: type
) -> None:
    config = shape.config
    weights = synthetic_weights(config, weight_format, seed=1)
    gdn, attention = weights.layers[0], weights.layers[3]
    assert isinstance(gdn.in_qkv, linear)
    assert isinstance(weights.head, head)
    assert gdn.in_qkv.shape == (config.qkv_rows, 64)
    assert gdn.out.shape == (64, config.value_width)
    assert attention.q.shape == (config.q_rows, 64)
    assert attention.down.shape == (64, 128)
    assert weights.embed.shape == weights.head.shape == (VOCAB, 64)
    values = _values(gdn.gate)
    assert values.std() == pytest.approx(64**-0.5, rel=0.05)
    assert abs(values.mean()) < 0.1 * values.std()
    again = synthetic_weights(config, weight_format, seed=1)
    other = synthetic_weights(config, weight_format, seed=2)
    assert torch.equal(_values(again.layers[0].gate), values)
    assert not torch.equal(_values(other.layers[0].gate), values)


def _values(linear: Dense | Nvfp4 | Fp8Block) -> torch.Tensor:
    if isinstance(linear, Nvfp4):
        table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        table = torch.cat((table, -table))
        codes = torch.stack((linear.codes & 15, linear.codes >> 4), -1).flatten(1).long()
        scales = linear.scales.float().repeat_interleave(16, 1)
        return table[codes] * scales * linear.scale_2
    return linear.dequantise().float()


def test_synthetic_logits_are_of_order_one(shape: Shape) -> None:
    weights = synthetic_weights(shape.config, "bf16")
    backend = ReferenceBackend(shape.config, weights, capacity=64, dtype=torch.bfloat16)
    logits = backend.all_logits(list(range(48)))
    assert 0.5 < float(logits.std()) < 2.0
    # The layers matter: the same token at two positions gives different rows.
    backend.reset(speculate=False)
    same = backend.all_logits([7] * 8)
    assert float((same[1:] - same[:-1]).abs().max()) > 0.05


def test_tied_and_mtp_follow_the_config(shape: Shape) -> None:
    from dataclasses import replace

    config = replace(shape.config, tied=True, mtp_layers=1)
    weights = synthetic_weights(config, "bf16")
    assert weights.head is None
    assert weights.mtp.fc.shape == (64, 128)
    assert synthetic_weights(config, "nvfp4").head is not None
    assert synthetic_weights(shape.config).mtp is None


def test_a_slice_reads_the_bytes_of_its_stored_form() -> None:
    config = named_shape("qwen3.5-0.8b:4", vocab=256).config
    model = ByteModel.of(config, synthetic_weights(config))
    # Rows of every NVFP4 linear with 1,024 columns; those with 1,024 rows count their columns instead.
    mlp = 3 * 3584
    gdn = (4096 + 16 * 128) + 2 * 16 * 128
    attention = 2 * 8 * 256 + 2 * 2 * 256 + 8 * 256
    nvfp4 = 1024 * 0.5625 * (4 * mlp + 3 * gdn + attention)
    beta_and_decay = 3 * 2 * 16 * 1024 * 2
    assert model.trunk_bytes == pytest.approx(nvfp4 + beta_and_decay, rel=0.01)
    assert model.trunk_bytes > nvfp4 + beta_and_decay
    assert model.head_bytes == 256 * 1024 + 4 * 256


def test_runs_become_csv_rows(shape: Shape) -> None:
    report = run(request(shape))
    rows = run_rows(report, label="a run")
    text = csv_text(RUN_COLUMNS, rows)
    assert len(text.splitlines()) == 1 + len(report.rows)
    assert [row["workload"] for row in rows] == ["decode-1", "verify-1", "verify-4", "prefill-16"]
    assert rows[-1]["prefill_tps"] == report.rows[-1].tokens_per_s
    assert rows[0]["decode_tps"] == report.rows[0].tokens_per_s
    assert {row["side"] for row in rows} == {"rondo"}
    assert len({row["run_id"] for row in rows}) == len(rows)


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


@pytest.mark.parametrize("weight_format", ["nvfp4", "fp8", "bf16"])
def test_a_shape_that_does_not_fit_is_refused_before_a_weight_is_made(
    monkeypatch: pytest.MonkeyPatch, shape: Shape, weight_format: str
) -> None:
    made = synthetic_weights(shape.config, weight_format)
    assert stored_bytes(shape.config, weight_format) == pytest.approx(made.nbytes, rel=0.1)
    monkeypatch.setattr(worker, "available_memory_bytes", lambda: 5_000_000_000)
    monkeypatch.setattr(bench, "synthetic_weights", lambda *_: pytest.fail("weights were made"))
    request = BenchRequest(shape=named_shape("qwen3.8-27b"), weight_format=weight_format)
    with pytest.raises(MemoryShortError, match="5\\.0 GB are free"):
        run_bench(request, lambda *_, **__: pytest.fail("opened"), probes=None, machine={})
