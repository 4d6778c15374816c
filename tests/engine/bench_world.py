# SPDX-License-Identifier: MIT OR Apache-2.0
"""A bench on a tiny shape, whose backend and probes take no time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.measure.bench import run_bench
from engine.measure.bench_report import BenchReport, BenchRequest
from engine.measure.shapes import Shape, dense_config
from engine.model.config import ModelConfig
from engine.model.reference import ReferenceBackend

VOCAB = 64


def tiny_shape() -> Shape:
    """Four layers that hold the mix."""
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
