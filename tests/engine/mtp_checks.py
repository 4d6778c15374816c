# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the MTP head promises on every backend, and a twin written from its formulas to hold it against."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from backends import BackendKind, Loaded
from oracle import STATE_CASE, oracle_hidden, token_ids
from torch import Tensor
from torch.nn import functional

from engine.model.backend import Backend

CAPACITY = 128


class Twin:
    """The MTP head in float32 without a cache: every call recomputes all pairs from the first position."""

    def __init__(self, loaded: Loaded) -> None:
        case, model = loaded.case, loaded.oracle
        self.case = case
        self.tensors = {name.removeprefix("mtp."): value for name, value in loaded.mtp.items()}
        self.embedding = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], 1 + self.tensors[f"{name}.weight"], 1e-6)

    def product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def rotate(self, x: Tensor) -> Tensor:
        """x [T, heads, head_dim] at positions 0..T-1, by complex multiplication of the rotated half pairs."""
        half = int(self.case.head_dim * self.case.rotary) // 2
        speed = self.case.theta ** (-torch.arange(half) / half)
        turn = torch.polar(torch.ones(len(x), half), torch.arange(len(x))[:, None] * speed)[:, None]
        turned = torch.complex(x[..., :half], x[..., half : 2 * half]) * turn
        return torch.cat((turned.real, turned.imag, x[..., 2 * half :]), -1)

    def rows(self, hidden: Tensor, following: Sequence[int]) -> Tensor:
        """y [T, hidden] of pairs (hidden of position p, token of position p + 1), p = 0..T-1."""
        (queries, shared), size, count = self.case.heads, self.case.head_dim, len(following)
        embedded = self.norm(self.embedding[torch.tensor(following)], "pre_fc_norm_embedding")
        pair = torch.cat((embedded, self.norm(hidden, "pre_fc_norm_hidden")), -1)
        x = self.product(pair, "fc")
        normed = self.norm(x, "layers.0.input_layernorm")
        attention = "layers.0.self_attn."
        both = self.product(normed, attention + "q_proj").view(count, queries, 2 * size)
        query = self.rotate(self.norm(both[..., :size], attention + "q_norm"))
        key = self.product(normed, attention + "k_proj").view(count, shared, size)
        key = self.rotate(self.norm(key, attention + "k_norm"))
        value = self.product(normed, attention + "v_proj").view(count, shared, size)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1),
            is_causal=True, enable_gqa=True,
        ).transpose(0, 1)  # fmt: skip
        gated = (mixed * both[..., size:].sigmoid()).reshape(count, -1)
        x = x + self.product(gated, attention + "o_proj")
        normed = self.norm(x, "layers.0.post_attention_layernorm")
        if self.case.experts[0]:
            return self.norm(x + self.experts(normed), "norm")
        return self.norm(x + self.gated(normed, "layers.0.mlp."), "norm")

    def gated(self, x: Tensor, name: str) -> Tensor:
        gate = functional.silu(self.product(x, name + "gate_proj"))
        return self.product(gate * self.product(x, name + "up_proj"), name + "down_proj")

    def experts(self, x: Tensor) -> Tensor:
        """Every expert on every row, weighted by chances that are 0 for all but the chosen ones."""
        mlp, tensors = "layers.0.mlp.", self.tensors
        both = torch.einsum("th,eih->tei", x, tensors[mlp + "experts.gate_up_proj"])
        gate, up = both.chunk(2, -1)
        y = torch.einsum(
            "tei,ehi->teh", functional.silu(gate) * up, tensors[mlp + "experts.down_proj"]
        )
        chances = self.product(x, mlp + "gate").softmax(-1)
        least = chances.topk(self.case.experts[1]).values[:, -1:]
        chosen = torch.where(chances < least, 0.0, chances)
        weights = chosen / chosen.sum(-1, keepdim=True)
        shared = self.product(x, mlp + "shared_expert_gate").sigmoid()
        return (weights[..., None] * y).sum(1) + shared * self.gated(x, mlp + "shared_expert.")

    def draft(self, hidden: Tensor, following: Sequence[int], depth: int) -> list[int]:
        """`depth` tokens after the pairs; further pairs take the head's own output as hidden."""
        tokens, drafted = list(following), []
        for _ in range(depth):
            y = self.rows(hidden, tokens)[-1:]
            drafted.append(int((y @ self.head.T).argmax()))
            hidden, tokens = torch.cat((hidden, y)), [*tokens, drafted[-1]]
        return drafted


