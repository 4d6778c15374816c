# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes small random checkpoints in the published layout, and damages them."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from engine.load.tensor_table import LinearSlot, head_slot, model_slots, mtp_slots
from engine.load.weights import ModelWeights, parts_of
from engine.model.config import ModelConfig

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TRUNK = "model.language_model."
CONTROL = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<think>", False),
    ("</think>", False),
    ("<tool_call>", False),
    ("</tool_call>", False),
)
TEXT_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": 640,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "attention_bias": False,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
}
# Changes of TEXT_CONFIG that make it a mixture-of-experts model.
MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "intermediate_size": None,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 96,
}
TEMPLATE = """{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
    {{- raise_exception('Only the first message may be a system message.') }}
{%- endif %}
{%- set content = message.content | trim %}
{%- if message.role == 'assistant' and message.reasoning_content %}
    {%- set content = '<think>\\n' + message.reasoning_content | trim + '\\n</think>\\n\\n' + content %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}
        {{- '<think>\\n' }}
    {%- else %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
SAMPLE = [
    "The engine reads the weights once in a round, and the memory sets the pace.",
    "A draft of three tokens is checked in one pass; what is right stays.",
    "Grüße, naïve café, größer und schöner, the the the words of the text.\n\nA new line.",
]


def text_config(**changes: Any) -> dict[str, Any]:
    """The text part of the config with `changes`; a value of None removes the field."""
    merged = {**TEXT_CONFIG, **changes}
    return {key: value for key, value in merged.items() if value is not None}


@functools.cache
def tokenizer_json(control_in_base: bool = True) -> str:
    """A byte-level BPE trained on SAMPLE; its control tokens are part of the base vocabulary or follow it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = tokenizers.Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    first = [AddedToken(c, special=s, normalized=False) for c, s in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=first if control_in_base else [],
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    if not control_in_base:
        tokenizer.add_tokens(first)
    data = json.loads(tokenizer.to_str())
    special = dict(CONTROL)
    for token in data["added_tokens"]:
        token["special"] = special[token["content"]]
    return json.dumps(data)


def make_checkpoint(
    folder: Path,
    *,
    nested: bool = True,
    prefix: str = TRUNK,
    shards: int = 1,
    tied: bool = False,
    mtp: bool = True,
    mtp_prefix: str = "mtp.",
    dtype: torch.dtype = torch.bfloat16,
    exact_dtype: torch.dtype | None = None,
    form: Callable[[str, Tensor], dict[str, Tensor]] | None = None,
    control_in_base: bool = True,
    stacked: str = "",
    seed: int = 0,
    **changes: Any,
) -> dict[str, Tensor]:
    """Write a whole model folder and return its tensors by their names in the files.

    `form` turns a linear's module name and matrix into the tensors that store it; `changes` go to the text
    config; `exact_dtype` is that of A_log and the gated norm; `stacked` is a regular expression for the
    modules whose experts lie in one tensor.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = text_config(tie_word_embeddings=tied, mtp_num_hidden_layers=1 if mtp else 0, **changes)
    outer = text["model_type"].removesuffix("_text")
    config = {"model_type": outer, "text_config": text} if nested else text
    write_json(folder / "config.json", config)
    tensors = random_tensors(
        ModelConfig.from_dict(config),
        prefix=prefix,
        mtp_prefix=mtp_prefix,
        dtype=dtype,
        exact_dtype=exact_dtype,
        form=form,
        seed=seed,
    )
    if stacked:
        tensors = stack_experts(tensors, stacked)
    write_shards(folder, tensors, shards)
    (folder / "tokenizer.json").write_text(tokenizer_json(control_in_base), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    stops = [
        control_id("<|im_end|>", control_in_base),
        control_id("<|endoftext|>", control_in_base),
    ]
    write_json(folder / "generation_config.json", {"eos_token_id": stops})
    (folder / "README.md").write_text("---\nlicense: mit\nrondo_demo: true\n---\n# A model\n")
    return tensors


def stack_experts(tensors: dict[str, Tensor], where: str = "") -> dict[str, Tensor]:
    """The tensors with the experts of layers that match `where` in two tensors, as BF16 repos have them."""
    stacked, experts = {}, defaultdict(list)
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.mlp\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if match and re.search(where, name):
            experts[match[1], "down" if match[2] == "down" else "gate_up"].append(tensor)
        else:
            stacked[name] = tensor
    for (prefix, part), matrices in experts.items():
        if part == "gate_up":
            matrices = [torch.cat(pair) for pair in zip(matrices[::2], matrices[1::2], strict=True)]
        stacked[f"{prefix}.{part}_proj"] = torch.stack(matrices)
    return stacked


def control_id(content: str, control_in_base: bool = True) -> int:
    """The id of a control token in `tokenizer_json`."""
    listed = json.loads(tokenizer_json(control_in_base))["added_tokens"]
    return next(token["id"] for token in listed if token["content"] == content)


def random_tensors(
    config: ModelConfig,
    *,
    prefix: str = TRUNK,
    mtp_prefix: str = "mtp.",
    dtype: torch.dtype = torch.bfloat16,
    exact_dtype: torch.dtype | None = None,
    form: Callable[[str, Tensor], dict[str, Tensor]] | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Random tensors of every slot of a config, under published names."""
    random = torch.Generator().manual_seed(seed)
    slots = model_slots(config)
    slots += [] if config.tied else [head_slot(config)]
    slots += mtp_slots(config) if config.mtp_layers else []
    tensors = {}
    for slot in slots:
        if isinstance(slot, LinearSlot):
            matrix = torch.randn(slot.rows, slot.columns, generator=random) / slot.columns**0.5
            plain = {"weight": matrix.to(dtype)}
            parts = (form(slot.module, matrix) if form else None) or plain
            for part, tensor in parts.items():
                tensors[_published(f"{slot.module}.{part}", prefix, mtp_prefix)] = tensor
        else:
            kind = (
                exact_dtype
                if exact_dtype and slot.name.endswith(("A_log", "attn.norm.weight"))
                else dtype
            )
            values = 0.1 * torch.randn(slot.shape, generator=random)
            tensors[_published(slot.name, prefix, mtp_prefix)] = values.to(kind)
    return tensors


def _published(name: str, prefix: str, mtp_prefix: str) -> str:
    if name.startswith("lm_head."):
        return name
    if name.startswith("mtp."):
        return mtp_prefix + name.removeprefix("mtp.")
    return prefix + name


def write_shards(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """Write one file, or `shards` files and their index."""
    if shards == 1:
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
        return
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    files: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    weight_map = {}
    for number, (key, tensor) in enumerate(tensors.items()):
        weight_map[key] = names[number % shards]
        files[weight_map[key]][key] = tensor
    for name, part in files.items():
        save_file(part, folder / name)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in UTF-8."""
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Read a JSON file, let `edit` change it in place, write it back."""
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    write_json(path, value)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of the nested text config; None removes one."""

    def edit(config: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                config["text_config"].pop(key, None)
            else:
                config["text_config"][key] = value

    edit_json(folder / "config.json", edit)


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a single-file checkpoint in place."""
    tensors = dict(load_file(folder / SINGLE))
    edit(tensors)
    save_file(tensors, folder / SINGLE)


def values(weights: ModelWeights) -> list[Tensor]:
    """Every tensor of a read model, products as the matrices they stand for."""
    parts = parts_of(weights)
    return [part if isinstance(part, Tensor) else part.dequantise() for part in parts]
