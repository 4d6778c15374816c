# SPDX-License-Identifier: MIT OR Apache-2.0
"""The hybrid forward of a GPU backend: the operations of a pass, layer by layer, in order.

Eager and captured passes run this same body. Narrow passes, of up to 32 rows to verify, read all that changes
from device buffers; prompt chunks of more rows know their place on the host and are never captured.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.model.backend import VERIFY_ROWS
from engine.model.config import ModelConfig
from engine.model.cuda_arena import Arena, DraftInputs, KvPair, PassInputs
from engine.model.cuda_ops import CudaOps
from engine.model.cuda_pass import Pass
from engine.model.cuda_weights import CudaAttention, CudaDelta, CudaWeights, Product

AfterLayer = Callable[[int, str], None]
KeepStream = Callable[[int, Tensor, int], None]


def keep_nothing(stream: int, residual: Tensor, rows: int) -> None:
    """What happens to the residual streams of a trunk pass where no drafter reads them."""


class CudaForward:
    """One model's weights over one arena."""

    def __init__(
        self, config: ModelConfig, weights: CudaWeights, arena: Arena, ops: CudaOps, tokens: int
    ) -> None:
        """`tokens`: ids that exist; columns of the logits behind them are padding.

        `keep(stream, residual, rows)` is called in every trunk pass with the residual stream that enters layer
        `stream`, and at last with the one that leaves the model.
        """
        self.config, self.weights, self.arena, self.ops = config, weights, arena, ops
        self.tokens = tokens
        self.keep: KeepStream = keep_nothing
        self.inputs = PassInputs.of(arena.inputs.device)
        self.draft_inputs = DraftInputs.of(arena.draft_inputs.device)
        kinds = [isinstance(layer, CudaDelta) for layer in weights.layers]
        self._place = [kinds[:index].count(kind) for index, kind in enumerate(kinds)]

    def verify(
        self,
        *,
        rows: int,
        parity: int,
        tree: bool,
        context: int,
        after_layer: AfterLayer = lambda layer, part: None,
    ) -> None:
        """Commit what is pending, then rows to verify: embedding to head, with the best tokens.

        `context`: positions that this pass may see at most, its own included. `after_layer`: see `trunk`.
        """
        arena, inputs, ops = self.arena, self.inputs, self.ops
        self._settle(parity)
        if tree:
            ops.paths_of(inputs.parents, arena.tree)
        paths = arena.tree if tree else arena.chain
        here = Pass(
            rows=rows,
            start=inputs.start,
            positions=(inputs.start + paths.depths).long(),
            slots=inputs.start + arena.places[:rows],
            places=arena.places[:context],
            tree=paths,
            is_tree=tree,
            parity=parity,
        )
        self.trunk(here, after_layer)
        self.head(rows)

    def chunk(self, *, rows: int, first: int, parity: int) -> None:
        """A prompt chunk of more than 32 rows behind `first` positions, committed as it is computed.

        Nothing may be pending. The last row's logits and best token are left in row 0.
        """
        places = self.arena.places[first : first + rows]
        here = Pass(
            rows, self.inputs.start, places, places, places, self.arena.chain, False, first, parity
        )
        self.trunk(here)
        self.head(1, first=rows - 1)

    def flush(self, *, parity: int) -> None:
        """Apply the pending rows, of the record set that `parity` does not own, without a pass."""
        self._settle(parity)
        delta = self.arena.delta
        self.ops.commit(delta, delta.records[1 - parity], self.inputs)

    def trunk(self, here: Pass, after_layer: AfterLayer = lambda layer, part: None) -> None:
        """Embedding to final norm, left in arena.hidden; `after_layer` is called behind each sublayer."""
        arena, ops, layers = self.arena, self.ops, self.weights.layers
        rows = here.rows
        ops.embed(self.weights.embed, self.inputs.ids, arena.residual, rows)
        self.keep(0, arena.residual, rows)
        ops.norm(arena.residual, layers[0].input_norm, arena.normed, rows)
        for index, layer in enumerate(layers):
            if isinstance(layer, CudaDelta):
                self._delta(layer, index, here)
            else:
                self._attention(layer, arena.kv.layer(self._place[index]), here)
            ops.add_norm(arena.residual, arena.mixed, layer.post_norm, arena.normed, rows)
            after_layer(index, "mixer")
            self._mlp(layer, rows)
            last = index + 1 == len(layers)
            norm = self.weights.final_norm if last else layers[index + 1].input_norm
            ops.add_norm(
                arena.residual, arena.mixed, norm, arena.hidden if last else arena.normed, rows
            )
            self.keep(index + 1, arena.residual, rows)
            after_layer(index, "MLP")

    def head(self, rows: int, first: int = 0) -> None:
        """Logits and the best token of `rows` rows of arena.hidden from `first`, into the first rows."""
        arena = self.arena
        hidden = arena.hidden[first : first + VERIFY_ROWS]
        self.ops.head(self.weights.head, hidden, arena.logits, rows, name="head")
        self.ops.best(arena.logits[:rows, : self.tokens], arena.best[:rows])

    def extend(self, *, rows: int, context: int, first: int | None) -> None:
        """Entries of the first waiting pairs into the MTP head's cache; `first` as in `Pass`."""
        draft = self.draft_inputs
        start = draft.starts[0, :1]
        self._mtp(self.arena.mtp_waiting, draft.following, start, rows, context, first)

    def draft(self, *, rows: int, steps: int, width: int, context: int) -> None:
        """`rows` pairs brought into the MTP cache, then `steps` tokens drafted in a chain.

        Each step leaves its `width` best tokens, their logits and the logarithm that makes them probabilities.
        """
        arena, inputs, ops = self.arena, self.draft_inputs, self.ops
        self._mtp(arena.mtp_waiting, inputs.following, inputs.starts[0, :1], rows, context, None)
        last = arena.mtp_hidden[rows - 1 : rows - 1 + VERIFY_ROWS]
        for step in range(steps):
            ops.head(self.weights.head, last, arena.logits, 1, name="draft head")
            found = arena.draft_ids[step], arena.draft_figures[step]
            ops.top(arena.logits[0, : self.tokens], *found, width)
            if step + 1 < steps:
                following = found[0][:1].expand(VERIFY_ROWS)
                start = inputs.starts[step + 1, :1]
                self._mtp(last, following, start, 1, context, None)
                last = arena.mtp_hidden[:VERIFY_ROWS]

    def _settle(self, parity: int) -> None:
        arena = self.arena
        self.ops.settle(arena.kv, arena.delta, arena.delta.records[1 - parity], self.inputs)

    def _mtp(
        self,
        hidden: Tensor,
        following: Tensor,
        start: Tensor,
        rows: int,
        context: int,
        first: int | None,
    ) -> None:
        """MTP rows of (hidden row, next token) pairs, left in arena.mtp_hidden."""
        arena, mtp, ops, places = self.arena, self.weights.mtp, self.ops, self.arena.places
        assert mtp is not None
        assert arena.mtp_kv is not None
        if first is None:
            positions, slots = start + places[:VERIFY_ROWS], start + places[:rows]
            seen = places[:context]
        else:
            positions = slots = seen = places[first : first + rows]
        here = Pass(rows, start, positions, slots, seen, arena.chain, first=first)
        size = self.config.hidden_size
        ops.embed(self.weights.embed, following, arena.mixed, rows)
        ops.norm(arena.mixed, mtp.norm_embedding, arena.mtp_pair[:, :size], rows)
        ops.norm(hidden, mtp.norm_hidden, arena.mtp_pair[:, size:], rows)
        ops.project(mtp.fc, arena.mtp_pair, arena.residual, rows, name="mtp fc")
        ops.norm(arena.residual, mtp.layer.input_norm, arena.normed, rows)
        self._attention(mtp.layer, arena.mtp_kv, here)
        ops.add_norm(arena.residual, arena.mixed, mtp.layer.post_norm, arena.normed, rows)
        self._mlp(mtp.layer, rows)
        ops.add_norm(arena.residual, arena.mixed, mtp.norm, arena.mtp_hidden, rows)

    def _delta(self, layer: CudaDelta, index: int, here: Pass) -> None:
        arena, ops, rows = self.arena, self.ops, here.rows
        buffers = arena.delta.layer(self._place[index])
        out = arena.attended[:, : self.config.value_width]
        ops.project(layer.project, arena.normed, arena.projected, rows, name="delta in")
        ops.project(layer.gates, arena.normed, arena.gates, rows, name="delta gates")
        if here.first is None:
            ops.delta(layer, buffers, arena.projected, arena.gates, out, self.inputs, here)
        else:
            ops.delta_chunk(layer, buffers, arena.projected, arena.gates, out, rows=rows)
        ops.project(layer.out, out, arena.mixed, rows, name="delta out")

    def _attention(self, layer: CudaAttention, cache: KvPair, here: Pass) -> None:
        arena, ops, rows = self.arena, self.ops, here.rows
        out = arena.attended[:, : self.config.attention_width]
        ops.project(layer.project, arena.normed, arena.projected, rows, name="attention in")
        ops.attention_prepare(
            layer, arena.projected, cache, here, rope=self.weights.rope, out=arena.query
        )
        attend = ops.attention if here.first is None else ops.attention_of_chunk
        attend(layer, arena.projected, arena.query, cache, out, here)
        ops.project(layer.out, out, arena.mixed, rows, name="attention out")

    def _mlp(self, layer: CudaDelta | CudaAttention, rows: int) -> None:
        arena, ops = self.arena, self.ops
        ops.project(layer.gate_up, arena.normed, arena.gate_up, rows, name="MLP gate, up")
        ops.silu_mul(arena.gate_up, arena.inner, rows)
        ops.project(layer.down, arena.inner, arena.mixed, rows, name="MLP down")


def products_of(weights: CudaWeights) -> list[Product]:
    """Every product of a model but the head's, the MTP head's included."""
    layers = list(weights.layers)
    layers += [] if weights.mtp is None else [weights.mtp.layer]
    found = [] if weights.mtp is None else [weights.mtp.fc]
    for layer in layers:
        found += [layer.project, layer.out, layer.gate_up, layer.down]
        found += [layer.gates] if isinstance(layer, CudaDelta) else []
    return [product for each in found for product, _ in each.products]
