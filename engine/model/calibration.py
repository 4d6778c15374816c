# SPDX-License-Identifier: MIT OR Apache-2.0
"""A forward over calibration text that stops at every linear, so that its weight can be settled there.

Layer after layer and, within a layer, linear after linear, whoever quantises sees the inputs that the model
with all earlier linears already quantised will see. The readable operations, in float32, on all texts at once;
each text starts from an empty context.

The residual streams of all rows are kept between layers: 4 * hidden bytes a token, 1.3 GB for 65,536 tokens of
a 27B model. A layer's widest rows take 12 * intermediate bytes a token beside them while they are worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from engine.cache.state import RecurrentState
from engine.errors import NumericsError
from engine.load.tensor_table import expert_prefix, mlp_prefix
from engine.model.config import FULL, ModelConfig
from kernels.attention.reference import attention
from kernels.bf16_linear.reference import linear
from kernels.causal_conv.reference import causal_conv
from kernels.elementwise.reference import beta, output_gate, silu_mul
from kernels.gated_delta.reference import decay_log, gated_delta_chunked
from kernels.moe.reference import route
from kernels.rms_norm.reference import add_rms_norm, gated_rms_norm, rms_norm
from kernels.rope.reference import apply_rope, rope_tables

# Takes the names of linears that read one input, and that input float32 [rows, K]; returns the float32 [N, K]
# that stand in their places from now on. Called once for every linear of the layers and of the MTP head.
Settle = Callable[[Sequence[str], Tensor], list[Tensor]]


class CalibrationForward:
    """Call `layer` for every layer in order, then `mtp` where there is such a head."""

    def __init__(
        self,
        config: ModelConfig,
        vectors: Mapping[str, Tensor],
        embedded: Tensor,
        lengths: Sequence[int],
        settle: Settle,
    ) -> None:
        """Begin with the texts' tokens.

        Args:
            vectors: norms, convolutions and gates of the whole model by canonical name, any float dtype.
            embedded: the embedding's rows of all tokens, text after text [rows, hidden].
            lengths: tokens of every text, at least 2.
        """
        self._config = config
        self._vectors = vectors
        self._embedded = embedded
        self._lengths = tuple(lengths)
        self._settle = settle
        self.residual = embedded.float()  # [rows, hidden], after the layers so far

    @torch.inference_mode()
    def layer(self, index: int) -> None:
        """Run the next layer over all rows.

        Raises:
            NumericsError: an input that is no finite number, with the name of its linear.
        """
        kind = self._config.layer_types[index]
        self.residual = self._layer(f"layers.{index}.", kind, self.residual, self._lengths)

    @torch.inference_mode()
    def mtp(self) -> None:
        """Run the MTP head on the rows after the last layer, each with the token that follows it.

        Raises:
            NumericsError: as `layer` does.
        """
        hidden = rms_norm(self.residual, self._vector("norm.weight"), self._config.rms_eps)
        paired = torch.cat([text[:-1] for text in hidden.split(self._lengths)])
        following = torch.cat([text[1:] for text in self._embedded.split(self._lengths)])
        pair = torch.cat(
            (
                self._norm("mtp.pre_fc_norm_embedding.weight", following.float()),
                self._norm("mtp.pre_fc_norm_hidden.weight", paired),
            ),
            dim=-1,
        )
        [residual] = self._products(["mtp.fc"], pair)
        self._layer("mtp.layers.0.", FULL, residual, [length - 1 for length in self._lengths])

    def _layer(self, prefix: str, kind: str, residual: Tensor, lengths: Sequence[int]) -> Tensor:
        normed = self._norm(prefix + "input_layernorm.weight", residual)
        mixer = self._attention if kind == FULL else self._gdn
        mixed = mixer(prefix, normed, lengths)
        post_norm = self._vector(prefix + "post_attention_layernorm.weight")
        residual, normed = add_rms_norm(residual, mixed, post_norm, self._config.rms_eps)
        return residual + self._mlp(prefix, normed)

    def _attention(self, prefix: str, x: Tensor, lengths: Sequence[int]) -> Tensor:
        config, mixer = self._config, prefix + "self_attn."
        names = [mixer + name for name in ("q_proj", "k_proj", "v_proj")]
        both, key, value = self._products(names, x)
        both = both.view(-1, config.attention_heads, 2 * config.head_dim)
        query, gate = both.chunk(2, dim=-1)
        key = key.view(-1, config.kv_heads, config.head_dim)
        value = value.view(-1, config.kv_heads, config.head_dim)
        query = self._norm(mixer + "q_norm.weight", query)
        key = self._norm(mixer + "k_norm.weight", key)
        attended = []
        for q, k, v in zip(*(part.split(lengths) for part in (query, key, value)), strict=True):
            positions = torch.arange(len(q))
            rope = rope_tables(positions, config.rotary_dim, config.rope_theta, torch.float32)
            q, k = apply_rope(q, *rope), apply_rope(k, *rope)
            attended.append(attention(q, k, v, 0, config.head_dim**-0.5))
        gated = output_gate(torch.cat(attended), gate).flatten(1)
        return self._products([mixer + "o_proj"], gated)[0]

    def _gdn(self, prefix: str, x: Tensor, lengths: Sequence[int]) -> Tensor:
        config, mixer = self._config, prefix + "linear_attn."
        names = [mixer + f"in_proj_{part}" for part in ("qkv", "z", "b", "a")]
        raw, z, b, a = self._products(names, x)
        g = decay_log(a, self._vector(mixer + "A_log"), self._vector(mixer + "dt_bias"))
        conv, norm = self._vector(mixer + "conv1d.weight").squeeze(1), mixer + "norm.weight"
        widths = config.key_width, config.key_width, config.value_width
        heads = config.value_heads, config.value_dim
        outputs = []
        for text, text_g, strength in zip(
            *(part.split(lengths) for part in (raw, g, beta(b))), strict=True
        ):
            empty = RecurrentState.zeros(config, torch.float32)
            mixed, _ = causal_conv(text, conv, empty.tail)
            q, k, v = mixed.split(widths, dim=-1)
            q = q.view(-1, config.key_heads, config.key_dim)
            k = k.view(-1, config.key_heads, config.key_dim)
            outputs.append(
                gated_delta_chunked(empty.state, q, k, v.view(-1, *heads), text_g, strength)[0]
            )
        y = gated_rms_norm(
            torch.cat(outputs), z.view(-1, *heads), self._vector(norm), config.rms_eps
        )
        return self._products([mixer + "out_proj"], y.flatten(1))[0]

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        config, shared = self._config, mlp_prefix(self._config, prefix)
        if not config.experts:
            return self._gated(shared, x)
        names = [prefix + "mlp.gate", prefix + "mlp.shared_expert_gate"]
        logits, shared_gate = self._products(names, x)
        chosen, weights = route(logits, config.experts_per_token, torch.float32)
        out = shared_gate.sigmoid() * self._gated(shared, x)
        for expert in range(config.experts):
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            y = self._gated(expert_prefix(prefix, expert), x[rows])
            out.index_add_(0, rows, weights[rows, slots, None] * y)
        return out

    def _gated(self, prefix: str, x: Tensor) -> Tensor:
        gate, up = self._products([prefix + "gate_proj", prefix + "up_proj"], x)
        return self._products([prefix + "down_proj"], silu_mul(gate, up))[0]

    def _products(self, modules: Sequence[str], x: Tensor) -> list[Tensor]:
        """The outputs of linears that read the rows x, each with its settled weight."""
        if not bool(x.isfinite().all()):
            raise NumericsError(
                f"The inputs of {modules[0]} on the calibration text hold a NaN or an infinity.",
                next_step="Check the model folder: a weight is damaged or was converted wrongly.",
            )
        return [linear(x, weight) for weight in self._settle(modules, x)]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self._vector(name), self._config.rms_eps)

    def _vector(self, name: str) -> Tensor:
        return self._vectors[name].float()
