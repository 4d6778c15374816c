# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model with a block drafter behind the door: found, named, refused, switched off, not heard in the text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import edit_json, make_checkpoint
from drafters import make_drafter

from engine import Engine
from engine.api import GenerateRequest, Message
from engine.errors import CheckpointError
from engine.load.checkpoint import inspect_checkpoint
from engine.load.drafter import drafter_folder, read_drafter
from engine.load.stored import Dense, Nvfp4
from engine.model.native import NativeBackend

REQUEST = GenerateRequest(
    token_ids=tuple((7 * at + 3) % 600 for at in range(40)), max_tokens=16, ignore_stop_tokens=True
)
ASSETS = Path(__file__).resolve().parents[2] / "assets"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a drafter beside it."""
    folder = tmp_path / "small-model"
    make_checkpoint(folder, max_position_embeddings=1024)
    make_drafter(tmp_path / "small-drafter", inspect_checkpoint(folder).plan.config)
    return folder


def opened(model: Path, **changes: str) -> Engine:
    knobs = {f"QWEN38_{name}": value for name, value in changes.items()}
    return Engine.open(model, threads=1, profile=None, knobs=knobs)


@pytest.mark.parametrize("isa", ["", "reference"])
def test_the_drafter_beside_the_model_drafts_when_asked(model: Path, isa: str) -> None:
    with opened(model, CPU_ISA=isa, DFLASH2="off") as engine:
        assert "the block drafter" not in engine.offers
        wanted = engine.generate(REQUEST).token_ids
    with opened(model, CPU_ISA=isa, MTP_DEPTH="0") as engine:
        assert "the block drafter" in engine.offers
        assert engine.card.speculation == "block drafter small-drafter"
        done = engine.generate(REQUEST)
        assert done.token_ids == wanted
        drafted = engine.engaged()["tokens drafted by the block drafter"]
        assert drafted == done.drafted_tokens > 0
        engine.set_knobs({"QWEN38_DF2_TEMP": "2.5", "QWEN38_DF2_TREE_MODE": "paths"})
        assert engine.generate(REQUEST).token_ids == wanted
    # The MTP head goes first unless the drafter is named.
    with opened(model, CPU_ISA=isa) as engine:
        assert engine.card.speculation.startswith("MTP")
        engine.generate(REQUEST)
        assert engine.engaged().get("tokens drafted by the block drafter", 0) == 0


def test_a_named_drafter_goes_first_and_must_be_sound(model: Path, tmp_path: Path) -> None:
    beside = str(tmp_path / "small-drafter")
    with opened(model, DFLASH2=beside) as engine:
        assert engine.card.speculation == "block drafter small-drafter"
        engine.generate(REQUEST)
        assert engine.engaged()["tokens drafted by the block drafter"] > 0
    edit_json(tmp_path / "small-drafter" / "config.json", lambda v: v.update(hidden_size=128))
    with pytest.raises(CheckpointError, match="hidden_size is 128, but the model has 64"):
        opened(model, DFLASH2=beside)
    with pytest.raises(CheckpointError, match="does not exist"):
        opened(model, DFLASH2=str(tmp_path / "nowhere"))
    with opened(model) as engine:
        assert any("small-drafter beside the model is not used" in n for n in engine.card.notices)
        assert "the block drafter" not in engine.offers
        engine.generate(REQUEST)


def test_projections_are_kept_in_nvfp4_when_asked(model: Path) -> None:
    sizes = []
    for value, kind in (("0", Dense), ("1", Nvfp4)):
        with opened(model, DRAFT_NVFP4=value, CPU_ISA="reference") as engine:
            backend = engine._backend
            assert backend.block is not None
            assert isinstance(backend.block.weights.layers[0].down, kind)
            assert isinstance(backend.block.weights.fc, Dense)
            sizes.append(backend.block.weights.nbytes)
    assert sizes[1] < 0.9 * sizes[0]


def test_a_draft_counts_its_bytes(model: Path) -> None:
    with (
        opened(model, MTP_DEPTH="0") as drafting,
        opened(model, MTP_DEPTH="0", DFLASH2="off") as plain,
    ):
        backend = drafting._backend
        assert isinstance(backend, NativeBackend)
        rounds = []
        for engine in (drafting, plain):
            done = []
            engine.generate(
                REQUEST, on_round=lambda round_, *_, d=done: d.append(round_.bytes_read)
            )
            rounds.append(done)
        weights = backend.block_bytes()
        assert weights > 0
        assert rounds[0][0] > rounds[1][0] + weights // 2


def test_the_shipped_drafter_fits_the_demo_model() -> None:
    target = inspect_checkpoint(ASSETS / "demo-model").plan.config
    folder = drafter_folder("", ASSETS / "demo-model")
    assert folder == ASSETS / "demo-drafter"
    found = read_drafter(folder, target)
    assert found.config.block_size == 16
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3 << 20
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Tokens a round" in card
    assert "{" not in card


def test_the_shipped_drafter_is_believed_and_changes_nothing() -> None:
    """It must earn tokens on a question of its corpus; the text is that without it."""
    request = GenerateRequest(messages=(Message("user", "What is Rondo?"),), max_tokens=60)
    with Engine.open(
        ASSETS / "demo-model", threads=1, profile=None, knobs={"QWEN38_MTP_DEPTH": "0"}
    ) as engine:
        assert engine.card.speculation == "block drafter demo-drafter"
        done = engine.generate(request)
        plain = engine.generate(replace(request, speculate=False))
    assert done.token_ids == plain.token_ids
    assert done.rounds < 0.8 * len(done.token_ids)
