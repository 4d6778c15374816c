# SPDX-License-Identifier: MIT OR Apache-2.0
"""What holds of the sequence state of a dense model holds of one with experts: the same tests on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import test_block_forward
import test_chunking
import test_mtp
import test_mtp_drafters
import test_mtp_undrafted
import test_rollback
import test_rows_aside
import test_tree_verify
from backends import KINDS, BackendKind, Loaded
from oracle import MOE_STATE_CASE, Case

pytestmark = pytest.mark.usefixtures("one_thread")

MODULES = (
    test_block_forward,
    test_chunking,
    test_mtp,
    test_mtp_drafters,
    test_mtp_undrafted,
    test_rollback,
    test_rows_aside,
    test_tree_verify,
)


# Experts know nothing of the cache's format, and rounding is not what the state is about.
@pytest.fixture(
    scope="module",
    params=[kind for kind in KINDS if kind.name in ("reference float32", "native")],
    ids=lambda kind: kind.name,
)
def backend_factory(request: pytest.FixtureRequest) -> BackendKind:
    return request.param


@pytest.fixture(scope="module")
def loaded(loaded_case: Callable[[Case], Loaded]) -> Loaded:
    return loaded_case(MOE_STATE_CASE)


compiled, drafter = test_block_forward.compiled, test_block_forward.drafter

for module in MODULES:
    for name, test in vars(module).items():
        if (
            name.startswith("test_")
            and callable(test)
            and "loaded" in inspect.signature(test).parameters
        ):
            globals()[f"{name}_{module.__name__.removeprefix('test_')}"] = test
