# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the Triton convolution and of tree paths: chain, tree as the chain of each path, tails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.causal_conv.triton import causal_conv, shift_tail
from kernels.checks import CheckResult
from kernels.tree_paths.triton import paths_of
from kernels.triton_checks import PARENTS, Bench, batched_like_alone, path_of

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

CHANNELS = (48, 10240)


def check(
    library: CudaLibrary, *, seed: int = 0, channels: tuple[int, ...] = CHANNELS
) -> Iterator[CheckResult]:
    """Every width: bounds, equal bits for rows, trees and tails, faults."""
    bench = Bench("causal_conv", library, seed)
    chain = list(range(-1, 31))
    listed = [*PARENTS, *chain[len(PARENTS) :]]
    for parents in (chain, listed):
        paths, depths = bench.empty(32, 32, dtype=torch.int32), bench.empty(32, dtype=torch.int32)
        paths_of(bench.ints(*parents), paths, depths)
        wanted = bench.paths(tuple(parents))
        yield bench.same("paths of a tree", paths, wanted[0])
        yield bench.same("depths of a tree", depths, wanted[1])
    for width in channels:
        yield from _convolution(bench, width)


def _convolution(bench: Bench, width: int) -> Iterator[CheckResult]:
    rows = len(PARENTS)
    x, weight, tail = bench.random(32, width), bench.random(width, 4), bench.random(3, width)

    def run(given: Tensor, **tree: Tensor) -> Tensor:
        out = bench.empty(len(given), width)
        causal_conv(given, weight, tail, out, rows=len(given), **tree)
        return out

    got = run(x[:rows])
    exact = _exact(x[:rows], weight, tail)
    yield bench.near(f"{width} channels", got, exact, slack=1e-6)
    yield bench.mostly(f"{width} channels, one rounding", got, exact.bfloat16())
    yield bench.unnoticed(
        "taps reversed", bench.near("", got, _exact(x[:rows], weight.flip(1), tail))
    )
    yield bench.unnoticed("tail lost", bench.near("", got, _exact(x[:rows], weight, tail * 0)))
    paths, depths = bench.paths(PARENTS)
    tree = run(x[:rows], paths=paths, depths=depths)
    for node in range(rows):
        path = path_of(paths, node)
        yield bench.same(f"node {node} and its path", tree[node], run(x[path].contiguous())[-1])
    # A row after its own past, wherever the pass begins.
    both = torch.cat((tail, x))

    def alone(listed: list[int]) -> Tensor:
        if len(listed) > 1:
            return run(x[: len(listed)])
        out = bench.empty(1, width)
        before = both[listed[0] : listed[0] + 3].contiguous()
        causal_conv(x[listed], weight, before, out, rows=1)
        return out

    yield batched_like_alone(bench, f"{width} channels", alone)
    for path in ([], [0], [0, 6], [0, 1, 4, 5]):
        tails = torch.stack((tail, tail.flip(0)))
        raw = torch.stack((x, x.flip(0)))
        shift_tail(tails, raw, bench.ints(len(path)), bench.ints(*path, *[99] * (32 - len(path))))
        wanted = [torch.cat((t, r[path]))[-3:] for t, r in ((tail, x), (tail.flip(0), x.flip(0)))]
        yield bench.same(f"tail after {path}", tails, torch.stack(wanted))
    tails = tail[None].clone()
    shift_tail(tails, x[None], bench.ints(32))
    yield bench.same("tail after a chain", tails[0], x[-3:])


def _exact(x: Tensor, weight: Tensor, tail: Tensor) -> Tensor:
    windows = torch.cat((tail, x)).double().unfold(0, 4, 1)
    total = (windows * weight.double()).sum(-1)
    return total * total.sigmoid()
