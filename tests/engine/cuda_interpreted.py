# SPDX-License-Identifier: MIT OR Apache-2.0
"""A tiny model through the Triton kernels in the interpreter, in a process of its own: prints what it found.

The interpreter is chosen when Triton is imported, so this runs with TRITON_INTERPRET=1 from its start.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from drafters import make_drafter
from interpreting import read_loaded_bounds
from torch import Tensor

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model.cuda import CudaBackend
from engine.model.cuda_kernels import KernelOps
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_smoke import SMOKE

TINY = replace(
    SMOKE,
    intermediate_size=128,
    attention_heads=2,
    kv_heads=1,
    head_dim=16,
    value_heads=2,
    key_dim=16,
    value_dim=16,
    rotary_dim=8,
    vocab_size=48,
    mtp_layers=0,
)
PROMPT, ROWS, PARENTS, PATH = [7, 3], [5, 6, 8], [-1, 0, 0], [0, 2]


def make(ops: type[CudaOps], **knobs: str) -> CudaBackend:
    return CudaBackend(
        TINY,
        synthetic_weights(TINY, "nvfp4", seed=5),
        capacity=96,
        knobs=KnobSet.resolve(
            environ={}, changes={f"QWEN38_{name}": value for name, value in knobs.items()}
        ),
        device="cpu",
        make_ops=ops,
    )


def tree(backend: CudaBackend) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of a tree behind the prompt, and the state after the commit of its path."""
    backend.reset(speculate=False)
    backend.prefill(PROMPT)
    logits = torch.from_numpy(backend.verify(ROWS, PARENTS).logits.copy())
    backend.commit(PATH)
    return logits, backend.committed_state()


def line(backend: CudaBackend) -> tuple[Tensor, dict[str, Tensor]]:
    """The same path by single steps."""
    backend.reset(speculate=False)
    backend.prefill(PROMPT)
    found = []
    for row in PATH:
        found.append(torch.from_numpy(backend.verify([ROWS[row]]).logits.copy()))
        backend.commit(1)
    return torch.cat(found), backend.committed_state()


def drafted(backend: CudaBackend, folder: Path) -> dict[str, Tensor]:
    """What a random block drafter proposes behind the prompt, and what its selector sees."""
    backend.attach_block(make_drafter(folder, TINY))
    backend.reset(speculate=True)
    backend.prefill(PROMPT)
    rows = backend.draft_block(ROWS[0], 5)
    parts = {"logits": torch.from_numpy(rows.logits), "selector": torch.from_numpy(rows.projected)}
    for at, (keys, values) in enumerate(backend._drafters.block.context(backend._run)):
        parts |= {f"keys {at}": keys.float(), f"values {at}": values.float()}
    return parts


def main() -> None:
    torch.set_num_threads(1)
    read_loaded_bounds()
    kernels = make(KernelOps)
    logits, state = tree(kernels)
    alone, stepped = line(kernels)
    plain = make(CudaOps)
    wanted, plain_state = tree(plain)
    spread, forms = float(wanted.std()), {}
    for name, knob in (("stack", {"GDNV_EXACT": "0"}), ("solve", {"GDNV_WY": "1"})):
        other = make(KernelOps, **knob)
        off = float((tree(other)[0] - wanted).abs().max()) / spread
        forms[name] = {"off": off, "paths": other.engaged()}
    with TemporaryDirectory() as folder:
        block, plain_block = (
            drafted(backend, Path(folder) / name)
            for name, backend in (("kernels", kernels), ("plain", plain))
        )
    json.dump(
        {
            "rows": torch.equal(logits[PATH], alone),
            "state": [name for name, part in state.items() if not torch.equal(part, stepped[name])],
            "off": float((logits - wanted).abs().max()) / spread,
            "state_off": max(
                float((part - plain_state[name]).abs().max() / (1 + plain_state[name].abs().max()))
                for name, part in state.items()
            ),
            "forms": forms,
            "block_off": {
                name: float((part - plain_block[name]).abs().max() / plain_block[name].abs().max())
                for name, part in block.items()
            },
            "paths": kernels.engaged(),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
