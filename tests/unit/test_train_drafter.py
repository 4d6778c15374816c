# SPDX-License-Identifier: MIT OR Apache-2.0
"""Training the block drafter: its forward against the engine's, its losses, a run of a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.load.drafter import read_drafter
from engine.load.weights import parts_of
from engine.model.block_config import BlockConfig
from engine.model.block_reference import ReferenceBlock
from ops import train_drafter
from ops.demo.corpus import Entry
from ops.demo.samples import Batch
from ops.drafter.acceptance import Answer, greedy_walk, tally_rounds
from ops.drafter.answers import kind_of
from ops.drafter.data import draw_blocks, look, without_prompts
from ops.drafter.losses import block_losses, embedded, slot_decay
from ops.drafter.network import BlockNetwork
from ops.drafter.publish import write_drafter
from ops.drafter.target import Target
from ops.drafter.tensors import aim_attention, initial_tensors

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "assets" / "demo-model"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target() -> Target:
    """The demo model."""
    return Target.read(MODEL)


@pytest.fixture(scope="module")
def config(target: Target) -> BlockConfig:
    """A drafter smaller than the shipped one."""
    return train_drafter.drafter_config(target, layers=2, intermediate=64)


@pytest.fixture(scope="module")
def tensors(config: BlockConfig, target: Target) -> dict[str, torch.Tensor]:
    """Drawn tensors with everything away from neutral, rounded to bf16."""
    random = torch.Generator().manual_seed(5)
    drawn = initial_tensors(config, 3, target.final_norm)
    return {
        name: (value + 0.1 * torch.randn(value.shape, generator=random)).bfloat16().float()
        for name, value in drawn.items()
    }


def batch(target: Target) -> Batch:
    """Two rows of text, the second shorter."""
    text = "A verify pass checks every drafted token in one forward pass over the weights. " * 3
    ids = target.tokenizer.encode(text).ids[:32]
    rows = torch.tensor([ids, ids[8:] + [0] * 8])
    weight = torch.zeros(rows.shape)
    weight[0, 6:], weight[1, 4:24] = 1.0, 1.0
    return Batch(rows, weight)


def test_the_training_forward_is_the_engines(
    target: Target, config: BlockConfig, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Hidden rows and candidates of one block, in float32 on both sides."""
    save_as_is(tmp_path, config, tensors)
    read = read_drafter(tmp_path, target.config)
    assert read.config == config
    engine = ReferenceBlock(
        config,
        read.weights,
        embedding=target.embed,
        head=target.head,
        tokens=target.tokens,
        capacity=256,
        dtype=torch.float32,
    )
    ids = batch(target).ids[:1]
    taps, _ = target.look(ids, config.streams)
    network = BlockNetwork(config)
    for anchor, width in ((9, 8), (20, 16)):
        engine.reset(active=True)
        engine.take(taps[0, :anchor].float())
        token = int(ids[0, anchor])
        got = engine.draft(token, width)
        context = network.context(tensors, taps.float())
        anchors = torch.tensor([[anchor]])
        x = embedded(target, config.mask_id, torch.tensor([[token]]), width)
        hidden = network.block(tensors, context, x, anchors, width)[0, 0, 1:]
        best, tokens = network.logits(hidden, target.head).topk(config.top_k, -1)
        assert torch.allclose(torch.from_numpy(got.logits), best, rtol=2e-2, atol=2e-2)
        assert (torch.from_numpy(got.tokens[:, 0]) == tokens[:, 0]).all()
        projection = tensors["candidate_selector.hidden_projection.weight"]
        projected = functional.linear(hidden, projection)
        assert torch.allclose(torch.from_numpy(got.projected), projected, rtol=2e-2, atol=2e-2)


