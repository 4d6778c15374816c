# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many bytes a round has to read: the numerator of every bandwidth figure.

Every weight of the trunk and the head once, the recurrent state once, the KV of the committed positions once,
and for a drafter its own weights and the head once a drafted token. Embedding rows and activations are left
out: they are thousands of times smaller.

The verify pass reads the state. Where accepted rows are committed inside the next verify pass, that is all, and
this pass writes the state back once. A commit pass of its own reads the state a second time and writes it once;
the verify pass then writes none, since the states that it walks through stay in each core's cache. A replay of
the accepted tokens reads everything but the head a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.load.weights import ModelWeights, parts_of
from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ByteModel:
    """Byte counts of one model; see the module for what is counted."""

    trunk_bytes: int  # every layer and the final norm
    head_bytes: int
    mtp_bytes: int
    state_bytes: int  # recurrent state of all delta layers, float32
    kv_bytes_per_token: int  # all attention layers, scales included
    mtp_kv_bytes_per_token: int

    @staticmethod
    def of(config: ModelConfig, weights: ModelWeights, *, scaled_kv: bool = False) -> ByteModel:
        """The byte model of loaded weights in their stored form; `scaled_kv`: with a cache in e4m3."""
        layers = sum(part.nbytes for layer in weights.layers for part in parts_of(layer))
        mtp = 0 if weights.mtp is None else sum(part.nbytes for part in parts_of(weights.mtp))
        kv = config.kv_layer_bytes(scaled=scaled_kv)
        return ByteModel(
            trunk_bytes=layers + weights.final_norm.nbytes,
            head_bytes=weights.head_linear.nbytes,
            mtp_bytes=mtp,
            state_bytes=config.recurrent_bytes,
            kv_bytes_per_token=kv * len(config.attention_layers),
            mtp_kv_bytes_per_token=kv if mtp else 0,
        )

    def round_bytes(
        self,
        rows: int,
        drafted: int,
        context_tokens: int,
        *,
        commit_in_verify: bool = True,
        replay: bool = False,
    ) -> int:
        """Bytes of a round with `drafted` tokens from the MTP head and one verify pass of `rows` rows."""
        if rows < 1:
            return 0
        verify = self.trunk_bytes + self.head_bytes
        verify += self.state_bytes * (1 if commit_in_verify else 2)
        verify += self.kv_bytes_per_token * context_tokens
        if replay:
            verify += self.trunk_bytes + self.state_bytes
            verify += self.kv_bytes_per_token * context_tokens
        return verify + self.draft_bytes(drafted, context_tokens)

    def draft_bytes(self, steps: int, context_tokens: int) -> int:
        """Bytes of `steps` steps of the MTP head."""
        one = self.mtp_bytes + self.head_bytes + self.mtp_kv_bytes_per_token * context_tokens
        return steps * one
