# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one header with PTX, read and computed by the rules of its instructions.

The host stand-in replaces kernels/cuda/ptx.cuh, so what stands in it would otherwise run on a GPU alone: an
operand in another place compiles, keeps every budget and gives other numbers.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable

import pytest
import torch
from simt.host import KERNELS

from kernels.e2m1.reference import decode

HEADER = KERNELS / "cuda/ptx.cuh"
_ASM = re.compile(r'asm(?: volatile)?\(((?:\s*"[^"]*")+)\s*:([^;]*?)\);', re.DOTALL)
EVERY_BYTE = range(256)
HALVES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x3C00, 0xBE00, 0x7BFF, 0x1C00, 0x4233)
PAIRS = [low | high << 16 for low, high in itertools.product(HALVES, HALVES)]
WORDS = (0x76543210, 0xFEDCBA98, 0x00FF8001, 0x12345678)


def written(name: str, text: str | None = None) -> list[tuple[str, list[str]]]:
    """(PTX, operands in the order of their numbers) of every asm of a function of the header."""
    text = HEADER.read_text("utf-8") if text is None else text
    start = re.search(rf"^RONDO_DEVICE [\w ]+ {name}\(", text, re.MULTILINE)
    assert start, f"the header has no {name}"
    body = text[start.end() : text.index("\n}", start.end())]
    found = []
    for strings, operands in _ASM.findall(body):
        lines = "".join(re.findall(r'"([^"]*)"', strings))
        found.append((lines, re.findall(r'"[=+]?\w+"\(((?:[^()]|\([^()]*\))+)\)', operands)))
    assert found, f"{name} has no PTX"
    return found


def f16(bits: int) -> float:
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def bf16(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def rounded(value: float, dtype: torch.dtype) -> int:
    """Bits of the nearest value, ties to even; every value here is exact in float32 before."""
    return int(torch.tensor(value, dtype=torch.float64).to(dtype).view(torch.int16)) & 0xFFFF


def e2m1(code: int) -> float:
    return float(decode(torch.tensor([code], dtype=torch.uint8)))


def e4m3(byte: int) -> float:
    return float(torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).float())


def by_halves(a: int, b: int, f: Callable[[int, int], int]) -> int:
    return f(a & 0xFFFF, b & 0xFFFF) | f(a >> 16, b >> 16) << 16


