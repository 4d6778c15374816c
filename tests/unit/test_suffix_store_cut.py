# SPDX-License-Identifier: MIT OR Apache-2.0
"""A suffix store whose file is cut under a reader: it tells, and the answers go on without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.spec.suffix_store import StoreOptions, SuffixStore

SHA = "ab" * 32


def test_a_file_that_is_cut_while_a_reader_maps_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SuffixStore(tmp_path / "s", tokenizer_sha256=SHA, vocab_size=100)
    writer.finish([1, 2])
    writer.wait()

    def cut(*_: object, **__: object) -> np.ndarray:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(np, "memmap", cut)
    troubles: list[str] = []
    reader = SuffixStore(
        tmp_path / "s",
        tokenizer_sha256=SHA,
        vocab_size=100,
        options=StoreOptions(read_only=True),
        on_trouble=troubles.append,
    )
    reader.wait()
    assert reader.continuations([1], 9) == []
    assert len(troubles) == 1
    assert "mmap length" in troubles[0]
