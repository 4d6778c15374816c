# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a GPU that the gate has no manifest for is launched with."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kernels.cubin_gate import facts_of, find_tool
from kernels.cuda_build import TARGETS

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton on this system")


@pytest.mark.parametrize(("major", "minor"), sorted(TARGETS))
def test_the_fp8_product_compiles_as_a_gpu_launches_it(
    own_home: object, monkeypatch: pytest.MonkeyPatch, major: int, minor: int
) -> None:
    """Triton refuses e4m3 numbers before sm_89: there the codes are bytes."""
    from kernels.fp8_linear import triton as fp8
    from kernels.triton_build import Compiled

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))
    fp8._takes_bytes.cache_clear()
    try:
        as_bytes = fp8._takes_bytes(torch.device("cuda", 0))
    finally:
        fp8._takes_bytes.cache_clear()
    (form,) = (form for form in fp8.GATE.variants if form.entry == "fp8_blocks_17408x5120_r16")
    if as_bytes:
        form = replace(
            form,
            types=dict(form.types) | {"codes": "*u8"},
            constants=dict(form.constants) | {"BYTES": True},
        )
    target = TARGETS[(major, minor)].name
    (image,) = Compiled("fp8_linear/triton.py", form).cubins(target).values()
    assert image.startswith(b"\x7fELF")


@pytest.mark.skipif(find_tool("cuobjdump") is None, reason="no cuobjdump on this machine")
@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
def test_the_update_of_a_state_is_one_operation(
    own_home: object, tmp_path: Path, target: str
) -> None:
    """Some compilers fuse a product and a sum though told not to, in one kernel and not in another."""
    from kernels.gated_delta import triton as delta
    from kernels.triton_build import Compiled

    forms = [form for form in delta.GATE.variants if form.entry.startswith("delta_commit")]
    assert len(forms) == 2
    for name, image in Compiled("gated_delta/triton.py", *forms).cubins(target).items():
        file = tmp_path / f"{name}.cubin"
        file.write_bytes(image)
        (own,) = facts_of(file).values()
        # A tile of 128 x 32 over 128 threads; a state that nothing was added to has no sum of its own.
        assert own.count("FFMA") == 32, name
        assert own.count("FADD") <= 1, name
