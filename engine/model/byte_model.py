# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many bytes a round has to read: the numerator of every bandwidth figure.

Every weight of the trunk and the head once, the recurrent state once, the KV of the committed positions once,
and for a drafter its own weights and the head once a drafted token. Embedding rows and activations are left
out: they are thousands of times smaller.

Of the routed experts of a mixture-of-experts model a pass reads those that one of its rows runs, each once: the
number that the backend counted in that pass, or, where it counted none, the mean for rows that choose
independently, E * (1 - (1 - k/E)^rows) in each layer. One row runs k of them, so there both agree.

The verify pass reads the state. Where accepted rows are committed inside the next verify pass, that is all, and
this pass writes the state back once. A commit pass of its own reads the state a second time and writes it once;
the verify pass then writes none, since the states that it walks through stay in each core's cache. A replay of
the accepted tokens reads everything but the head a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.load.weights import LayerWeights, ModelWeights, parts_of
from engine.model.config import ModelConfig
from kernels.moe.plan import expected_distinct


@dataclass(frozen=True, slots=True)
class ByteModel:
    """Byte counts of one model; see the module for what is counted."""

    trunk_bytes: int  # every layer but its routed experts, and the final norm
    head_bytes: int
    mtp_bytes: int  # but its routed experts
    state_bytes: int  # recurrent state of all delta layers, float32
    kv_bytes_per_token: int  # all attention layers, scales included
    mtp_kv_bytes_per_token: int
    expert_bytes: int = 0  # every routed expert of every layer
    mtp_expert_bytes: int = 0
    layers: int = 0
    experts: int = 0  # of a layer
    experts_per_token: int = 0

    @staticmethod
    def of(config: ModelConfig, weights: ModelWeights, *, scaled_kv: bool = False) -> ByteModel:
        """The byte model of loaded weights in their stored form; `scaled_kv`: with a cache in e4m3."""
        layers = sum(part.nbytes for layer in weights.layers for part in parts_of(layer))
        mtp = 0 if weights.mtp is None else sum(part.nbytes for part in parts_of(weights.mtp))
        routed = sum(_expert_bytes(layer) for layer in weights.layers)
        mtp_routed = 0 if weights.mtp is None else _expert_bytes(weights.mtp.layer)
        kv = config.kv_layer_bytes(scaled=scaled_kv)
        return ByteModel(
            trunk_bytes=layers - routed + weights.final_norm.nbytes,
            head_bytes=weights.head_linear.nbytes,
            mtp_bytes=mtp - mtp_routed,
            state_bytes=config.recurrent_bytes,
            kv_bytes_per_token=kv * len(config.attention_layers),
            mtp_kv_bytes_per_token=kv if mtp else 0,
            expert_bytes=routed,
            mtp_expert_bytes=mtp_routed,
            layers=config.layers,
            experts=config.experts,
            experts_per_token=config.experts_per_token,
        )

    def round_bytes(
        self,
        rows: int,
        drafted: int,
        context_tokens: int,
        *,
        commit_in_verify: bool = True,
        replay: bool = False,
        experts_read: int | None = None,
    ) -> int:
        """Bytes of a round with `drafted` tokens from the MTP head and one verify pass of `rows` rows.

        `experts_read`: (layer, expert) pairs that the pass read, counted; None takes the mean. A replay is
        taken to read the same ones.
        """
        if rows < 1:
            return 0
        trunk = self.trunk_bytes + self._routed_bytes(rows, experts_read)
        verify = trunk + self.head_bytes
        verify += self.state_bytes * (1 if commit_in_verify else 2)
        verify += self.kv_bytes_per_token * context_tokens
        if replay:
            verify += trunk + self.state_bytes
            verify += self.kv_bytes_per_token * context_tokens
        return verify + self.draft_bytes(drafted, context_tokens)

    def draft_bytes(self, steps: int, context_tokens: int) -> int:
        """Bytes of `steps` steps of the MTP head."""
        one = self.mtp_bytes + self.head_bytes + self.mtp_kv_bytes_per_token * context_tokens
        if self.experts:
            one += self.mtp_expert_bytes * self.experts_per_token // self.experts
        return steps * one

    def _routed_bytes(self, rows: int, experts_read: int | None) -> int:
        if not self.experts:
            return 0
        if experts_read is None:
            read = expected_distinct(rows, self.experts, self.experts_per_token)
            share = read / self.experts
        else:
            share = experts_read / (self.layers * self.experts)
        return round(self.expert_bytes * share)


def _expert_bytes(layer: LayerWeights) -> int:
    """Bytes of a layer's routed experts."""
    experts = layer.moe.experts if layer.moe else ()
    return sum(part.nbytes for expert in experts for part in parts_of(expert))
