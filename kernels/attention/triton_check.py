# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of attention in Triton: preparation, the cache, rows alone and in a batch, tree nodes as chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.attention.prefill import attend_prefill
from kernels.attention.reference import attention
from kernels.attention.triton import AttentionWork, attend
from kernels.checks import CheckResult
from kernels.elementwise.triton import output_gate
from kernels.kv_cache.triton import move_rows
from kernels.rms_norm.reference import rms_norm
from kernels.rope.native import rope_table
from kernels.rope.reference import apply_rope, rope_tables
from kernels.rope.triton import attention_prepare
from kernels.triton_checks import PARENTS, Bench, batched_like_alone, path_of

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary

EPS = 1e-6
THETA = 1e7


@dataclass(frozen=True)
class Heads:
    """Heads of a case and the positions of its cache."""

    query: int
    key: int
    dim: int
    rotary: int
    capacity: int


CASES = (Heads(6, 2, 32, 8, 1088), Heads(24, 4, 256, 64, 40960))
STARTS = (0, 1, 300, 509, 4096, 33000)
ROWS = (1, 8, 17, 32)


def check(
    library: CudaLibrary,
    *,
    seed: int = 0,
    cases: tuple[Heads, ...] = CASES,
    starts: tuple[int, ...] = STARTS,
    batches: tuple[int, ...] = ROWS,
) -> Iterator[CheckResult]:
    """Every case: preparation and cache, then rows and trees from every start that fits."""
    for heads in cases:
        bench = Bench("attention", library, seed)
        yield from _prepared(bench, heads)
        yield _prepared_alone(bench, heads, batches)
        yield from _moved(bench, heads)
        case = _Case(bench, heads)
        for start in starts:
            if start + max(batches) <= heads.capacity:
                yield from case.chain(start, batches)
                yield from case.tree(start)
        yield from case.extremes()
        yield from case.prefill()
        yield from case.faults()


def _prepared(bench: Bench, h: Heads) -> Iterator[CheckResult]:
    rows, start = 6, 7
    q = bench.random(rows, h.query * 2 * h.dim)
    k, v = bench.random(rows, h.key * h.dim), bench.random(rows, h.key * h.dim, salt=1)
    q_weight, k_weight = bench.random(h.dim, salt=2) * 0.1, bench.random(h.dim, salt=3) * 0.1
    table = rope_table(h.capacity, h.rotary, THETA).to(bench.device)
    parents = (-1, 0, 1, 1, 0, 4)
    _, depths = bench.paths(parents)
    for tree in (False, True):
        keys, values = (bench.empty(h.key, h.capacity, h.dim) for _ in range(2))
        q_out = bench.empty(rows, h.query, h.dim)
        attention_prepare(
            q, k, v, q_weight, k_weight, table, bench.ints(start), q_out, keys, values,
            eps=EPS, rows=rows, depths=depths if tree else None,
        )  # fmt: skip
        level = depths[:rows].cpu() if tree else torch.arange(rows)
        cos, sin = rope_tables(start + level, h.rotary, THETA, torch.bfloat16)
        cos, sin = cos.to(bench.device), sin.to(bench.device)
        queries = rms_norm(q.view(rows, h.query, 2, h.dim)[:, :, 0], q_weight, EPS)
        label = f"{h.query} heads of {h.dim}, {'tree' if tree else 'chain'}"
        here = slice(start, start + rows)
        # A norm off by one unit moves both products of the rotation.
        exact = apply_rope(queries, cos, sin)
        yield bench.near(f"{label}: queries", q_out, exact, ulps=3, slack=2e-2)
        yield bench.mostly(f"{label}: queries, rounding points", q_out, exact)
        yield bench.unnoticed(
            "base of the rotation x 10",
            bench.near(
                "", q_out, _turned(queries, start + level, h.rotary, bench), ulps=3, slack=2e-2
            ),
        )
        exact = apply_rope(rms_norm(k.view(rows, h.key, h.dim), k_weight, EPS), cos, sin)
        got = keys[:, here].transpose(0, 1).contiguous()
        yield bench.near(f"{label}: keys", got, exact, ulps=3, slack=2e-2)
        yield bench.mostly(f"{label}: keys, rounding points", got, exact)
        stored = values[:, here].transpose(0, 1).reshape(rows, -1)
        yield bench.same(f"{label}: values", stored, v)
        around = torch.cat((keys[:, :start], keys[:, start + rows :], values[:, start + rows :]), 1)
        yield bench.holds(f"{label}: wrote elsewhere", bool(around.isnan().all()))
    attention_prepare(
        q, k, v, q_weight, k_weight, table, bench.ints(h.capacity - 2), q_out, keys, values,
        eps=EPS, rows=rows,
    )  # fmt: skip
    lost = q_out[2:].isnan().all() and not q_out[:2].isnan().any()
    yield bench.holds("rows past the cache must give NaN queries, and they alone", bool(lost))
    # In a bushy tree a row may lie past the cache at a position inside; what follows is the next head's.
    keys, values = (bench.empty(h.key, h.capacity, h.dim) for _ in range(2))
    _, depths = bench.paths((-1, 0, 0, 0, 0, 0))
    attention_prepare(
        q, k, v, q_weight, k_weight, table, bench.ints(h.capacity - 3), q_out, keys, values,
        eps=EPS, rows=rows, depths=depths,
    )  # fmt: skip
    lost = q_out[3:].isnan().all() and not q_out[:3].isnan().any()
    yield bench.holds("nodes past the cache must give NaN queries, and they alone", bool(lost))
    before = torch.cat((keys[:, : h.capacity - 3], values[:, : h.capacity - 3]))
    yield bench.holds("nodes past the cache wrote elsewhere", bool(before.isnan().all()))


