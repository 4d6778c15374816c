# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small model end to end on a GPU, before a large one is placed.

Every kernel compiles for its shapes, and captured graphs equal the same passes issued eagerly. Its weights are
random; what is right is what the readable operations compute from the same ones.
"""

from __future__ import annotations

import torch

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model.config import FULL, LINEAR, ModelConfig
from engine.model.cuda import CudaBackend
from engine.model.cuda_ops import CudaOps
from engine.model.reference import ReferenceBackend
from kernels.cuda_build import CudaLibrary

SMOKE = ModelConfig(
    hidden_size=128,
    layers=2,
    layer_types=(LINEAR, FULL),
    intermediate_size=256,
    attention_heads=4,
    kv_heads=2,
    head_dim=64,
    key_heads=1,
    value_heads=3,
    key_dim=64,
    value_dim=64,
    conv_width=4,
    rms_eps=1e-6,
    rope_theta=1e6,
    rotary_dim=16,
    vocab_size=512,
    context_tokens=256,
    tied=False,
    mtp_layers=1,
)
CAPACITY = 128
_PROMPT = tuple((37 * at + 11) % 512 for at in range(40))
_ROWS = tuple((53 * at + 5) % 512 for at in range(6))
_PARENTS = (-1, 0, 1, 0, 3, 3)
_MOST_OFF = (
    0.3  # largest error over the deviation of the logits; a wrong kernel is off by more than 1
)


def smoke(
    library: CudaLibrary | None, device: torch.device, make_ops: type[CudaOps] = CudaOps
) -> str:
    """What is wrong with a prompt, a tree, a chain and a draft of the small model; empty when nothing is."""
    found = []
    for replay in ("1", "0"):
        changes = {f"QWEN38_{name}": replay for name in ("VERIFY_GRAPH", "DRAFT_GRAPH")}
        backend = CudaBackend(
            SMOKE,
            synthetic_weights(SMOKE, "nvfp4", seed=3),
            capacity=CAPACITY,
            knobs=KnobSet.resolve(environ={}, changes=changes),
            device=device,
            library=library,
            make_ops=make_ops,
        )
        found.append(_play(backend))
        backend.close()
    exact = ReferenceBackend(
        SMOKE, synthetic_weights(SMOKE, "nvfp4", seed=3), capacity=CAPACITY, dtype=torch.float32
    )
    wanted, _ = _play(exact)
    (captured, drafted), (eager, drafted_eagerly) = found
    if not torch.equal(captured, eager) or drafted != drafted_eagerly:
        return "a captured graph differs from the same pass issued eagerly"
    off = float((captured - wanted).abs().max() / wanted.std())
    if not off <= _MOST_OFF:
        return (
            f"logits of a small model are off by {off:.2f} deviations from the readable operations"
        )
    return ""


def _play(backend: CudaBackend | ReferenceBackend) -> tuple[torch.Tensor, list[int]]:
    """(logits of a prompt, a tree and a chain behind a commit; a draft behind them)."""
    backend.reset(speculate=True)
    logits = [torch.from_numpy(backend.prefill(_PROMPT).logits.copy())]
    drafted = backend.draft(_ROWS[0], 2)
    logits.append(torch.from_numpy(backend.verify(_ROWS, _PARENTS).logits.copy()))
    backend.commit([0, 3, 5])
    logits.append(torch.from_numpy(backend.verify(_ROWS[:3]).logits.copy()))
    backend.commit(2)
    return torch.cat(logits), [*drafted, *backend.draft(_ROWS[2], 2)]