def prmt(a: int, b: int, selector: int) -> int:
    both = a | b << 32
    return sum((both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


# By the PTX ISA: of a conversion to a pair the first source becomes the upper half.
RULES: dict[str, Callable[..., int]] = {
    "cvt.rn.f16x2.e2m1x2": lambda a: (
        rounded(e2m1(a & 15), torch.float16) | rounded(e2m1(a >> 4), torch.float16) << 16
    ),
    "cvt.rn.f16x2.e4m3x2": lambda a: (
        rounded(e4m3(a & 255), torch.float16) | rounded(e4m3(a >> 8), torch.float16) << 16
    ),
    "cvt.f32.f16": lambda a: struct.unpack("<I", struct.pack("<f", f16(a)))[0],
    "cvt.rn.bf16x2.f32": lambda a, b: (
        rounded(f32(b), torch.bfloat16) | rounded(f32(a), torch.bfloat16) << 16
    ),
    "cvt.rn.bf16.f32": lambda a: rounded(f32(a), torch.bfloat16),
    "mul.rn.f16x2": lambda a, b: by_halves(
        a, b, lambda p, q: rounded(f16(p) * f16(q), torch.float16)
    ),
    "fma.rn.bf16x2": lambda a, b, c: by_halves(
        a, b, lambda p, q: rounded(bf16(p) * bf16(q) + bf16(c & 0xFFFF), torch.bfloat16)
    ),
    "prmt.b32": prmt,
}


def computed(form: tuple[str, list[str]], **values: int) -> int:
    """What the PTX leaves in %0; `values` by the names of the C++ operands."""
    ptx, operands = form
    held = {}
    for number, operand in enumerate(operands):
        name = operand if operand in values else next((n for n in values if n in operand), "")
        constant = re.fullmatch(r"0x([0-9A-Fa-f]+)u", operand)
        held[f"%{number}"] = int(constant[1], 16) if constant else values.get(name, 0)
    for line in re.sub(r"\.reg [^;]*;|^\{|\}$", "", ptx).split(";"):
        if not line.strip():
            continue
        opcode, rest = line.split(None, 1)
        if opcode == "mov.b32":
            names = re.findall(r"\w+", rest[: rest.index("}")])
            width = 32 // len(names)
            source = held[rest[rest.index("}") + 1 :].strip(" ,")]
            held |= {name: source >> width * i & (1 << width) - 1 for i, name in enumerate(names)}
            continue
        target, *sources = (part.strip() for part in rest.split(","))
        held[target] = RULES[opcode](*(held[source] for source in sources))
    return held["%0"]


def test_codes_become_the_two_values_of_their_byte() -> None:
    forms = written("f16x2_of_e2m1x2")
    assert len(forms) == 4
    for at, form in enumerate(forms):
        for byte in EVERY_BYTE:
            word = byte << 8 * at | (0x5A5A5A5A & ~(0xFF << 8 * at))
            got = computed(form, word=word)
            assert (f16(got & 0xFFFF), f16(got >> 16)) == (e2m1(byte & 15), e2m1(byte >> 4))


def test_scales_become_the_two_values_of_their_bytes() -> None:
    (form,) = written("f16x2_of_e4m3x2")
    for byte in range(127):
        got = computed(form, pair=byte | (126 - byte) << 8)
        assert (f16(got & 0xFFFF), f16(got >> 16)) == (e4m3(byte), e4m3(126 - byte))


def test_products_keep_halves_signs_and_subnormals() -> None:
    for name, value, dtype in (
        ("multiply_f16x2", f16, torch.float16),
        ("multiply_bf16x2", bf16, torch.bfloat16),
    ):
        (form,) = written(name)
        for a, b in itertools.product(PAIRS[::7], PAIRS):
            got = computed(form, a=a, b=b)
            for shift in (0, 16):
                exact = value(a >> shift & 0xFFFF) * value(b >> shift & 0xFFFF)
                assert got >> shift & 0xFFFF == rounded(exact, dtype), (name, hex(a), hex(b))


def test_conversions_to_bf16_round_once_and_keep_their_places() -> None:
    (form,) = written("bf16x2_of_f16x2")
    for pair in PAIRS:
        got = computed(form, pair=pair)
        for shift in (0, 16):
            wanted = rounded(f16(pair >> shift & 0xFFFF), torch.bfloat16)
            assert got >> shift & 0xFFFF == wanted, hex(pair)
    (form,) = written("bf16_of_f32")
    for bits in (0x3F808000, 0x3F818000, 0x3F808001, 0x80000001, 0x7F7FFFFF):
        assert computed(form, value=bits) == rounded(f32(bits), torch.bfloat16)


def test_bytes_are_taken_as_the_selector_says() -> None:
    ((ptx, operands),) = written("permute")
    assert operands == ["r", "low", "high", "kSelector"]
    for selector, low, high in itertools.product((0x3210, 0x7654, 0x0246, 0x4040), WORDS, WORDS):
        values = {"low": low, "high": high, "kSelector": selector}
        got = computed((ptx, operands), **values)
        data = low.to_bytes(4, "little") + high.to_bytes(4, "little")
        wanted = bytes(data[selector >> 4 * i & 7] for i in range(4))
        assert got == int.from_bytes(wanted, "little")


def test_the_matrix_instruction_takes_its_fragments_in_order() -> None:
    """Rows g and g + 8 alternate in A, K first below and then above 8: a0, a1, a2, a3 by the PTX ISA."""
    ((ptx, operands),) = written("mma_m16n8k16")
    opcode, rest = ptx.split(None, 1)
    assert opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    groups = [re.findall(r"%\d", group) for group in re.findall(r"\{([^}]*)\}", rest)]
    sums, a, b = [f"%{i}" for i in range(4)], [f"%{i}" for i in range(4, 8)], ["%8", "%9"]
    assert groups == [sums, a, b, sums]
    assert operands == [*(f"sum[{i}]" for i in range(4)), "a0", "a1", "a2", "a3", "b0", "b1"]


def test_lanes_exchange_by_xor() -> None:
    ((ptx, operands),) = written("shuffle_xor")
    assert ptx == "shfl.sync.bfly.b32 %0, %1, %2, 31, 0xFFFFFFFF;"
    assert operands == ["r", "value", "mask"]


@pytest.mark.parametrize(
    ("old", "new", "test"),
    [
        ("cvt.rn.bf16x2.f32 %0, d, c;", "cvt.rn.bf16x2.f32 %0, c, d;", "bf16x2_of_f16x2"),
        ("cvt.rn.f16x2.e2m1x2 %0, c;", "cvt.rn.f16x2.e2m1x2 %0, b;", "f16x2_of_e2m1x2"),
        ("0x80008000u", "0x00000000u", "multiply_bf16x2"),
        ("mov.b32 {a, b}, %1;", "mov.b32 {b, a}, %1;", "bf16x2_of_f16x2"),
    ],
)
def test_an_operand_in_another_place_is_seen(old: str, new: str, test: str) -> None:
    text = HEADER.read_text("utf-8")
    assert old in text
    values = {"a": 0x80003C00, "b": 0x3C003C00, "pair": 0xBE003C00, "word": 0x76543210}
    found = [
        [
            computed(form, **{k: v for k, v in values.items() if k in form[1]})
            for form in written(test, given)
        ]
        for given in (text, text.replace(old, new))
    ]
    assert found[0] != found[1]
