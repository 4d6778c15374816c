# SPDX-License-Identifier: MIT OR Apache-2.0
"""The native library of every instruction-set level this machine runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.build import NativeLibrary, load_library, machine_isas


@pytest.fixture(params=machine_isas())
def library(request: pytest.FixtureRequest, own_home: Path) -> NativeLibrary:
    """The kernels at one level; compiled once a session, in the session's cache."""
    return load_library(request.param)


@pytest.fixture
def fastest(own_home: Path) -> NativeLibrary:
    """The kernels at the level this machine would choose."""
    return load_library()


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """References run on one thread: the native workers are what these tests are about."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
