# SPDX-License-Identifier: MIT OR Apache-2.0
"""What only a GPU can show of the GPU backend, on a small model: `python -m engine.measure.gpu_proof`.

Captured passes against the same ones issued eagerly, rows against single steps, trees against their paths, the
state after every kind of commit, all to the bit; and that operation times are seen. One JSON object on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.measure.gpu_proof_block import random_block
from engine.model.cuda import CudaBackend
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_smoke import CAPACITY, SMOKE, smoke
from kernels.cuda_build import CudaLibrary

ROWS = (1, 2, 3, 8, 9, 16, 17, 24, 32)
_PROMPT = [(37 * at + 11) % SMOKE.vocab_size for at in range(20)]
_EAGER = {"VERIFY_GRAPH": "0", "DRAFT_GRAPH": "0"}
# Of a bushy tree of 12 rows, each leaf's path is decoded on its own.
_PARENTS = (-1, 0, 1, 2, 1, 4, 0, 6, 7, 6, 0, 10)
_PATHS = ((0, 1, 2, 3), (0, 1, 4, 5), (0, 6, 7, 8), (0, 6, 9), (0, 10, 11))


@dataclass(frozen=True, slots=True)
class Proof:
    """One statement and whether it holds."""

    name: str
    ok: bool
    reason: str = ""


class Prover:
    """Plays the small model in several ways and compares."""

    def __init__(
        self,
        library: CudaLibrary | None,
        device: torch.device,
        make_ops: type[CudaOps],
        rows: tuple[int, ...] = ROWS,
    ) -> None:
        self._library, self._device, self._make_ops = library, device, make_ops
        self._rows = rows

    def run(self) -> Iterator[Proof]:
        """Every statement, as it is found."""
        wrong = smoke(self._library, self._device, self._make_ops)
        yield Proof("a small model follows the readable operations", not wrong, wrong)
        captured, eager = self.backend(), self.backend(**_EAGER)
        ids = [(53 * at + 5) % SMOKE.vocab_size for at in range(max(self._rows))]
        alone = self.steps(captured, ids)
        yield _same("single steps, captured and eager", alone, self.steps(eager, ids))
        for count in self._rows:
            for name, backend in (("captured", captured), ("eager", eager)):
                found = self.verified(backend, ids[:count], None)
                yield _same(f"{count} rows, {name}, and single steps", found, alone[:count])
        yield from self.trees(captured, eager)
        yield from self.commits(captured, eager)
        yield from self.blocks()
        yield self.times()
        captured.close()
        eager.close()

    def backend(self, **knobs: str) -> CudaBackend:
        """The small model under given switches."""
        changes = {f"QWEN38_{name}": value for name, value in knobs.items()}
        return CudaBackend(
            SMOKE,
            synthetic_weights(SMOKE, "nvfp4", seed=3),
            capacity=CAPACITY,
            knobs=KnobSet.resolve(environ={}, changes=changes),
            device=self._device,
            library=self._library,
            make_ops=self._make_ops,
        )

    def steps(self, backend: CudaBackend, ids: list[int]) -> Tensor:
        """Logits of plain decoding behind the prompt."""
        _restart(backend)
        found = []
        for token in ids:
            found.append(torch.from_numpy(backend.verify([token]).logits.copy()))
            backend.commit(1)
        return torch.cat(found)

    def verified(
        self, backend: CudaBackend, ids: list[int], parents: tuple[int, ...] | None
    ) -> Tensor:
        """Logits of one verify pass behind the prompt, run twice: a replay must not see the first."""
        _restart(backend)
        backend.verify(ids, parents)
        return torch.from_numpy(backend.verify(ids, parents).logits.copy())

    def trees(self, captured: CudaBackend, eager: CudaBackend) -> Iterator[Proof]:
        """A tree, captured and eager, and each of its paths."""
        ids = [(29 * at + 3) % SMOKE.vocab_size for at in range(len(_PARENTS))]
        tree = self.verified(captured, ids, _PARENTS)
        yield _same("a tree, captured and eager", tree, self.verified(eager, ids, _PARENTS))
        for path in _PATHS:
            line = self.steps(captured, [ids[row] for row in path])
            yield _same(f"the tree's path {list(path)} and single steps", tree[list(path)], line)

    def commits(self, captured: CudaBackend, eager: CudaBackend) -> Iterator[Proof]:
        """The state after rounds of every kind, in several ways."""
        folded = _rounds(captured)
        for name, backend in (
            ("eager", eager),
            ("commits in passes of their own", self.backend(COMMIT_IN_VERIFY="0")),
        ):
            state = _rounds(backend)
            wrong = [part for part, value in folded.items() if not torch.equal(value, state[part])]
            reason = f"differs: {', '.join(wrong)}" if wrong else ""
            yield Proof(f"the state after rounds, captured and {name}", not wrong, reason)

    def blocks(self) -> Iterator[Proof]:
        """Drafts of a block drafter, captured and eager, before and behind a commit; twice as a round asks."""
        found = []
        for knobs in ({}, _EAGER):
            backend = self.backend(**knobs)
            backend.attach_block(random_block(SMOKE))
            _restart(backend)
            parts = []
            for width in (16, 5, 16):
                rows = [backend.draft_block(_PROMPT[0], width) for _ in range(2)][-1]
                parts += [
                    torch.from_numpy(each.astype("float32").ravel())
                    for each in (rows.tokens, rows.logits, rows.projected)
                ]
                backend.verify(_PROMPT[:width])
                backend.commit(3)
            found.append(torch.cat(parts)[None])
            backend.close()
        yield _same("drafts of a block drafter, captured and eager", *found)
        sound = bool(found[0].isfinite().all())
        yield Proof("a block drafter computes numbers", sound, "" if sound else "NaN or infinity")

    def times(self) -> Proof:
        """Whether operations of captured rounds have times."""
        backend = self.backend(OP_TIMES="1")
        _rounds(backend)
        found = backend.operation_times()
        backend.close()
        name = "operations of captured rounds are timed"
        if isinstance(found, str) or not found:
            return Proof(name, False, found or "not one was")
        return Proof(name, True, ", ".join(f"{row.name} {row.total_ms:.3f} ms" for row in found))


def _restart(backend: CudaBackend) -> None:
    backend.reset(speculate=True)
    backend.prefill(_PROMPT)


def _rounds(backend: CudaBackend) -> dict[str, Tensor]:
    """Chains, trees, drafts, a longer chunk of the prompt; everything committed, and a draft's tokens."""
    _restart(backend)
    tree = [(29 * at + 3) % SMOKE.vocab_size for at in range(len(_PARENTS))]
    drafted: list[int] = []
    for keep, path in ((1, _PATHS[0]), (3, _PATHS[2]), (2, _PATHS[4])):
        drafted += backend.draft(tree[0], 3)
        backend.verify(tree[:5])
        backend.commit(keep)
        steps = backend.draft_steps(tree[1], 2, 3)
        drafted += [token for step in steps for token in step.tokens]
        backend.verify(tree, _PARENTS)
        backend.commit(path)
    backend.prefill([*_PROMPT, *_PROMPT])
    return {**backend.committed_state(), "drafted": torch.tensor(drafted)}


def _same(name: str, got: Tensor, wanted: Tensor) -> Proof:
    if torch.equal(got, wanted):
        return Proof(name, True)
    off = (got - wanted).abs().amax(-1)
    rows = (got != wanted).any(-1).nonzero().flatten().tolist()
    return Proof(name, False, f"rows {rows} differ, by up to {float(off.max()):.3g}")


def main() -> int:
    """Prove everything on the first GPU; 3 when a statement does not hold, 1 without a GPU."""
    from engine.model.cuda_ready import GpuNotUsable, ready_library

    try:
        library = ready_library(lambda line: print(line, file=sys.stderr))
    except GpuNotUsable as error:
        seen = torch.cuda.is_available()
        print(f"{'rondo' if seen else 'not available'}: {error}", file=sys.stderr)
        return 3 if seen else 1
    from engine.model.cuda_kernels import KernelOps

    proofs = []
    for proof in Prover(library, library.device, KernelOps).run():
        proofs.append(proof)
        print(f"{'ok  ' if proof.ok else 'FAIL'} {proof.name} {proof.reason}", file=sys.stderr)
    failed = sum(not proof.ok for proof in proofs)
    print(json.dumps({"failed": failed, "proofs": [asdict(proof) for proof in proofs]}, indent=1))
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