def _prepared_alone(bench: Bench, h: Heads, batches: tuple[int, ...]) -> CheckResult:
    """Rows together and each row alone at its position; a head of each kind, as heads are apart."""
    start, most = 7, max(batches)
    q, k, v = (bench.random(most, width * h.dim, salt=width) for width in (2, 1, 1))
    weights = bench.random(h.dim, salt=2) * 0.1, bench.random(h.dim, salt=3) * 0.1
    table = rope_table(h.capacity, h.rotary, THETA).to(bench.device)

    def run(rows: list[int]) -> Tensor:
        count, first = len(rows), start + rows[0]
        queries = bench.empty(count, 1, h.dim)
        stored = [bench.empty(1, h.capacity, h.dim) for _ in range(2)]
        attention_prepare(
            q[rows], k[rows], v[rows], *weights, table, bench.ints(first), queries, *stored,
            eps=EPS, rows=count,
        )  # fmt: skip
        appended = [part[0, first : first + count] for part in stored]
        return torch.cat((queries[:, 0], *appended), 1)

    return batched_like_alone(bench, f"preparation of heads of {h.dim}", run, batches)


def _turned(queries: Tensor, positions: Tensor, rotary: int, bench: Bench) -> Tensor:
    cos, sin = rope_tables(positions, rotary, 10 * THETA, torch.bfloat16)
    return apply_rope(queries, cos.to(bench.device), sin.to(bench.device))


def _moved(bench: Bench, h: Heads) -> Iterator[CheckResult]:
    keys, values = (bench.random(2 * h.key, 64, h.dim, salt=salt) for salt in (1, 2))
    for rows in ([], [0, 1], [0, 2, 3, 7], list(range(1, 32))):
        moved = keys.clone(), values.clone()
        start = 20 + len(rows)
        move_rows(
            *moved,
            bench.ints(*rows, *[9] * (32 - len(rows))),
            bench.ints(len(rows)),
            bench.ints(start),
        )
        for got, before in zip(moved, (keys, values), strict=True):
            wanted = before.clone()
            wanted[:, 20:start] = before[:, [20 + r for r in rows]]
            yield bench.same(f"rows {rows} moved", got, wanted)


