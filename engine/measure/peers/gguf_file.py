# SPDX-License-Identifier: MIT OR Apache-2.0
"""A GGUF file of random weights with the tensor names, keys and sizes of a hybrid model of a given shape.

For timing a peer only: the values mean nothing, so no order of heads and no offset of norms is translated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import RondoError, UsageError
from engine.model.config import FULL, ModelConfig

HEAD_TYPE = "Q8_0"
_LAYOUT = 1  # of these files; raise it when what is written changes
# Bytes of one block, columns in a block (the ggml formats).
_BLOCKS = {"Q4_0": (18, 32), "Q8_0": (34, 32), "NVFP4": (36, 64), "BF16": (2, 1), "F32": (4, 1)}
_Q4_RMS = 4.64  # of the integers -8 to 7
_Q8_RMS = 73.9  # of the integers -128 to 127
_E2M1_RMS = 2.93


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor [rows, columns] (rows 0: a vector) of elements with standard deviation `deviation`."""

    name: str
    rows: int
    columns: int
    kind: str
    deviation: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensor."""
        size, columns = _BLOCKS[self.kind]
        return max(self.rows, 1) * self.columns // columns * size


def entries(config: ModelConfig, kind: str) -> Iterator[Entry]:
    """The tensors of the file; `kind` is the format of the big linears, as UsageError may say."""
    widths = (config.hidden_size, config.intermediate_size, config.value_width)
    block = max(_BLOCKS[kind][1], _BLOCKS[HEAD_TYPE][1])
    if any(width % block for width in (*widths, config.attention_width)):
        raise UsageError(
            f"{kind} holds columns in blocks of {block}, which this shape does not fill.",
            next_step="Leave this peer out or choose another of its formats.",
        )
    hidden, vocab = config.hidden_size, config.vocab_size
    yield Entry("token_embd.weight", vocab, hidden, HEAD_TYPE, 0.5)
    yield Entry("output_norm.weight", 0, hidden, "F32")
    yield Entry("output.weight", vocab, hidden, HEAD_TYPE, hidden**-0.5)
    for index, layer in enumerate(config.layer_types):
        mixer = _attention(config) if layer == FULL else _gdn(config)
        for name, rows, columns in (*mixer, *_mlp(config)):
            # The small projections stay BF16 in NVFP4 checkpoints.
            small = "BF16" if kind == "NVFP4" and rows == config.value_heads else kind
            yield Entry(
                f"blk.{index}.{name}",
                rows,
                columns,
                small if rows and "conv" not in name else "F32",
                columns**-0.5 * (0.5 if "out" in name or "down" in name else 1.0),
            )


def read_bytes(config: ModelConfig, kind: str) -> int:
    """Weight bytes that one pass reads: everything but the embedding table."""
    return sum(e.nbytes for e in entries(config, kind) if not e.name.startswith("token_embd"))


def cached_gguf(config: ModelConfig, shape_name: str, kind: str) -> Path:
    """The file of this shape and format in the user's cache folder, written when it is not there yet.

    Raises:
        RondoError: the folder cannot be written or the disk is too small; says what is needed.
    """
    identity = json.dumps([_LAYOUT, kind, config.geometry()], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = _cache_folder()
    path = folder / f"{shape_name.replace(':', '-')}-{kind}-{digest}.gguf"
    if path.exists():
        return path
    size = sum(entry.nbytes for entry in entries(config, kind))
    temporary = path.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if size + (1 << 30) > free:
            raise RondoError(
                f"The peer's weights take {size / 1e9:.1f} GB and the disk of {folder} has "
                f"{free / 1e9:.1f} GB free.",
                next_step="Free some space or point XDG_CACHE_HOME at a larger disk.",
            )
        _write(temporary, config, shape_name, kind)
        os.replace(temporary, path)
    except OSError as error:
        raise RondoError(
            f"The peer's weights cannot be written to {folder}: {error.strerror}.",
            next_step="Free some space or point XDG_CACHE_HOME at a folder that can be written.",
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    return path


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rondo" / "peers"


def _attention(config: ModelConfig) -> tuple[tuple[str, int, int], ...]:
    hidden = config.hidden_size
    return (
        ("attn_q.weight", config.q_rows, hidden),
        ("attn_k.weight", config.kv_rows, hidden),
        ("attn_v.weight", config.kv_rows, hidden),
        ("attn_output.weight", hidden, config.attention_width),
        ("attn_q_norm.weight", 0, config.head_dim),
        ("attn_k_norm.weight", 0, config.head_dim),
    )


def _gdn(config: ModelConfig) -> tuple[tuple[str, int, int], ...]:
    hidden, heads = config.hidden_size, config.value_heads
    return (
        ("attn_qkv.weight", config.qkv_rows, hidden),
        ("attn_gate.weight", config.value_width, hidden),
        ("ssm_alpha.weight", heads, hidden),
        ("ssm_beta.weight", heads, hidden),
        ("ssm_conv1d.weight", config.qkv_rows, config.conv_width),
        ("ssm_dt.bias", 0, heads),
        ("ssm_a", 0, heads),
        ("ssm_norm.weight", 0, config.value_dim),
        ("ssm_out.weight", hidden, config.value_width),
    )


def _mlp(config: ModelConfig) -> tuple[tuple[str, int, int], ...]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    return (
        ("attn_norm.weight", 0, hidden),
        ("post_attention_norm.weight", 0, hidden),
        ("ffn_gate.weight", intermediate, hidden),
        ("ffn_up.weight", intermediate, hidden),
        ("ffn_down.weight", hidden, intermediate),
    )


def _write(path: Path, config: ModelConfig, shape_name: str, kind: str) -> None:
    import gguf

    interval = config.layer_types.index(FULL) + 1
    writer = gguf.GGUFWriter(path, "qwen35", use_temp_file=False)
    writer.add_name(f"random weights, {shape_name}, {kind}")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context_tokens)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.attention_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.rotary_dim)
    pairs = config.rotary_dim // 2
    third = pairs // 3
    writer.add_rope_dimension_sections([pairs - 2 * third, third, third, 0])
    writer.add_uint32("qwen35.full_attention_interval", interval)
    writer.add_ssm_conv_kernel(config.conv_width)
    writer.add_ssm_state_size(config.key_dim)
    writer.add_ssm_group_count(config.key_heads)
    writer.add_ssm_time_step_rank(config.value_heads)
    writer.add_ssm_inner_size(config.value_width)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    # Tensors are written one after the other, so that the file's size never stands in memory.
    plan = list(entries(config, kind))
    scales = [
        name for e in plan if e.kind == "NVFP4" for name in [e.name.replace("weight", "scale")]
    ]
    for entry in plan:
        shape = (entry.rows, entry.columns) if entry.rows else (entry.columns,)
        _declare(writer, gguf, entry, shape)
    for name in scales:
        writer.add_tensor_info(name, (1,), np.dtype(np.float32), 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.Generator(np.random.SFC64(0))
    for entry in plan:
        writer.write_tensor_data(_values(random, entry))
    for entry in plan:
        if entry.kind == "NVFP4":
            writer.write_tensor_data(np.array([_nvfp4_scale(entry.deviation)], np.float32))
    writer.close()


def _declare(writer: object, gguf: object, entry: Entry, shape: tuple[int, ...]) -> None:
    if entry.kind == "F32":
        writer.add_tensor_info(entry.name, shape, np.dtype(np.float32), entry.nbytes)
        return
    row_bytes = entry.nbytes // entry.rows
    kind = gguf.GGMLQuantizationType[entry.kind]
    stored = (entry.rows, row_bytes)
    writer.add_tensor_info(entry.name, stored, np.dtype(np.uint8), entry.nbytes, raw_dtype=kind)


def _values(random: np.random.Generator, entry: Entry) -> np.ndarray:
    """The tensor's bytes (or its float32 values)."""
    if entry.kind == "F32":
        return _small(random, entry)
    size, columns = _BLOCKS[entry.kind]
    blocks = entry.rows * entry.columns // columns
    words = random.integers(0, 1 << 64, -(-blocks * size // 8), dtype=np.uint64)
    data = words.view(np.uint8)[: blocks * size].reshape(blocks, size)
    if entry.kind == "BF16":
        values = random.random(blocks, np.float32)
        values -= np.float32(0.5)
        values *= np.float32(entry.deviation * 12**0.5)
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    elif entry.kind == "NVFP4":
        data[:, :4] = 0x30 + (data[:, :4] & 0x0F)  # positive E4M3 scales of 0.5 to 1.875
    else:
        rms = _Q4_RMS if entry.kind == "Q4_0" else _Q8_RMS
        spread = random.uniform(0.75, 1.25, blocks).astype(np.float32)
        scale = (spread * (entry.deviation / rms)).astype(np.float16)
        data[:, :2] = scale.view(np.uint8).reshape(blocks, 2)
    return data.reshape(entry.rows, -1)


def _small(random: np.random.Generator, entry: Entry) -> np.ndarray:
    shape = (entry.rows, entry.columns) if entry.rows else (entry.columns,)
    if entry.name.endswith("ssm_a"):
        return -np.linspace(0.05, 8, entry.columns, dtype=np.float32)  # -exp(A_log)
    if "conv" in entry.name:
        return random.uniform(-0.5, 0.5, shape).astype(np.float32)
    return random.uniform(0.9, 1.1, shape).astype(np.float32)


def _nvfp4_scale(deviation: float) -> float:
    scale_rms = (sum((0.5 + step / 16) ** 2 + (1 + step / 8) ** 2 for step in range(8)) / 16) ** 0.5
    return deviation / (_E2M1_RMS * scale_rms)
