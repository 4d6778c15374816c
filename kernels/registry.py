# SPDX-License-Identifier: MIT OR Apache-2.0
"""The table of operations: where their twins, native forms and checks are, and what they cost."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.build import NativeLibrary
from kernels.checks import CheckResult


@dataclass(frozen=True)
class Operation:
    """One operation of the forward pass.

    Attributes:
        name: the folder under kernels/.
        reference, native, check: module names; check offers `check(library, *, seed)`.
        rows: smallest and largest number of rows one native call takes.
        bytes_model: bytes a call must read, in words and symbols (R rows, N outputs, K inputs).
        flops_model: operations of a call, likewise.
    """

    name: str
    reference: str
    native: str
    check: str
    rows: tuple[int, int]
    bytes_model: str
    flops_model: str


def _operation(
    name: str, rows: tuple[int, int], bytes_model: str, flops_model: str, check: str = ""
) -> Operation:
    return Operation(
        name,
        f"kernels.{name}.reference",
        f"kernels.{name}.native",
        f"kernels.{check or name}.check",
        rows,
        bytes_model,
        flops_model,
    )


_MANY = (1, 65536)
OPERATIONS: tuple[Operation, ...] = (
    _operation("nvfp4_linear", _MANY, "N*K*9/16 + 4*N + 2*R*K", "2*R*N*K"),
    _operation("fp8_linear", _MANY, "N*K + 4*scales + 2*R*K", "2*R*N*K"),
    _operation("bf16_linear", _MANY, "2*N*K + 2*R*K", "2*R*N*K"),
    _operation(
        "moe",
        _MANY,
        "D distinct experts of E, each as its products read it + 2*R*k*(H + I)",
        "6*R*k*H*I (R rows, k of E experts a row, H hidden, I inner)",
    ),
    _operation("e2m1", _MANY, "4 a value encoded, 1/2 a value decoded", "none"),
    _operation("embedding", _MANY, "2*R*K", "none"),
    _operation("rms_norm", _MANY, "2*R*K + 2*K (twice R*K with a residual)", "4*R*K"),
    _operation("causal_conv", _MANY, "2*R*C + 8*C + 6*C", "8*R*C", "gated_delta"),
    _operation("gated_delta", _MANY, "4*Hv*dk*dv + rows of q, k, v, z", "8*R*Hv*dk*dv"),
    _operation(
        "rope", _MANY, "2*R*heads*D and the tables of R positions", "6*R*heads*D", "attention"
    ),
    _operation(
        "attention",
        _MANY,
        "4*context*Hkv*D (2*context*Hkv*(D + 4) in e4m3) + 4*R*Hq*D",
        "4*R*context*Hq*D",
    ),
    _operation("block_attention", _MANY, "4*window*Hkv*D + 4*R*Hq*D", "4*R*window*Hq*D"),
    _operation("block_conv", _MANY, "2*R*C + 4*R*groups + 8*C", "6*R*C"),
    _operation("elementwise", _MANY, "4*R*K", "5*R*K"),
    _operation("head", _MANY, "4*R*V", "R*V"),
)


def operation(name: str) -> Operation:
    """The entry called `name`.

    Raises:
        ValueError: no operation has that name.
    """
    for entry in OPERATIONS:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in OPERATIONS)
    raise ValueError(f"unknown operation {name!r}; known: {known}")


def run_checks(
    library: NativeLibrary, *, names: tuple[str, ...] | None = None, seed: int = 0
) -> Iterator[CheckResult]:
    """Results of every check (or of the operations `names`) on one library, as they come.

    A check that raises becomes a failed result that names the exception, so that one broken kernel
    does not hide the others.

    Raises:
        ValueError: a name is unknown.
    """
    entries = OPERATIONS if names is None else tuple(operation(name) for name in names)
    for module in dict.fromkeys(entry.check for entry in entries):
        try:
            yield from importlib.import_module(module).check(library, seed=seed)
        except Exception as error:
            kernel = module.split(".")[1]
            reason = f"the check stopped: {type(error).__name__}: {error}"
            yield CheckResult(kernel, library.isa, "cpu", "fail", 0.0, 0.0, None, reason)