def draft_of_twin(loaded: Loaded, ids: Sequence[int], anchor: int, depth: int) -> list[int]:
    hidden = oracle_hidden(loaded.oracle, list(ids))
    return Twin(loaded).draft(hidden, [*ids[1:], anchor], depth)


def check_mtp_cache_over_rounds(kind: BackendKind, loaded: Loaded, seed: int) -> None:
    """After rounds with and without drafts the MTP cache is that of plain steps."""
    chance = random.Random(seed)
    ids = token_ids(STATE_CASE, CAPACITY, seed=23 + seed)
    backend = kind.make(loaded.config, loaded.weights, CAPACITY)
    backend.reset(speculate=True)
    at = chance.randint(1, 20)
    backend.prefill(ids[:at])
    prompt = at
    computes_in_float32 = kind.name == "reference float32"
    while at + 8 < CAPACITY:
        if chance.random() < 0.6:
            depth = chance.randint(1, 4)
            drafted = backend.draft(ids[at], depth)
            assert len(drafted) == depth
            if computes_in_float32:
                assert drafted == draft_of_twin(loaded, ids[:at], ids[at], depth)
        accepted = chance.randint(1, 4)
        rejected = chance.randint(0, 3)
        wrong = [(ids[at + accepted + row] + 1) % STATE_CASE.vocab for row in range(rejected)]
        backend.verify([*ids[at : at + accepted], *wrong])
        backend.commit(accepted)
        at += accepted
    assert_equals_replay(kind, loaded, backend, ids[:at], prompt)


def assert_equals_replay(
    kind: BackendKind, loaded: Loaded, backend: Backend, ids: list[int], prompt: int
) -> None:
    """The MTP cache has the bits of plain steps after the same prompt, and the values of one prefill."""
    stepwise = kind.make(loaded.config, loaded.weights, CAPACITY)
    whole = kind.make(loaded.config, loaded.weights, CAPACITY)
    for fresh in (stepwise, whole):
        fresh.reset(speculate=True)
    stepwise.prefill(ids[:prompt])
    for token in ids[prompt:]:
        stepwise.verify([token])
        stepwise.commit(1)
    whole.prefill(ids)
    drafts = [each.draft(0, 4) for each in (backend, stepwise, whole)]
    assert drafts[0] == drafts[1]
    kept, single, once = (kind.snapshot(each) for each in (backend, stepwise, whole))
    for name in ("mtp keys", "mtp values"):
        assert len(kept[name]) >= len(ids) - 1
        assert torch.equal(kept[name], single[name])
        assert kind.equal(kept[name], once[name]), name


def check_drafts_need_a_head(kind: BackendKind, loaded: Loaded) -> None:
    """There is no draft without a head, a committed token, or the wish to speculate."""
    ids = token_ids(STATE_CASE, 9, seed=41)
    backend = kind.make(loaded.config, loaded.weights, 16)
    backend.reset(speculate=True)
    assert backend.draft(ids[0], 3) == []
    backend.prefill(ids[:8])
    assert len(backend.draft(ids[8], 3)) == 3
    assert backend.draft(ids[8], 0) == []
    backend.reset(speculate=False)
    backend.prefill(ids[:8])
    assert backend.draft(ids[8], 3) == []
    headless = kind.make(
        replace(loaded.config, mtp_layers=0), replace(loaded.weights, mtp=None), 16
    )
    headless.reset(speculate=True)
    headless.prefill(ids[:8])
    assert headless.draft(ids[8], 3) == []