class _Case:
    """A filled cache and what rows see in it."""

    def __init__(self, bench: Bench, heads: Heads) -> None:
        self.bench, self.h = bench, heads
        shape = (heads.key, heads.capacity, heads.dim)
        self.keys, self.values = bench.random(*shape, salt=1), bench.random(*shape, salt=2)
        self.scale = heads.dim**-0.5
        self.label = f"{heads.query} heads of {heads.dim}"

    def run(
        self,
        q: Tensor,
        start: int,
        tree: tuple[Tensor, Tensor] | None = None,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        gated: Tensor | None = None,
    ) -> Tensor:
        h, rows = self.h, len(q)
        longest = h.capacity
        work = AttentionWork.empty(
            rows=rows, heads=h.query, dim=h.dim, longest=longest, device=self.bench.device
        )
        for part in (work.m, work.total, work.acc):
            part.fill_(float("nan"))
        out = self.bench.empty(rows, h.query * h.dim)
        paths, depths = tree or self.bench.paths()
        attend(
            q.contiguous(), self.keys if keys is None else keys, self.values if values is None else values,
            out, self.bench.ints(start), paths, depths, work,
            scale=self.scale, rows=rows, longest=longest, gated=gated,
        )  # fmt: skip
        return out

    def exact(
        self,
        q: Tensor,
        start: int,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """float64 on the CPU."""
        length = start + len(q)
        stored = self.keys if keys is None else keys, self.values if values is None else values
        k, v = (t[:, :length].transpose(0, 1).double().cpu() for t in stored)
        return attention(q.double().cpu(), k, v, start, scale or self.scale).reshape(len(q), -1)

    def bounded(self, got: Tensor, exact: Tensor) -> CheckResult:
        # Probabilities are rounded to bf16: half a unit each, against the largest value.
        return self.bench.near(self.label, got, exact, slack=2.0**-8 * 4)

    def chain(self, start: int, batches: tuple[int, ...]) -> Iterator[CheckResult]:
        most = max(batches)
        q = self.bench.random(most, self.h.query, self.h.dim, salt=start)
        alone = {
            row: self.run(q[row : row + 1], start + row)
            for row in {0, *(size - 1 for size in batches)}
        }
        for size in batches:
            got = self.run(q[:size], start)
            if size == most:
                yield self.bounded(got, self.exact(q, start))
            for row in sorted({0, size - 1}):
                what = f"{self.label}: row {row} of {size} from {start} and the row alone"
                yield self.bench.same(what, got[row : row + 1], alone[row], rows=True)

    def tree(self, start: int) -> Iterator[CheckResult]:
        paths, depths = self.bench.paths(PARENTS)
        q = self.bench.random(len(PARENTS), self.h.query, self.h.dim, salt=start)
        got = self.run(q, start, (paths, depths))
        for node in (0, 3, 5, 6, 9, 11):
            path = path_of(paths, node)
            keys, values = self.keys.clone(), self.values.clone()
            for stored, source in ((keys, self.keys), (values, self.values)):
                stored[:, start : start + len(path)] = source[:, [start + n for n in path]]
            alone = self.run(q[node : node + 1], start + len(path) - 1, None, keys, values)
            what = f"{self.label}: node {node} from {start} and plain decoding of its path"
            yield self.bench.same(what, got[node : node + 1], alone, rows=True)

    def extremes(self) -> Iterator[CheckResult]:
        """Scores from far apart to all the same, and keys of nearly one direction."""
        start, rows = 45, 3
        q = self.bench.random(rows, self.h.query, self.h.dim)
        one = self.keys[:, :1]
        for name, queries, keys in (
            ("one key takes all", q * 64, self.keys),
            ("scores below the normal range", q * 2.0**-126, self.keys),
            ("equal keys", q, one.expand_as(self.keys).contiguous()),
            ("keys nearly alike", q * 16, one * 0.95 + self.keys * 0.05),
        ):
            got = self.run(queries, start, keys=keys)
            exact = self.exact(queries, start, keys)
            yield self.bench.near(f"{self.label}, {name}", got, exact, slack=2.0**-8 * 4)

    def prefill(self) -> Iterator[CheckResult]:
        for first, rows in ((0, 40), (21, 19)):
            q = self.bench.random(rows, self.h.query, self.h.dim, salt=first)
            out = attend_prefill(q, self.keys, self.values, first=first, scale=self.scale)
            yield self.bounded(out.reshape(rows, -1), self.exact(q, first))

    def faults(self) -> Iterator[CheckResult]:
        start, rows = 40, 3
        q = self.bench.random(rows, self.h.query, self.h.dim)
        got = self.run(q, start)
        for fault, wrong in {
            "two pages of keys swapped": self.exact(q, start, keys=_swapped(self.keys)),
            "two pages of values swapped": self.exact(q, start, values=_swapped(self.values)),
            "scale of the scores off by a quarter": self.exact(q, start, scale=1.25 * self.scale),
            "split off by one": self.exact(q, start - 1),
        }.items():
            yield self.bench.unnoticed(fault, self.bounded(got, wrong))
        gated = self.bench.random(rows, self.h.query * 2 * self.h.dim)
        output_gate(got, gated, got, rows=rows, dim=self.h.dim)
        yield self.bench.same(
            f"{self.label}: gate in the same launch", self.run(q, start, gated=gated), got
        )
        edge = self.h.capacity - 2
        past, inside = self.run(q, edge), self.run(q[:2], edge)
        yield self.bench.holds(
            f"{self.label}: a row past the cache must be NaN", bool(past[2:].isnan().all())
        )
        yield self.bench.same(f"{self.label}: rows beside one past the cache", past[:2], inside)
        unseen = self.keys.clone()
        unseen[:, start + rows :] = float("nan")
        again = self.run(q, start, keys=unseen)
        yield self.bench.same(
            f"{self.label}: positions past the rows are read", again, self.run(q, start)
        )


def _swapped(stored: Tensor) -> Tensor:
    """The cache with its first two pages of 16 positions exchanged."""
    pages = stored.clone()
    pages[:, :16], pages[:, 16:32] = stored[:, 16:32], stored[:, :16]
    return pages
