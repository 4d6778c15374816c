# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks of the gated delta rule in Triton: float64 recurrence, bits of nodes and commits, solved forms."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.checks import CheckResult
from kernels.gated_delta.triton import commit, delta_operands, walk
from kernels.gated_delta.triton_chunks import Solved, prefill, solve, walk_solved
from kernels.gated_delta.triton_pass import Accepted, DeltaFactors, DeltaPass
from kernels.gated_delta.triton_tree import walk_stack
from kernels.triton_checks import PARENTS, Bench, path_of

if TYPE_CHECKING:
    from kernels.cuda_build import CudaLibrary


@dataclass(frozen=True)
class Heads:
    """Heads and dimensions of a case."""

    key: int
    value: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        """Width of a convolution's row."""
        return 2 * self.key * self.key_dim + self.value * self.value_dim


CASES = (Heads(2, 4, 16, 32), Heads(16, 48, 128, 128))
PROMPT = 301


def check(
    library: CudaLibrary,
    *,
    seed: int = 0,
    cases: tuple[Heads, ...] = CASES,
    batches: tuple[int, ...] = (1, 2, 7, 16, 17, 32),
    prompt: int = PROMPT,
    alike: tuple[float, ...] = (1.0, 0.05),
) -> Iterator[CheckResult]:
    """Every case with independent keys and with keys that are nearly one direction."""
    for heads in cases:
        for spread in alike:
            case = _Case(Bench("gated_delta", library, seed), heads, max(prompt, 32), spread)
            yield from case.chain(batches)
            yield from case.shorter(batches)
            yield from case.tree()
            yield from case.commits()
            yield from case.prefilled(prompt)
            yield from case.extremes()
            yield from case.faults()


