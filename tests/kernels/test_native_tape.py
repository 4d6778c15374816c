# SPDX-License-Identifier: MIT OR Apache-2.0
"""The worker pool and the tape: order, barriers, replay, refusals, and an idle pool that rests."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.build import NativeLibrary, load_library
from kernels.tape import Pool, StepModel, Tape

POOL_SOURCE = Path(__file__).parents[2] / "kernels" / "cpu" / "pool.cpp"
# Every worker adds its share of `from` into `to`: a step reads what all workers wrote before it.
SOURCE = """
#include "rondo.h"
struct rondo_mix_args { const int64_t* from; int64_t* to; int64_t count; };
RONDO_OP(mix) {
  const rondo_range mine = rondo_share(a->count, worker, workers);
  for (int64_t i = mine.begin; i < mine.end; i++) {
    int64_t sum = 1;
    for (int64_t j = 0; j < a->count; j++) sum += a->from[j] * (i + 1) % 7;
    a->to[i] = sum;
  }
}
struct rondo_who_args { int32_t* seen; };
RONDO_OP(who) { a->seen[worker] += workers; }
"""
COUNT = 37


class MixArgs(ctypes.Structure):
    _fields_ = [("from_", ctypes.c_void_p), ("to", ctypes.c_void_p), ("count", ctypes.c_int64)]


class WhoArgs(ctypes.Structure):
    _fields_ = [("seen", ctypes.c_void_p)]


@pytest.fixture
def mixer(own_home: Path, library_cache: Path) -> NativeLibrary:
    source = library_cache / "mix.cpp"
    if not source.exists():
        source.write_text(SOURCE)
    return load_library("portable", sources=[POOL_SOURCE, source])


def _chain(pool: Pool, steps: int, *, eager: bool = False) -> tuple[Tape, torch.Tensor]:
    buffers = [torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64)]
    tape = Tape(pool, eager=eager)
    for step in range(steps):
        source, target = buffers[step % 2], buffers[1 - step % 2]
        args = MixArgs(source.data_ptr(), target.data_ptr(), COUNT)
        tape.append(StepModel(f"mix{step % 3}", flops=step), "rondo_mix", args, (source, target))
    return tape, buffers[steps % 2]


def _expected(steps: int) -> torch.Tensor:
    values = torch.arange(COUNT)
    for _ in range(steps):
        factors = torch.arange(1, COUNT + 1)
        values = 1 + (values[None, :] * factors[:, None] % 7).sum(1)
    return values


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_step_sees_all_of_the_one_before(mixer: NativeLibrary, workers: int) -> None:
    with Pool(mixer, workers) as pool:
        tape, result = _chain(pool, 101)
        for _ in range(20):
            tape.run()
        once, fresh = _chain(pool, 101)
        once.run()
        assert torch.equal(fresh, _expected(101))
        assert result.numel() == COUNT
        assert tape.names[:4] == ["mix0", "mix1", "mix2", "mix0"]


@pytest.mark.parametrize("workers", [1, 2])
def test_eager_and_replayed_give_the_same(mixer: NativeLibrary, workers: int) -> None:
    with Pool(mixer, workers) as pool:
        eager, first = _chain(pool, 12, eager=True)
        tape, second = _chain(pool, 12)
        tape.run()
        assert torch.equal(first, second)
        assert eager.names == tape.names
        assert len(eager.step_ms()) == len(tape.step_ms()) == 12
        with pytest.raises(ValueError, match="eager"):
            eager.run()


def test_times_of_the_steps_add_up(mixer: NativeLibrary) -> None:
    with Pool(mixer, 2) as pool:
        tape, _ = _chain(pool, 9)
        started = time.monotonic()
        tape.run()
        wall_ms = (time.monotonic() - started) * 1e3
        assert np.all(np.diff(tape.stamps_ns.astype(np.int64)) >= 0)
        assert tape.names == ["mix0", "mix1", "mix2"] * 3
        assert len(tape.step_ms()) == 9
        assert 0 < tape.step_ms().sum() <= wall_ms
        assert [model.flops for model in tape.models] == list(range(9))


def test_serial_steps_run_on_the_caller_alone(mixer: NativeLibrary) -> None:
    seen = torch.zeros(2, dtype=torch.int32)
    with Pool(mixer, 2) as pool:
        tape = Tape(pool)
        tape.append(StepModel("all"), "rondo_who", WhoArgs(seen.data_ptr()), (seen,), barrier=False)
        tape.append(StepModel("one"), "rondo_who", WhoArgs(seen.data_ptr()), (seen,), serial=True)
        tape.run()
    assert seen.tolist() == [3, 2]


def test_what_cannot_run_is_refused(mixer: NativeLibrary) -> None:
    with pytest.raises(ValueError, match="threads"):
        Pool(mixer, 0)
    with pytest.raises(ValueError, match="spin_us"):
        Pool(mixer, 1, spin_us=-1)
    pool = Pool(mixer, 1)
    tape, _ = _chain(pool, 1)
    with pytest.raises(ValueError, match="24 bytes of arguments, got 8"):
        tape.append(StepModel("mix"), "rondo_mix", WhoArgs())
    with pytest.raises(ValueError, match="rondo_nothing"):
        tape.append(StepModel("nothing"), "rondo_nothing", WhoArgs())
    tape.clear()
    assert tape.names == []
    assert tape.step_ms().size == 0
    tape, _ = _chain(pool, 1)
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        tape.run()


def test_an_idle_pool_uses_no_processor_time(mixer: NativeLibrary) -> None:
    with Pool(mixer, 2) as pool:
        tape, _ = _chain(pool, 5)
        tape.run()
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.4)
        assert time.process_time() - before < 0.02
        tape.run()


def test_working_memory_is_apart_for_every_worker(mixer: NativeLibrary) -> None:
    with Pool(mixer, 3) as pool:
        small, _ = pool.scratch(100)
        address, stride = pool.scratch(10_000)
        assert stride >= 10_000
        assert address % 64 == 0
        assert stride % 64 == 0
        assert pool.scratch(500) == (address, stride)
        ctypes.memset(address, 1, stride * 3)
        shared = pool.shared(1 << 16)
        assert shared == pool.shared(10)
        assert shared not in (address, small)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("places", [{3}, {0, 1, 9}, {10}])
def test_a_host_step_runs_in_its_place(mixer: NativeLibrary, eager: bool, places: set[int]) -> None:
    """`places`: before which of ten native steps a host step doubles the values."""

    def issue(pool: Pool, *, eager: bool, doubled: bool) -> tuple[Tape, torch.Tensor, list[int]]:
        values, runs = torch.arange(COUNT), []
        tape = Tape(pool, eager=eager)

        def double() -> None:
            time.sleep(0.002)
            values.mul_(2)
            runs.append(1)

        for step in range(11):
            if doubled and step in places:
                tape.host(StepModel("double", flops=COUNT), double)
            if step < 10:
                args = MixArgs(values.data_ptr(), scratch.data_ptr(), COUNT)
                tape.append(StepModel("mix"), "rondo_mix", args, (values,))
                back = MixArgs(scratch.data_ptr(), values.data_ptr(), COUNT)
                tape.append(StepModel("mix"), "rondo_mix", back, (values,))
        return tape, values, runs

    scratch = torch.zeros(COUNT, dtype=torch.int64)
    expected = torch.arange(COUNT)
    for step in range(11):
        expected = expected * 2 if step in places else expected
        for _ in range(2 if step < 10 else 0):
            factors = torch.arange(1, COUNT + 1)
            expected = 1 + (expected[None, :] * factors[:, None] % 7).sum(1)
    with Pool(mixer, 2) as pool:
        tape, values, runs = issue(pool, eager=eager, doubled=True)
        if not eager:
            assert not runs
            tape.run()
        assert torch.equal(values, expected)
        assert len(runs) == len(places)
        times = tape.step_ms()
        assert len(times) == len(tape.names) == 20 + len(places)
        assert (times >= 0).all()
        assert all(ms >= 2.0 for name, ms in zip(tape.names, times, strict=True) if name != "mix")


def test_counted_paths_are_cleared_with_the_steps(mixer: NativeLibrary) -> None:
    with Pool(mixer, 1) as pool:
        tape, _ = _chain(pool, 2)
        tape.count("this way")
        tape.count("this way")
        assert tape.paths == {"this way": 2}
        tape.host(StepModel("more"), lambda: None)
        tape.clear()
        assert not tape.paths
        tape.run()
