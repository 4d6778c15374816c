# SPDX-License-Identifier: MIT OR Apache-2.0
"""Folders that load: every published layout gives the same model, with what stands around its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import (
    INDEX,
    control_id,
    edit_config,
    edit_json,
    make_checkpoint,
    values,
    write_json,
    write_shards,
)
from torch import Tensor

from engine.api import Message
from engine.load.checkpoint import read_checkpoint
from engine.load.stored import Dense, StoredLinear
from engine.load.weights import AttentionLayerWeights, GdnLayerWeights, ModelWeights, parts_of


def same(a: ModelWeights, b: ModelWeights) -> bool:
    left, right = values(a), values(b)
    return len(left) == len(right) and all(map(torch.equal, left, right))


def matrix(linear: StoredLinear | None) -> Tensor:
    assert isinstance(linear, Dense)
    return linear.weight


def test_every_tensor_lands_in_its_field(tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path)
    opened = read_checkpoint(tmp_path)
    weights, prefix = opened.weights, "model.language_model."
    gdn, attention, mtp = weights.layers[0], weights.layers[3], weights.mtp
    assert isinstance(gdn, GdnLayerWeights)
    assert isinstance(attention, AttentionLayerWeights)
    assert mtp is not None
    fields = {
        "embed_tokens.weight": weights.embed,
        "norm.weight": weights.final_norm,
        "layers.0.input_layernorm.weight": gdn.input_norm,
        "layers.0.post_attention_layernorm.weight": gdn.post_norm,
        "layers.0.linear_attn.in_proj_qkv.weight": matrix(gdn.in_qkv),
        "layers.0.linear_attn.in_proj_z.weight": matrix(gdn.in_z),
        "layers.0.linear_attn.in_proj_b.weight": matrix(gdn.in_b),
        "layers.0.linear_attn.in_proj_a.weight": matrix(gdn.in_a),
        "layers.0.linear_attn.conv1d.weight": gdn.conv[:, None],
        "layers.0.linear_attn.dt_bias": gdn.dt_bias,
        "layers.0.linear_attn.A_log": gdn.a_log,
        "layers.0.linear_attn.norm.weight": gdn.gdn_norm,
        "layers.0.linear_attn.out_proj.weight": matrix(gdn.out),
        "layers.0.mlp.gate_proj.weight": matrix(gdn.gate),
        "layers.0.mlp.up_proj.weight": matrix(gdn.up),
        "layers.0.mlp.down_proj.weight": matrix(gdn.down),
        "layers.3.input_layernorm.weight": attention.input_norm,
        "layers.3.post_attention_layernorm.weight": attention.post_norm,
        "layers.3.self_attn.q_proj.weight": matrix(attention.q),
        "layers.3.self_attn.k_proj.weight": matrix(attention.k),
        "layers.3.self_attn.v_proj.weight": matrix(attention.v),
        "layers.3.self_attn.o_proj.weight": matrix(attention.o),
        "layers.3.self_attn.q_norm.weight": attention.q_norm,
        "layers.3.self_attn.k_norm.weight": attention.k_norm,
        "layers.3.mlp.gate_proj.weight": matrix(attention.gate),
        "layers.3.mlp.up_proj.weight": matrix(attention.up),
        "layers.3.mlp.down_proj.weight": matrix(attention.down),
    }
    heads = {
        "lm_head.weight": matrix(weights.head),
        "mtp.fc.weight": matrix(mtp.fc),
        "mtp.pre_fc_norm_embedding.weight": mtp.norm_embedding,
        "mtp.pre_fc_norm_hidden.weight": mtp.norm_hidden,
        "mtp.norm.weight": mtp.norm,
        "mtp.layers.0.input_layernorm.weight": mtp.layer.input_norm,
        "mtp.layers.0.self_attn.v_proj.weight": matrix(mtp.layer.v),
        "mtp.layers.0.mlp.down_proj.weight": matrix(mtp.layer.down),
    }
    named = {prefix + name: tensor for name, tensor in fields.items()} | heads
    wrong = [
        name for name, got in named.items() if not torch.equal(got, stored[name].to(got.dtype))
    ]
    assert wrong == []
    assert {gdn.dt_bias.dtype, gdn.a_log.dtype, gdn.gdn_norm.dtype} == {torch.float32}
    assert weights.embed.dtype == attention.q_norm.dtype == torch.bfloat16
    assert sum(part.nbytes for part in parts_of(weights)) == opened.weight_bytes


def test_everything_around_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "A model"
    make_checkpoint(folder)
    opened = read_checkpoint(folder)
    assert (opened.name, opened.path, opened.is_demo) == ("A model", folder, True)
    assert opened.weight_format == "BF16"
    assert opened.stop_ids == (control_id("<|im_end|>"), control_id("<|endoftext|>"))
    assert (opened.config.tied, opened.config.mtp_layers, opened.notices) == (False, 1, ())
    assert opened.template.has_thinking_switch


@pytest.mark.parametrize(
    "layout",
    [
        {"shards": 3},
        {"prefix": "model."},
        {"prefix": "language_model.model."},
        {"prefix": ""},
        {"mtp_prefix": "model.mtp."},
        {"nested": False, "prefix": "model.", "shards": 2},
        {"exact_dtype": torch.bfloat16},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ],
    ids=str,
)
def test_layouts_of_one_model_give_one_model(layout: dict[str, object], tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "plain")
    make_checkpoint(tmp_path / "other", **layout)
    plain, other = (read_checkpoint(tmp_path / name) for name in ("plain", "other"))
    assert plain.config == other.config
    assert same(plain.weights, other.weights)


def test_shards_without_an_index_are_found_by_scanning(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "plain")
    make_checkpoint(tmp_path / "sharded", shards=3)
    (tmp_path / "sharded" / INDEX).unlink()
    assert same(
        read_checkpoint(tmp_path / "plain").weights, read_checkpoint(tmp_path / "sharded").weights
    )


def test_exact_tensors_keep_float32(tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path, exact_dtype=torch.float32)
    gdn = read_checkpoint(tmp_path).weights.layers[1]
    assert isinstance(gdn, GdnLayerWeights)
    a_log = stored["model.language_model.layers.1.linear_attn.A_log"]
    assert torch.equal(gdn.a_log, a_log)
    assert not torch.equal(a_log, a_log.bfloat16().float())


@pytest.mark.parametrize("declared", [True, False])
def test_the_tensors_decide_whether_the_head_is_tied(declared: bool, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, tied=True)
    opened = read_checkpoint(tmp_path)
    assert opened.config.tied
    assert opened.weights.head is None
    assert torch.equal(matrix(opened.weights.head_linear), opened.weights.embed)
    make_checkpoint(tmp_path, tied=False)
    edit_config(tmp_path, tie_word_embeddings=declared)
    opened = read_checkpoint(tmp_path)
    assert not opened.config.tied
    assert opened.weights.head is not None


def test_mtp_follows_the_tensors(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, mtp=False)
    assert read_checkpoint(tmp_path).weights.mtp is None
    make_checkpoint(tmp_path)
    edit_config(tmp_path, mtp_num_hidden_layers=0)
    opened = read_checkpoint(tmp_path)
    assert opened.weights.mtp is not None
    assert opened.config.mtp_layers == 1


def test_vision_rope_buffers_and_files_outside_the_index_are_skipped(tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path / "plain")
    extra = {
        "model.visual.blocks.0.attn.qkv.weight": torch.zeros(3, 3),
        "model.language_model.rotary_emb.inv_freq": torch.ones(4),
    }
    make_checkpoint(tmp_path / "more", shards=2)
    write_shards(tmp_path / "more", {**stored, **extra}, 2)
    (tmp_path / "more" / "old.safetensors").write_bytes(b"not a safetensors file")
    more = read_checkpoint(tmp_path / "more")
    assert same(read_checkpoint(tmp_path / "plain").weights, more.weights)
    assert len(more.notices) == 1
    assert "old.safetensors" in more.notices[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_wider_weights_are_rounded_to_bf16_and_said(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path, dtype=dtype)
    opened = read_checkpoint(tmp_path)
    assert opened.weights.embed.dtype == torch.bfloat16
    assert torch.equal(matrix(opened.weights.head), stored["lm_head.weight"].bfloat16())
    assert "rounded to BF16" in opened.notices[0]
    assert opened.weight_format == "BF16"


def test_float32_can_be_kept(tmp_path: Path) -> None:
    stored = make_checkpoint(tmp_path, dtype=torch.float32)
    opened = read_checkpoint(tmp_path, keep_float32=True)
    assert torch.equal(matrix(opened.weights.head), stored["lm_head.weight"])
    assert opened.weights.final_norm.dtype == torch.float32
    assert (opened.weight_format, opened.notices) == ("F32", ())


@pytest.mark.parametrize("name", ["модель ü 漢字 ", "a b", "x" * 200, "[1]*?", "-dash"])
def test_folder_names_of_all_kinds(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / name, shards=2)
    opened = read_checkpoint(tmp_path / name)
    assert opened.name == name
    assert read_checkpoint(str(tmp_path / name)).path == tmp_path / name


def test_a_hub_cache_of_links_loads_under_the_models_name(tmp_path: Path) -> None:
    root = tmp_path / "models--Owner--Name"
    make_checkpoint(root / "real")
    snapshot, blobs = root / "snapshots" / "0123abc", root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in (root / "real").iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    assert read_checkpoint(snapshot).name == "Owner/Name"


def test_a_read_only_folder_loads_and_stays_as_it_was(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", shards=2)
    files = sorted((tmp_path / "model").iterdir())
    before = [(file.name, file.read_bytes()) for file in files]
    for file in files:
        file.chmod(0o444)
    (tmp_path / "model").chmod(0o555)
    try:
        read_checkpoint(tmp_path / "model")
        after = [(file.name, file.read_bytes()) for file in sorted((tmp_path / "model").iterdir())]
        assert after == before
    finally:
        (tmp_path / "model").chmod(0o755)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    opened = read_checkpoint(tmp_path)
    assert opened.tokenizer.decode(opened.stop_ids[:1]) == "<|im_end|>"
    prompt = opened.template.render((Message("user", "hi"),)).token_ids
    assert opened.tokenizer.decode(prompt).startswith("<|im_start|>user\nhi")


def test_stop_tokens_without_a_generation_config_are_found_and_said(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    opened = read_checkpoint(tmp_path)
    assert set(opened.stop_ids) == {control_id("<|im_end|>"), control_id("<|endoftext|>")}
    assert "generation_config.json is missing" in opened.notices[0]


def test_sampling_defaults_are_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 2, **sampling})
    opened = read_checkpoint(tmp_path)
    generation = opened.generation
    assert (generation.temperature, generation.top_p, generation.top_k) == (0.7, 0.8, 20)
    assert opened.stop_ids == (2,)
    edit_json(tmp_path / "generation_config.json", lambda values: values.pop("do_sample"))
    assert read_checkpoint(tmp_path).generation.temperature == 0.0


@pytest.mark.parametrize("card", ["", "rondo_demo: true\n", "---\nrondo_demo: false\n---\n", None])
def test_only_the_front_matter_makes_a_demo(card: str | None, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    path = tmp_path / "README.md"
    path.unlink() if card is None else path.write_text(card)
    assert not read_checkpoint(tmp_path).is_demo