def save_as_is(folder: Path, config: BlockConfig, tensors: dict[str, torch.Tensor]) -> None:
    """A drafter's folder in BF16 throughout."""
    import json

    from safetensors.torch import save_file

    from engine.load.drafter_config import block_config_values

    save_file({n: v.bfloat16() for n, v in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(block_config_values(config)))


def test_a_block_sees_its_context_and_itself_alone(
    target: Target, config: BlockConfig, tensors: dict[str, torch.Tensor]
) -> None:
    network, found = BlockNetwork(config), batch(target)
    taps = target.look(found.ids, config.streams)[0].float()
    anchors = torch.tensor([[10, 20], [5, 12]])
    x = embedded(target, config.mask_id, found.ids.gather(1, anchors), 8)
    both = network.block(tensors, network.context(tensors, taps), x, anchors, 8)
    changed = taps.clone()
    changed[0, 10:] += 1.0  # nothing that the first row's first block may see
    again = network.block(tensors, network.context(tensors, changed), x, anchors, 8)
    assert torch.equal(both[0, 0], again[0, 0])
    assert not torch.allclose(both[0, 1], again[0, 1])
    assert torch.equal(both[1], again[1])
    alone = network.block(tensors, network.context(tensors, taps), x[:, 1:], anchors[:, 1:], 8)
    assert torch.allclose(both[:, 1:], alone, atol=1e-5)


def test_blocks_begin_before_a_token_that_the_target_wrote(
    target: Target, config: BlockConfig
) -> None:
    seen = look(target, batch(target), config.streams)
    written = torch.zeros_like(seen.written)
    written[0, 10:14] = written[0, 20:23] = True
    seen = replace(seen, written=written)
    blocks = draw_blocks(seen, 40, 8, torch.Generator().manual_seed(0))
    assert set(blocks.anchors[0].tolist()) == {9, 10, 11, 12, 19, 20, 21}
    for anchor, labels, valid in zip(
        blocks.anchors[0].tolist(), blocks.labels[0], blocks.valid[0], strict=True
    ):
        count = 13 - anchor if anchor < 14 else 22 - anchor
        assert valid.tolist() == [True] * count + [False] * (7 - count)
        assert labels[:count].tolist() == seen.ids[0, anchor + 1 : anchor + 1 + count].tolist()
    assert not blocks.valid[1].any()


def test_late_slots_weigh_less() -> None:
    decay = slot_decay(8)
    assert decay.shape == (7,)
    assert decay[0] == 1.0
    assert (decay[1:] < decay[:-1]).all()
    assert decay[4] == pytest.approx(torch.exp(torch.tensor(-1.0)).item())


def test_the_loss_is_that_of_the_labels(
    target: Target, config: BlockConfig, tensors: dict[str, torch.Tensor]
) -> None:
    """Against cross-entropies summed slot by slot."""
    network = BlockNetwork(config)
    seen = look(target, batch(target), config.streams)
    seen = replace(seen, written=seen.answer)
    blocks = draw_blocks(seen, 2, 8, torch.Generator().manual_seed(1))
    got = block_losses(network, tensors, target, seen, blocks, 8)
    context = network.context(tensors, seen.taps.float())
    first = seen.ids.gather(1, blocks.anchors)
    x = embedded(target, config.mask_id, first, 8)
    hidden = network.block(tensors, context, x, blocks.anchors, 8)
    slot = selector = scale = 0.0
    for row, block, place in blocks.valid.nonzero().tolist():
        label = blocks.labels[row, block, place]
        before = blocks.labels[row, block, place - 1] if place else first[row, block]
        h = hidden[row, block, place + 1]
        logits = network.logits(h, target.head)
        weight = float(slot_decay(8)[place])
        slot += weight * float(functional.cross_entropy(logits, label))
        best, candidates = logits.topk(config.top_k)
        if (candidates == label).any():
            scores = best + network.transition(
                tensors, h[None], before[None], candidates[None]
            ).squeeze(0)
            at = (candidates == label).nonzero()[0, 0]
            selector += weight * float(functional.cross_entropy(scores, at))
        scale += weight
    assert float(got.total) == pytest.approx((slot + selector) / scale, rel=1e-4)


def test_rounds_follow_the_greedy_walk(
    target: Target, config: BlockConfig, tensors: dict[str, torch.Tensor]
) -> None:
    """An answer that the drafter itself would write is accepted whole."""
    network, ids = BlockNetwork(config), batch(target).ids[0, :12].tolist()
    taps = target.look(torch.tensor([ids + [0] * 4]), config.streams)[0].float()
    x = embedded(target, config.mask_id, torch.tensor([[ids[11]]]), 8)
    anchors = torch.tensor([[11]])
    hidden = network.block(tensors, network.context(tensors, taps), x, anchors, 8)[:, 0, 1:]
    walk = greedy_walk(network, tensors, hidden, target.head, torch.tensor([ids[11]]))[0].tolist()
    whole = Answer((*ids, *walk[:5]), 11, "own")
    wrong = Answer((*ids, (walk[0] + 1) % 4000, 7, 8), 11, "other")
    own, other, both = (
        *tally_rounds(network, tensors, target, [whole], 8)[:1],
        *tally_rounds(network, tensors, target, [wrong], 8)[:1],
        tally_rounds(network, tensors, target, [whole, wrong], 8)[-1],
    )
    assert (own.rounds, own.tokens) == (1, 5)
    assert other.rounds >= 2
    assert other.tokens == 3
    assert (both.answers, both.rounds, both.tokens) == (2, 1 + other.rounds, 8)


def test_attention_is_aimed_at_the_last_positions(target: Target, config: BlockConfig) -> None:
    drawn = initial_tensors(config, 1, target.final_norm)
    taps = target.look(batch(target).ids, config.streams)[0]
    aim_attention(drawn, config, taps[0], target.embed[config.mask_id])
    network = BlockNetwork(config)
    keys, _ = network.context(drawn, taps[:1].float()).layers[0]
    x = network._norm(drawn, "layers.0.input_layernorm", target.embed[config.mask_id][None, None])
    q = functional.linear(x, drawn["layers.0.self_attn.q_proj.weight"])
    q = network._norm(drawn, "layers.0.self_attn.q_norm", q.view(1, 1, 4, config.head_dim))
    q = network._rotate(q, torch.tensor([32])).transpose(1, 2)
    weights = (q @ keys.repeat_interleave(2, 1).mT * config.head_dim**-0.5).softmax(-1)[0, :, 0]
    assert (weights[:2, -4:].sum(-1) > weights[:2, -20:-4].sum(-1) / 2).all()


def test_test_prompts_are_left_out() -> None:
    entries = [
        Entry(("What is a draft?", "Explain drafts"), "drafts?", "A."),
        Entry(("Explain a round",), "round?", "B."),
    ]
    kept = without_prompts(entries, ["explain DRAFTS", "Explain a round"])
    assert [entry.questions for entry in kept] == [("What is a draft?",)]
    known = frozenset({"what is a draft?"})
    assert kind_of("Repeat this text exactly: x", known) == "copy"
    assert kind_of("Why is the sky blue?", known) == "outside"


def test_a_published_drafter_opens(
    target: Target, config: BlockConfig, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    write_drafter(tmp_path, config, tensors, training="Short.", figures="None.")
    read = read_drafter(tmp_path, target.config)
    assert {type(part).__name__ for part in parts_of(read.weights)} == {"Fp8Row", "Dense", "Tensor"}
    got = read.weights.layers[0].down.dequantise().float()
    wanted = tensors["layers.0.mlp.down_proj.weight"]
    assert (got - wanted).abs().max() < 0.05 * wanted.abs().max()
    card = (tmp_path / "README.md").read_text()
    assert "{" not in card
    assert "Short." in card


def test_a_few_steps_lower_the_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run on the demo corpus, stopped, continued, and exported."""
    options = [
        "--work", str(tmp_path / "work"),
        "--intermediate", "32", "--layers", "1", "--rows", "128", "--pool", "8", "--probes", "2",
        "--batch-tokens", "256", "--print-every", "0", "--steps",
    ]  # fmt: skip
    for steps in ("3", "10"):
        train_drafter.train(train_drafter.arguments().parse_args([*options, steps]))
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split() for line in lines if line.startswith("step ")]
    losses = [float(words[3]) for words in steps]
    assert len(losses) == 10
    assert min(losses[-3:]) < losses[0]
    assert any(line.startswith("continuing at step") for line in lines)
    numbers = [int(words[1]) for words in steps]
    assert numbers == list(range(1, 11))
    train_drafter.export(train_drafter.arguments().parse_args([*options, "1", "--export"]))
    found = read_drafter(tmp_path / "work" / "demo-drafter", Target.read(MODEL).config)
    assert found.config.layers == 1
