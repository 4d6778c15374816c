# SPDX-License-Identifier: MIT OR Apache-2.0
"""The shape of a block drafter."""

from __future__ import annotations

from dataclasses import dataclass

CONV_TAPS = 2
CONV_SIDES = 2  # on a sublayer's input and on its output
MAX_BLOCK = 32  # rows of one block


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Sizes and constants of one block drafter; counts of elements unless a name says otherwise.

    `taps` are 0-based target layers whose outputs feed the drafter, ascending; `tap_offset` is how many layers
    later the residual stream is read: 1 for the stream that leaves the layer, 0 for the one that enters it.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope_theta: float
    window: int  # a query sees keys less than this many positions back
    block_size: int  # rows of one block, the anchor included
    conv_group: int
    selector_rank: int
    top_k: int
    mask_id: int
    taps: tuple[int, ...]
    tap_offset: int
    target_layers: int
    context_tokens: int
    output_multiplier: float = 1.0
    softcap: float = 0.0  # 0: none

    @property
    def attention_width(self) -> int:
        """All query heads side by side."""
        return self.attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All key heads side by side."""
        return self.kv_heads * self.head_dim

    @property
    def conv_groups(self) -> int:
        """Groups of channels that share one dynamic coefficient."""
        return self.hidden_size // self.conv_group

    @property
    def streams(self) -> tuple[int, ...]:
        """Numbers of the residual streams to read: stream i enters layer i, the last one leaves the model."""
        return tuple(tap + self.tap_offset for tap in self.taps)
