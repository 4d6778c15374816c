# SPDX-License-Identifier: MIT OR Apache-2.0
"""Thousands of rounds of every kind on one backend: memory stands still, states equal a fresh replay."""

from __future__ import annotations

import random

import psutil
import torch
from trees import random_rows

from engine.knobs import KnobSet
from engine.load.synthetic import synthetic_weights
from engine.model.config import ModelConfig
from engine.model.native import NativeBackend
from kernels.build import load_library
from kernels.tape import Pool

ROUNDS = 2_000
CAPACITY = 160
VOCABULARY = 60
CONFIG = ModelConfig.from_dict(
    {
        "model_type": "qwen3_5_text",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CAPACITY,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
        },
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
    }
)


def make() -> NativeBackend:
    return NativeBackend(
        CONFIG,
        synthetic_weights(CONFIG, "bf16", seed=3),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ={}),
        pool=Pool(load_library(), 1),
    )


def assert_equals_replay(backend: NativeBackend, fresh: NativeBackend, ids: list[int]) -> None:
    """State, tail, KV and MTP cache have the bits of plain decoding from an empty sequence."""
    fresh.reset(speculate=True)
    for token in ids:
        fresh.verify([token])
        fresh.commit(1)
    wanted = fresh.committed_state()
    got = backend.committed_state()
    assert got.keys() == wanted.keys()
    for name, part in got.items():
        assert torch.equal(part, wanted[name]), name


def play(rounds: int, seed: int = 0) -> tuple[int, int]:
    """(bytes of resident memory gained over the last two thirds, replays compared)."""
    chance, process = random.Random(seed), psutil.Process()
    backend, fresh = make(), make()
    backend.reset(speculate=True)
    ids: list[int] = []
    resident_bytes, replays = 0, 0
    for index in range(rounds):
        if index == rounds // 3:
            resident_bytes = process.memory_info().rss
        if not ids or backend.length + 14 > CAPACITY or chance.random() < 0.01:
            if ids and chance.random() < 0.3:
                assert_equals_replay(backend, fresh, ids)
                replays += 1
            backend.reset(speculate=True)
            ids = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 8))]
            backend.prefill(ids)
        anchor = chance.randrange(VOCABULARY)
        line = [anchor]
        if chance.random() < 0.6:
            steps = backend.draft_steps(anchor, chance.randint(1, 4), chance.choice((1, 3)))
            line += [step.tokens[0] for step in steps]
        kind = chance.random()
        if kind < 0.4:
            nodes = chance.choice((2, 5, 8, 13))
            rows = random_rows(chance, nodes, VOCABULARY, line=line[:nodes])
            backend.verify(rows.ids, rows.parents)
            path, tokens = rows.path(chance.randrange(nodes)), rows.ids
        else:
            backend.verify(line)
            path, tokens = list(range(chance.randint(1, len(line)))), line
        if chance.random() < 0.1:
            continue  # cancelled between the pass and its commit
        backend.commit(path)
        ids += [tokens[row] for row in path]
        if chance.random() < 0.05:
            ids.append(chance.randrange(VOCABULARY))
            backend.prefill(ids[-1:])
    assert_equals_replay(backend, fresh, ids)
    grown = process.memory_info().rss - resident_bytes
    for each in (backend, fresh):
        each.close()
    return grown, replays + 1


def test_thousands_of_rounds_keep_memory_and_bits() -> None:
    grown, replays = play(ROUNDS)
    assert grown < 2 << 20
    assert replays > 5