class _Case:
    """Operands of many rows, and passes over some of them."""

    def __init__(self, bench: Bench, heads: Heads, rows: int, spread: float) -> None:
        self.bench, self.h = bench, heads
        self.conv = bench.random(rows, heads.channels)
        width = heads.key * heads.key_dim
        keys = self.conv[:, width : 2 * width]
        self.conv[:, width : 2 * width] = keys[:1] * (1 - spread) + keys * spread
        self.g = -bench.random(rows, heads.value, dtype=torch.float32).abs() * 0.3
        self.beta = bench.random(rows, heads.value, dtype=torch.float32, salt=1).sigmoid()
        self.start = bench.random(heads.value, heads.key_dim, heads.value_dim, dtype=torch.float32)
        self.none = self.accepted([])
        self.unused = self.factors(32)
        self.label = f"{heads.value} heads of {heads.key_dim}x{heads.value_dim}, spread {spread}"

    def accepted(self, rows: list[int]) -> Accepted:
        return Accepted(
            self.bench.ints(len(rows)), self.bench.ints(*rows, *[31] * (32 - len(rows)))
        )

    def factors(self, rows: int, layers: int | None = None) -> DeltaFactors:
        made = DeltaFactors.empty(
            rows=rows, key_heads=self.h.key, value_heads=self.h.value, key_dim=self.h.key_dim,
            value_dim=self.h.value_dim, device=self.bench.device, layers=layers,
        )  # fmt: skip
        for part in (made.k, made.u, made.g, made.gc):
            part.fill_(float("nan"))
        return made

    def operands(
        self,
        state: Tensor,
        rows: list[int],
        accepted: Accepted | None = None,
        kept: DeltaFactors | None = None,
    ) -> DeltaPass:
        """One pass over these rows, ready to be walked."""
        count, h = len(rows), self.h
        size = max(count, 32)
        factors, conv = self.factors(size), self.conv[rows].contiguous()
        q = self.bench.empty(size, h.key, h.key_dim, dtype=torch.float32)
        delta_operands(conv, q, factors.k, rows=count)
        factors.g[:count] = self.g[rows]
        beta = self.bench.empty(size, h.value, dtype=torch.float32)
        beta[:count] = self.beta[rows]
        out = self.bench.empty(count, h.value * h.value_dim)
        v = conv[:, 2 * h.key * h.key_dim :]
        return DeltaPass(
            state, q, factors, v, beta, out, count, accepted or self.none, kept or self.unused
        )

    def walk(
        self,
        state: Tensor,
        rows: list[int],
        *,
        advance: bool = False,
        tree: tuple[Tensor, Tensor] | None = None,
        accepted: Accepted | None = None,
        kept: DeltaFactors | None = None,
    ) -> DeltaPass:
        made = self.operands(state, rows, accepted, kept)
        paths, depths = tree or (None, None)
        walk(made, advance=advance, paths=paths, depths=depths)
        return made

    def walk_solved(self, made: DeltaPass, tree: tuple[Tensor, Tensor] | None = None) -> None:
        work = Solved.empty(rows=made.rows, value_heads=self.h.value, device=self.bench.device)
        paths, depths = tree or (None, None)
        solve(made.q, made.factors, made.beta, work, rows=made.rows, paths=paths, depths=depths)
        walk_solved(made, work)

    def exact(
        self, rows: list[int], conv: Tensor | None = None, g: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Answers and last state in float64 on the CPU."""
        h = self.h
        raw = (self.conv if conv is None else conv)[rows].double().cpu()
        width = h.key * h.key_dim
        q = raw[:, :width].view(-1, h.key, h.key_dim)
        k = raw[:, width : 2 * width].view(-1, h.key, h.key_dim)
        q, k = (t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for t in (q, k))
        q, k = (t.repeat_interleave(h.value // h.key, 1) for t in (q * h.key_dim**-0.5, k))
        v = raw[:, 2 * width :].view(-1, h.value, h.value_dim)
        g = (self.g if g is None else g)[rows].double().cpu()
        beta = self.beta[rows].double().cpu()
        state, answers = self.start.double().cpu(), []
        for t in range(len(rows)):
            state = state * g[t].exp()[:, None, None]
            d = (v[t] - torch.einsum("hk,hkv->hv", k[t], state)) * beta[t][:, None]
            state = state + k[t][:, :, None] * d[:, None, :]
            answers.append(torch.einsum("hk,hkv->hv", q[t], state))
        return torch.stack(answers).view(len(rows), -1), state

    def chain(self, batches: tuple[int, ...]) -> Iterator[CheckResult]:
        bench, rows = self.bench, list(range(max(batches)))
        answers, last = self.exact(rows)
        slack = 2e-6 * float(answers.abs().max())
        state = self.start.clone()
        alone = torch.cat([self.walk(state, [row], advance=True).out for row in rows])
        yield bench.near(f"{self.label}: decoding", alone, answers, slack=slack)
        yield bench.close(f"{self.label}: state", state, last, relative=1e-5)
        for size in batches:
            walked = self.start.clone()
            got = self.walk(walked, rows[:size])
            what = f"{self.label}: {size} rows and the rows alone"
            yield bench.same(what, got.out, alone[:size], rows=True)
            yield bench.same(f"{self.label}: a verify pass moved the state", walked, self.start)
            total = self.g[:size].double().cumsum(0)
            yield bench.close(
                f"{self.label}: cumulative gate", got.factors.gc[:size], total, relative=1e-6
            )
        walked = self.start.clone()
        self.walk(walked, rows, advance=True)
        yield bench.same(f"{self.label}: state after a chain", walked, state)

    def shorter(self, batches: tuple[int, ...]) -> Iterator[CheckResult]:
        """The forms that take rows together: a pass has the bits of a longer one's first rows."""
        whole = self.together(list(range(max(batches))))
        for size in batches:
            for (name, long), short in zip(
                whole.items(), self.together(list(range(size))).values(), strict=True
            ):
                what = f"{self.label}, {name}: {size} rows and the first of {max(batches)}"
                yield self.bench.same(what, short, long[:size], rows=True)

    def together(self, rows: list[int]) -> dict[str, Tensor]:
        """Answers and corrections of a chain by the stack and by the solve."""
        found = {}
        for name in ("stack", "solved"):
            made = self.operands(self.start.clone(), rows)
            if name == "stack":
                walk_stack(made, depths=self.bench.paths()[1])
            else:
                self.walk_solved(made)
            corrections = made.factors.u[: made.rows].flatten(1)
            found[name] = torch.cat((made.out.float(), corrections), 1)
        return found

    def extremes(self) -> Iterator[CheckResult]:
        """A state all but forgotten, one that never fades, no write and a whole one, equal keys."""
        rows = list(range(7))
        case = copy(self)
        width = self.h.key * self.h.key_dim
        case.conv, case.g, case.beta = self.conv.clone(), self.g.clone(), self.beta.clone()
        case.conv[:4, width : 2 * width] = case.conv[:1, width : 2 * width]
        case.conv[:, 2 * width :] *= 1000
        for row, (decay, strength) in enumerate(
            ((0.0, 1.0), (-60.0, 1.0), (0.0, 0.0), (-1e-7, 1.0))
        ):
            case.g[row], case.beta[row] = decay, strength
        answers, last = case.exact(rows)
        slack = 1e-5 * float(answers.abs().max())
        state = self.start.clone()
        got = case.walk(state, rows, advance=True)
        yield self.bench.near(f"{self.label}: extremes", got.out, answers, slack=slack)
        yield self.bench.close(f"{self.label}: state after extremes", state, last, relative=1e-5)
        solved = case.together(rows)["solved"][:, : answers.shape[1]]
        yield self.bench.close(f"{self.label}: extremes, solved", solved, answers, relative=2.0**-7)

    def tree(self) -> Iterator[CheckResult]:
        bench, rows = self.bench, list(range(len(PARENTS)))
        tables = bench.paths(PARENTS)
        got = self.walk(self.start.clone(), rows, tree=tables)
        state = self.start.clone()
        stacked, solved = (self.operands(state, rows) for _ in range(2))
        walk_stack(stacked, depths=tables[1])
        self.walk_solved(solved, tables)
        yield bench.same(f"{self.label}: a tree moved the state", state, self.start)
        for node in rows:
            path = path_of(tables[0], node)
            alone = self.walk(self.start.clone(), path)
            what = f"{self.label}: node {node} and its path"
            yield bench.same(what, got.out[node], alone.out[-1], rows=True)
            yield bench.same(what, got.factors.u[node], alone.factors.u[len(path) - 1], rows=True)
        count = len(rows)
        for name, other in (("stack", stacked), ("solved", solved)):
            yield bench.close(
                f"{self.label}, {name}: corrections",
                other.factors.u[:count], got.factors.u[:count], relative=1e-5,
            )  # fmt: skip
            gates = other.factors.gc[:count], got.factors.gc[:count]
            yield bench.close(f"{self.label}, {name}: gates", *gates, relative=1e-6)
            yield bench.close(
                f"{self.label}, {name}: answers", other.out, got.out, relative=2.0**-7
            )

    def commits(self) -> Iterator[CheckResult]:
        bench, rows = self.bench, list(range(len(PARENTS)))
        tables = bench.paths(PARENTS)
        node = 5
        path, after = path_of(tables[0], node), [12, 13]
        starts, kepts = (self.start, self.start.flip(0) * 2), []
        decoded, layers = torch.stack(starts), self.factors(32, layers=2)
        for layer, first in enumerate((0, 14)):  # the second layer has other rows
            own = self.walk(starts[layer].clone(), [first + row for row in rows], tree=tables)
            self.walk(decoded[layer], [first + row for row in path], advance=True)
            kepts.append(own.factors)
            for part, of_layer in zip(_parts(layers), _parts(own.factors), strict=True):
                part[layer] = of_layer
        kept = kepts[0]
        accepted = self.accepted(path)
        for exact in (True, False):
            states = torch.stack(starts)
            commit(states, layers, accepted, exact=exact)
            if exact:
                yield bench.same(f"{self.label}: commit and decoding", states, decoded)
            else:
                yield bench.close(f"{self.label}: low-rank commit", states, decoded, relative=1e-5)
            inside = self.start.clone()
            made = self.operands(inside, after, accepted, kept)
            if exact:
                walk(made, advance=False)
                then = self.walk(states[0].clone(), after)
                yield bench.same(f"{self.label}: verify after a commit", made.out, then.out)
            else:
                walk_stack(made, depths=bench.paths()[1])
            yield bench.same(
                f"{self.label}: commit in a verify pass, exact {exact}", inside, states[0]
            )
            if not exact:
                inside = self.start.clone()
                self.walk_solved(self.operands(inside, after, accepted, kept))
                yield bench.same(f"{self.label}: commit before a solved pass", inside, states[0])
        nothing = self.start[None].clone()
        commit(nothing, DeltaFactors(*(p[:1] for p in _parts(layers))), self.none, exact=True)
        yield bench.same(f"{self.label}: a commit of nothing", nothing[0], self.start)

    def prefilled(self, prompt: int) -> Iterator[CheckResult]:
        rows = list(range(prompt))
        state = self.start.clone()
        made = self.operands(state, rows)
        work = Solved.empty(rows=prompt, value_heads=self.h.value, device=self.bench.device)
        solve(made.q, made.factors, made.beta, work, rows=prompt)
        prefill(state, made.q, made.factors, made.v, work, made.out, rows=prompt)
        answers, last = self.exact(rows)
        yield self.bench.close(f"{self.label}: prompt answers", made.out, answers, relative=2.0**-8)
        yield self.bench.close(f"{self.label}: prompt state", state, last, relative=1e-4)

    def faults(self) -> Iterator[CheckResult]:
        rows = list(range(6))
        got = self.walk(self.start.clone(), rows).out
        width = self.h.key * self.h.key_dim
        swapped = self.conv.clone()
        swapped[:, width : 2 * width] = self.conv[:, width : 2 * width].roll(self.h.key_dim, 1)
        slack = 1e-4 * float(got.abs().max())
        wrong = self.exact(rows, swapped)[0]
        yield self.bench.unnoticed(
            "key heads shifted", self.bench.near("", got, wrong, slack=slack)
        )
        wrong = self.exact([0, 1, 2, 4, 3, 5])[0]
        yield self.bench.unnoticed("two rows swapped", self.bench.near("", got, wrong, slack=slack))
        wrong = self.exact(rows, g=self.g.roll(1, 1))[0]
        yield self.bench.unnoticed(
            "decay of the next head", self.bench.near("", got, wrong, slack=slack)
        )


def _parts(factors: DeltaFactors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return factors.k, factors.u, factors.g, factors.gc
