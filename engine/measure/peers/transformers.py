# SPDX-License-Identifier: MIT OR Apache-2.0
"""transformers as a peer: its Qwen3.5 text model with random weights, in BF16 or with torch's packed INT4."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine.measure.peers.worker import (
    LoadedPeer,
    Specification,
    require_dense,
    require_memory,
    serve,
)
from engine.model.config import ModelConfig

_INT4_GROUP = 64
_POOL = 1 << 22


class TransformersModel:
    """A model with a dynamic cache; see `engine.measure.rounds.TimedModel`."""

    def __init__(self, model: nn.Module, config: object) -> None:
        self.vocab_size = config.vocab_size
        self._model = model
        self._config = config
        self.restart(())

    def restart(self, ids: Sequence[int]) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._config)
        if ids:
            self.prefill(ids)

    def advance(self, ids: Sequence[int]) -> None:
        self._forward(ids, last_only=False)

    def prefill(self, ids: Sequence[int]) -> None:
        self._forward(ids, last_only=True)

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int], *, last_only: bool) -> None:
        self._model(
            input_ids=torch.tensor([ids]),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
        )


class PackedInt4(nn.Module):
    """A linear in torch's own CPU format: 4-bit codes, BF16 scale and zero for every 64 columns."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns = linear.weight.shape
        groups = linear.weight.float().view(rows, columns // _INT4_GROUP, _INT4_GROUP)
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale = (high - low).clamp(min=1e-6) / 15
        codes = ((groups - low) / scale).round().clamp(0, 15).to(torch.int32).view(rows, columns)
        self.codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        pairs = torch.cat((scale, low + 8 * scale), -1)
        self.scales = pairs.transpose(0, 1).contiguous().to(torch.bfloat16)
        self.rows = rows

    @property
    def read_bytes(self) -> int:
        """Bytes that one use reads."""
        return self.codes.nbytes + self.scales.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """x bf16 [..., columns] -> bf16 [..., rows]."""
        flat = x.reshape(-1, x.shape[-1])
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self.codes, _INT4_GROUP, self.scales)
        return y.view(*x.shape[:-1], self.rows)


def load(specification: Specification) -> LoadedPeer:
    """Build the model in BF16 and, for INT4, pack its linears one by one."""
    config = specification.config
    require_dense(config)
    untied = config.vocab_size * config.hidden_size if config.tied else 0
    require_memory(2 * (config.parameters + untied), "transformers with BF16 weights")
    torch.set_num_threads(specification.threads)
    model, hf_config = _build(config)
    if specification.variant == "INT4":
        _pack_linears(model)
    version = importlib.metadata.version("transformers")
    return LoadedPeer(
        TransformersModel(model, hf_config),
        specification.variant,
        _read_bytes(model),
        f"transformers {version}, torch {torch.__version__}",
    )


def _build(config: ModelConfig) -> tuple[nn.Module, object]:
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    hf_config = Qwen3_5TextConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        layer_types=list(config.layer_types),
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        linear_num_key_heads=config.key_heads,
        linear_num_value_heads=config.value_heads,
        linear_key_head_dim=config.key_dim,
        linear_value_head_dim=config.value_dim,
        linear_conv_kernel_dim=config.conv_width,
        max_position_embeddings=config.context_tokens,
        rms_norm_eps=config.rms_eps,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
        },
        tie_word_embeddings=config.tied,
    )
    # Built without storage first: the library's own initialisation takes minutes at these sizes.
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(hf_config).to(torch.bfloat16)
    model.to_empty(device="cpu").eval()
    rotary = model.model.rotary_emb
    exponents = torch.arange(0, config.rotary_dim, 2) / config.rotary_dim
    rotary.inv_freq = config.rope_theta**-exponents
    rotary.original_inv_freq = rotary.inv_freq
    with torch.no_grad():
        _fill(model)
    if config.tied:
        model.tie_weights()
    return model, hf_config


def _fill(model: nn.Module) -> None:
    """Random values of a sane magnitude, drawn from one pool."""
    torch.manual_seed(0)
    pool = (torch.rand(_POOL) - 0.5).mul_(12**0.5)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            gain = 0.5 if any(part in name for part in ("down", "o_proj", "out_proj")) else 1.0
            scale = 1.0 if "embed" in name else gain * parameter.shape[1] ** -0.5
            flat = parameter.view(-1)
            for start in range(0, flat.numel(), _POOL):
                part = flat[start : start + _POOL]
                part.copy_(pool[: part.numel()] * scale)
        elif "conv1d" in name:
            parameter.uniform_(-0.5, 0.5)
        elif "A_log" in name:
            parameter.uniform_(-3, 2)
        else:
            parameter.fill_(1.0 if "linear_attn" in name else 0.0)


def _pack_linears(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.shape[0] % 64 == 0:
                setattr(module, name, PackedInt4(child))


def _read_bytes(model: nn.Module) -> int:
    packed = sum(m.read_bytes for m in model.modules() if isinstance(m, PackedInt4))
    tied = getattr(model.lm_head, "weight", None) is model.model.embed_tokens.weight
    dense = sum(
        parameter.nbytes
        for name, parameter in model.named_parameters()
        if tied or "embed_tokens" not in name
    )
    return packed + dense


if __name__ == "__main__":
    serve(load)
