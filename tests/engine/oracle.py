# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random hybrid models built and saved by `transformers`: the independent side of the forward's tests.

A model is drawn so that every tensor matters: norms and gates away from their neutral values, decays from
slow to fast, logits of order 1. Values are rounded to bf16 first unless the model is stored in float32, so
that the stored folder and the oracle hold the same numbers. The MTP head, which `transformers` drops, is
added to the saved folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 16,
}
BYTES = 256
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Case:
    """One configuration; `kinds` has a letter for every layer: d for delta, a for attention."""

    name: str
    kinds: str
    hidden: int
    heads: tuple[int, int]  # query, key/value
    head_dim: int
    rotary: float
    key_heads: int
    group: int  # value heads per key head
    key_dim: int
    value_dim: int
    tied: bool
    nested: bool
    stored: str  # float32 | bfloat16 | mixed: bfloat16 with A_log and the gated norm in float32
    vocab: int = 288
    theta: float = 1e4
    experts: tuple[int, int] = (0, 0)  # routed experts of a layer, those that a token runs

    @property
    def text(self) -> dict[str, object]:
        """The fields of the text configuration."""
        words = {"d": "linear_attention", "a": "full_attention"}
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 3 // 2,
            "num_hidden_layers": len(self.kinds),
            "layer_types": [words[kind] for kind in self.kinds],
            "num_attention_heads": self.heads[0],
            "num_key_value_heads": self.heads[1],
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.key_heads * self.group,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.theta,
                "partial_rotary_factor": self.rotary,
            },
            "mtp_num_hidden_layers": 1,
        } | self._experts

    @property
    def _experts(self) -> dict[str, object]:
        if not self.experts[0]:
            return {}
        return {
            "num_experts": self.experts[0],
            "num_experts_per_tok": self.experts[1],
            "moe_intermediate_size": self.hidden // 2,
            "shared_expert_intermediate_size": self.hidden * 3 // 2,
        }


CASES = (
    Case("one-value-head", "ddda", 64, (2, 1), 32, 0.5, 2, 1, 16, 16, True, False, "float32"),
    Case("two-value-heads", "dddaddda", 64, (4, 2), 64, 0.25, 2, 2, 32, 48, False, True, "float32"),
    Case("three-value-heads", "daddad", 96, (2, 2), 128, 0.25, 1, 3, 32, 32, False, True, "mixed"),
    Case("twelve-layers", "dddadddaddda", 96, (4, 2), 256, 0.25, 2, 3, 16, 32, False, True, "mixed"),
    Case("attention-first", "addad", 64, (6, 2), 32, 0.25, 4, 2, 16, 16, True, False, "bfloat16"),
    Case("odd-vocabulary", "dadadda", 64, (3, 3), 96, 0.5, 3, 1, 24, 16, False, False, "float32", 301),
    Case(
        "demo-like", "dddaddda", 128, (2, 1), 64, 0.25, 1, 3, 128, 128, False, True, "bfloat16", 320, 1e7
    ),
)  # fmt: skip
MOE_CASES = (
    Case(
        "one-of-four-experts", "ddda", 64, (2, 1), 32, 0.5, 2, 2, 16, 16, False, False, "float32",
        experts=(4, 1),
    ),
    Case(
        "three-of-ten-experts", "dadda", 64, (4, 2), 64, 0.25, 2, 3, 16, 32, False, True, "mixed",
        experts=(10, 3),
    ),
    Case(
        "all-of-five-experts", "daad", 96, (2, 2), 32, 0.5, 1, 2, 32, 32, True, True, "bfloat16",
        experts=(5, 5),
    ),
    Case(
        "eight-of-sixteen-experts", "dddaddda", 64, (4, 1), 32, 0.25, 2, 2, 16, 16, False, True,
        "bfloat16", 301, experts=(16, 8),
    ),
)  # fmt: skip
# Small, with every kind of head sharing: for the tests of the sequence state.
STATE_CASE = Case("state", "dadd", 64, (4, 2), 32, 0.5, 2, 3, 32, 32, False, True, "bfloat16")
MOE_STATE_CASE = replace(STATE_CASE, name="expert state", experts=(6, 2))


