# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a verify pass on a GPU has to move and to issue, and the time that follows: predicted, never measured.

Counted are the bytes from memory (every weight once, the recurrent state read and written once, the KV of the
context read once), the matrix instructions m16n8k16 of the skinny products and the head, and the instructions
that decode their weights. Left out: activations (the L2 cache holds them), moves and addresses, launches, the
drafter, attention's and the delta rule's arithmetic. The longest of the three times is the prediction, as if
the other two hid behind it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.measure.shapes import Shape
from engine.model.config import FULL, ModelConfig

LABEL = "predicted from the byte model, not measured"
_FLOPS_PER_INSTRUCTION = 2 * 16 * 8 * 16
# A pair of weights becomes an operand by four integer instructions and a product that runs beside them
# (kernels/cuda/nvfp4.cuh, kernels/head/gemv.cu); the conversions of newer GPUs are as many at most.
_DECODE_PER_PAIR = 4
_LANES = 64  # integer and conversion instructions a clock and multiprocessor


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU by what it can do: read rate that kernels reach, BF16 matrix peak, multiprocessors, clock."""

    name: str
    read_gbps: float
    matrix_tflops: float
    multiprocessors: int
    clock_ghz: float

    def bytes_ms(self, count: int) -> float:
        """Time to read so many bytes."""
        return count / self.read_gbps / 1e6

    def matrix_ms(self, instructions: int) -> float:
        """Time to issue so many matrix instructions."""
        return instructions * _FLOPS_PER_INSTRUCTION / self.matrix_tflops / 1e9

    def decode_ms(self, instructions: int) -> float:
        """Time to issue so many instructions of one lane each."""
        return instructions / (self.multiprocessors * _LANES * self.clock_ghz) / 1e6


# Measured elsewhere: a saturating read kernel and matrix peaks on GB10; a device copy and a library product on
# H200, whose warp-wide matrix instructions reach a part of that peak.
MACHINES = (
    Machine("GB10", 233.0, 123.7, 48, 2.4),
    Machine("H200", 4300.0, 790.0, 132, 1.98),
)


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product of a pass: `weights` is nvfp4, fp8 (a head with a scale a row) or bf16."""

    name: str
    outputs: int
    inputs: int
    weights: str

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it is stored."""
        elements = self.outputs * self.inputs
        if self.weights == "nvfp4":
            return elements // 2 + elements // 16 + 4
        return elements + 4 * self.outputs if self.weights == "fp8" else 2 * elements

    def matrix_instructions(self, rows: int) -> int:
        """m16n8k16 instructions: one a tile of 8 outputs and 16 inputs up to 16 rows, then two."""
        if self.weights == "bf16":
            return 0
        return -(-self.outputs // 8) * (self.inputs // 16) * (1 if rows <= 16 else 2)

    @property
    def decode_instructions(self) -> int:
        """Instructions, counted by lane, that turn the stored weight into operands."""
        return 0 if self.weights == "bf16" else self.outputs * self.inputs // 2 * _DECODE_PER_PAIR


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One number of rows on one machine; every time is a prediction."""

    machine: str
    rows: int
    bytes_per_round: int
    cpu_bytes_per_round: int
    matrix_instructions: int
    decode_instructions: int
    bytes_ms: float
    matrix_ms: float
    decode_ms: float
    predicted_ms: float
    bound: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The predictions for a shape."""

    shape: str
    shape_note: str
    context_tokens: int
    rows: tuple[PlanRow, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan with its label and what each machine is taken to do."""
        return {
            "label": LABEL,
            "shape": self.shape,
            "shape_note": self.shape_note,
            "context_tokens": self.context_tokens,
            "machines": [asdict(machine) for machine in MACHINES],
            "rows": [asdict(row) for row in self.rows],
        }


def layer_products(config: ModelConfig, kind: str) -> tuple[Product, ...]:
    """The products of one layer, in order; NVFP4 but for the two small gate projections."""
    hidden = config.hidden_size
    if kind == FULL:
        mixer = (
            Product("q", config.q_rows, hidden, "nvfp4"),
            Product("k", config.kv_rows, hidden, "nvfp4"),
            Product("v", config.kv_rows, hidden, "nvfp4"),
            Product("o", hidden, config.attention_width, "nvfp4"),
        )
    else:
        mixer = (
            Product("in_qkv", config.qkv_rows, hidden, "nvfp4"),
            Product("in_z", config.value_width, hidden, "nvfp4"),
            Product("in_b", config.value_heads, hidden, "bf16"),
            Product("in_a", config.value_heads, hidden, "bf16"),
            Product("out", hidden, config.value_width, "nvfp4"),
        )
    return (
        *mixer,
        Product("gate", config.intermediate_size, hidden, "nvfp4"),
        Product("up", config.intermediate_size, hidden, "nvfp4"),
        Product("down", hidden, config.intermediate_size, "nvfp4"),
    )


def small_bytes(config: ModelConfig, kind: str) -> int:
    """Norms, convolution and gates of one layer."""
    norms = 2 * 2 * config.hidden_size
    if kind == FULL:
        return norms + 2 * 2 * config.head_dim
    gates = 4 * (2 * config.value_heads + config.value_dim)
    return norms + 2 * config.conv_width * config.qkv_rows + gates


def make_plan(shape: Shape, rows: tuple[int, ...], context_tokens: int) -> Plan:
    """Predictions for a verify pass of each number of rows on every machine of MACHINES.

    `bytes_per_round` is the GPU's; `cpu_bytes_per_round` is what the native CPU backend's byte model counts for
    the same pass, which leaves the write of the state to the caches.
    """
    config = shape.config
    products = [p for kind in config.layer_types for p in layer_products(config, kind)]
    products.append(Product("head", config.vocab_size, config.hidden_size, "fp8"))
    weights = sum(p.nbytes for p in products) + 2 * config.hidden_size
    weights += sum(small_bytes(config, kind) for kind in config.layer_types)
    state = config.recurrent_bytes
    kv = config.kv_layer_bytes() * len(config.attention_layers) * context_tokens
    decode = sum(p.decode_instructions for p in products)
    found = []
    for machine in MACHINES:
        for count in rows:
            matrix = sum(p.matrix_instructions(count) for p in products)
            total = weights + 2 * state + kv
            times = {
                "memory": machine.bytes_ms(total),
                "matrix": machine.matrix_ms(matrix),
                "decoding": machine.decode_ms(decode),
            }
            bound = max(times, key=times.__getitem__)
            found.append(
                PlanRow(
                    machine.name,
                    count,
                    total,
                    weights + state + kv,
                    matrix,
                    decode,
                    *times.values(),
                    times[bound],
                    bound,
                )
            )
    return Plan(shape.name, shape.note, context_tokens, tuple(found))
