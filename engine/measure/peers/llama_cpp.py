# SPDX-License-Identifier: MIT OR Apache-2.0
"""llama.cpp as a peer, through the C interface of llama-cpp-python, on a file of random weights."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import llama_cpp as lib

from engine.errors import RondoError
from engine.measure.peers.gguf_file import HEAD_TYPE, cached_gguf, read_bytes
from engine.measure.peers.process import PeerError
from engine.measure.peers.worker import (
    LoadedPeer,
    Specification,
    require_dense,
    require_memory,
    serve,
)

_MICRO_BATCH = 512  # llama.cpp's default
_WARNING_LEVEL = 3


class LlamaModel:
    """A loaded model with one context; see `engine.measure.rounds.TimedModel`."""

    def __init__(self, path: str, specification: Specification) -> None:
        self.vocab_size = specification.config.vocab_size
        self._log: list[str] = []

        @lib.llama_log_callback
        def remember(level: int, text: bytes, _user: object) -> None:
            if level >= _WARNING_LEVEL:
                self._log.append(text.decode("utf-8", "replace").strip())

        self._remember = remember  # the library keeps a bare pointer to it
        lib.llama_log_set(remember, None)
        lib.llama_backend_init()
        model_parameters = lib.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        model_parameters.use_extra_bufts = not specification.plain_weights
        self._model = lib.llama_model_load_from_file(path.encode(), model_parameters)
        if not self._model:
            raise self._failed("it does not load the weights")
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = specification.capacity
        parameters.n_batch = max(specification.prefill_tokens, specification.max_rows, _MICRO_BATCH)
        parameters.n_ubatch = _MICRO_BATCH
        parameters.n_threads = specification.threads
        parameters.n_threads_batch = specification.threads
        parameters.n_seq_max = 1
        parameters.no_perf = True
        self._context = lib.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise self._failed("it cannot make a context")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(parameters.n_batch, 0, 1)
        self._length = 0

    def restart(self, ids: Sequence[int]) -> None:
        lib.llama_memory_clear(self._memory, True)
        self._length = 0
        if ids:
            self.prefill(ids)

    def advance(self, ids: Sequence[int]) -> None:
        self._decode(ids, every_row=True)

    def prefill(self, ids: Sequence[int]) -> None:
        self._decode(ids, every_row=False)

    def _decode(self, ids: Sequence[int], *, every_row: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(ids)
        for row, token in enumerate(ids):
            batch.token[row] = token
            batch.pos[row] = self._length + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = every_row or row + 1 == len(ids)
        status = lib.llama_decode(self._context, batch)
        if status:
            raise self._failed(f"a batch of {len(ids)} rows failed with status {status}")
        # Fetching the logits waits for the work that decode may leave running.
        lib.llama_get_logits_ith(self._context, len(ids) - 1)
        self._length += len(ids)

    def _failed(self, what: str) -> RondoError:
        said = f" ({self._log[-1]})" if self._log else ""
        return PeerError(
            f"{what}{said}.", next_step="Update it: pip install --upgrade llama-cpp-python gguf"
        )


def load(specification: Specification) -> LoadedPeer:
    """Write or find the weights, then load them."""
    kind, config = specification.variant, specification.config
    require_dense(config)
    weights = read_bytes(config, kind)
    require_memory(2 * weights, f"llama.cpp with {kind} weights (file and repacked copy)")
    path = cached_gguf(config, specification.shape_name, kind)
    model = LlamaModel(str(path), specification)
    model.restart([0, 0])  # what this processor cannot run shows now and not in a measured round
    version = f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    stored = ", weights not repacked" if specification.plain_weights else ""
    return LoadedPeer(model, f"{kind}, {HEAD_TYPE} head{stored}", weights, version)


if __name__ == "__main__":
    serve(load)