def make_oracle(case: Case, seed: int) -> torch.nn.Module:
    """The `transformers` model in float32 with drawn weights."""
    import transformers

    def named(end: str) -> Any:
        return getattr(transformers, ("Qwen3_5Moe" if case.experts[0] else "Qwen3_5") + end)

    if case.nested:
        vision = VISION | {"out_hidden_size": case.hidden}
        config = named("Config")(
            text_config=case.text, vision_config=vision, tie_word_embeddings=case.tied
        )
        model = named("ForConditionalGeneration")(config).eval()
    else:
        model = named("ForCausalLM")(named("TextConfig")(**case.text)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "visual." not in name:
                value = _draw(name, parameter.shape, generator)
                if name.endswith("embed_tokens.weight") and not case.tied:
                    value *= case.hidden**0.5
                if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
                    value = _align_keys(value, case.key_heads * case.key_dim)
                parameter.copy_(_as_stored(name, value, case))
    return model


def oracle_logits(model: torch.nn.Module, ids: list[int]) -> Tensor:
    """Float32 logits [T, vocabulary] of a whole sequence."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0]


def oracle_hidden(model: torch.nn.Module, ids: list[int]) -> Tensor:
    """Float32 hidden rows [T, hidden] after the final norm."""
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]


def save_folder(case: Case, model: torch.nn.Module, seed: int, folder: Path) -> dict[str, Tensor]:
    """Save in the published layout, MTP head and tokenizer included; returns the MTP tensors in float32."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    mtp = {name: _as_stored(name, value, case) for name, value in _draw_mtp(case, seed + 1).items()}
    stored = {name: value.to(_dtype(name, case)) for name, value in (tensors | mtp).items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"] if case.nested else config
    assert text["mtp_num_hidden_layers"] == 1
    return mtp


def token_ids(case: Case, count: int, seed: int) -> list[int]:
    """`count` random ids of the case's vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, case.vocab, (count,), generator=generator).tolist()


def _dtype(name: str, case: Case) -> torch.dtype:
    if case.stored == "float32":
        return torch.float32
    exact = name.endswith(("A_log", "linear_attn.norm.weight"))
    return torch.float32 if exact and case.stored == "mixed" else torch.bfloat16


def _as_stored(name: str, value: Tensor, case: Case) -> Tensor:
    return value.to(_dtype(name, case)).float()


def _draw(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Random values that keep activations of order 1 and every gate in its sensitive range."""
    normal = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return -2.0 + 1.5 * normal
    if name.endswith("dt_bias"):
        return normal
    if name.endswith("conv1d.weight"):
        return 0.3 * normal + torch.tensor([0.0, 0.1, 0.3, 0.9])
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.3 * normal
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.5 + 0.3 * normal
    if len(shape) == 1:  # zero-centred norms
        return 0.2 * normal
    residual = ("out_proj.weight", "o_proj.weight", "down_proj.weight", "experts.down_proj")
    gain = 0.3 if name.endswith(residual) else 1.0
    if name.endswith("mlp.gate.weight"):
        gain = 3.0  # a router that has made up its mind
    return gain * normal * shape[-1] ** -0.5


def _align_keys(value: Tensor, width: int) -> Tensor:
    """Let keys resemble queries, as training makes them: else the gated norm blows up noise of q.k near 0."""
    value[width : 2 * width] = 0.9 * value[:width] + 0.4 * value[width : 2 * width]
    return value


def _draw_mtp(case: Case, seed: int) -> dict[str, Tensor]:
    hidden, inner = case.hidden, case.hidden * 3 // 2
    query, shared = case.heads[0] * case.head_dim, case.heads[1] * case.head_dim
    shapes = {
        "fc": (hidden, 2 * hidden),
        "pre_fc_norm_embedding": (hidden,),
        "pre_fc_norm_hidden": (hidden,),
        "norm": (hidden,),
        "layers.0.input_layernorm": (hidden,),
        "layers.0.post_attention_layernorm": (hidden,),
        "layers.0.self_attn.q_proj": (2 * query, hidden),
        "layers.0.self_attn.k_proj": (shared, hidden),
        "layers.0.self_attn.v_proj": (shared, hidden),
        "layers.0.self_attn.o_proj": (hidden, query),
        "layers.0.self_attn.q_norm": (case.head_dim,),
        "layers.0.self_attn.k_norm": (case.head_dim,),
    }
    mlp = "layers.0.mlp." + ("shared_expert." if case.experts[0] else "")
    shapes |= {mlp + "gate_proj": (inner, hidden), mlp + "up_proj": (inner, hidden)}
    shapes |= {mlp + "down_proj": (hidden, inner)}
    names = {f"mtp.{name}.weight": shape for name, shape in shapes.items()}
    if case.experts[0]:
        count, size = case.experts[0], hidden // 2
        names |= {
            "mtp.layers.0.mlp.gate.weight": (count, hidden),
            "mtp.layers.0.mlp.shared_expert_gate.weight": (1, hidden),
            "mtp.layers.0.mlp.experts.gate_up_proj": (count, 2 * size, hidden),
            "mtp.layers.0.mlp.experts.down_proj": (count, hidden, size),
        }
    generator = torch.Generator().manual_seed(seed)
    return {name: _draw(name, torch.Size(shape), generator) for name, shape in names.items()}


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: a token for every byte and three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == BYTES
    tokenizer = Tokenizer(models.BPE({byte: index for index, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    stop = [BYTES + SPECIAL.index("<|im_end|>"), BYTES]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop}))
