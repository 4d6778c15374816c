# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every switch of the native forward takes another path, proves it by its counter and keeps its promise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from test_native import CAPACITY, CONFIG, sequence

from engine.errors import UsageError
from engine.knobs import KNOBS, PREFIX, KnobSet, knob_named
from engine.load.synthetic import synthetic_weights
from engine.model.native import NativeBackend
from engine.model.tiles import shape_key
from kernels.build import load_library
from kernels.tape import Pool

TREE = (-1, 0, 1, 1, 0, 4)


@dataclass(frozen=True)
class Flip:
    """A change of switches, the path it takes and the one it takes the place of."""

    changes: str
    taken: str
    left: str
    identical: bool = False

    @property
    def knobs(self) -> dict[str, str]:
        pairs = (each.split("=") for each in self.changes.split())
        return {f"QWEN38_{name}": value for name, value in pairs}


FLIPS = (
    Flip("FUSED_ADDNORM=0", "adds and norms apart", "add-norm kernels", identical=True),
    Flip("FUSED_NORM=0", "norms by PyTorch", "norm kernels"),
    Flip("FUSED_HEAD=0", "one-row head expanded", "one-row head kernels"),
    Flip("DECODE_ATTN=0", "narrow attention by PyTorch", "narrow attention kernels"),
    Flip("GQA_FROM=33", "wide attention by PyTorch", "wide attention kernels"),
    Flip("FUSED_ATTN_PREP=0", "attention preparation by PyTorch", "attention preparation kernels"),
    Flip("COMMIT_IN_VERIFY=0 FUSED_COMMIT=0", "delta commit row by row", "delta commit kernels"),
    Flip("COMMIT_IN_VERIFY=0 RANKK=0", "commits by replay", "commits by record", identical=True),
    Flip("FUSED_GDN=0", "delta one-row row by row", "delta one-row kernels"),
    Flip("FUSED_GDNPRE=0", "one-row preparation by PyTorch", "one-row preparation kernels"),
    Flip("FUSED_GDNBLOCK=0", "delta chain row by row", "delta chain kernels"),
    Flip("FUSED_GDNTREE=0", "delta tree row by row", "delta tree kernels"),
    Flip("FUSED_GDNVERIFY=0", "verify preparation by PyTorch", "verify preparation kernels"),
    Flip("FUSED_GDNPREFILL=0 GDN_CHUNK=16", "delta prefill by a solve", "delta prefill kernels"),
    Flip("FUSED_GDNPREFILL=0 UT_INVERSE=0", "delta prefill row by row", "delta prefill kernels"),
    Flip("GDNV_WY=1", "delta verify by a solve", "delta chain kernels"),
    Flip("GDNV_WY=1 GDNV_WY_CHAIN_MAXT=2", "delta verify by a solve", "delta tree kernels"),
    Flip("GDNV_WY=1 GDNV_WY_MAXT=2", "delta verify by a solve", "delta chain kernels"),
    Flip("NVFP4_SKINNY=0", "narrow NVFP4 expanded", "narrow NVFP4 kernels"),
    Flip("NVFP4_INT8=1", "NVFP4 products of 8-bit inputs", "NVFP4 products of 16-bit inputs"),
    Flip("NVFP4_PREFILL_V2=0", "wide NVFP4 expanded", "wide NVFP4 kernels"),
    Flip("NVFP4_PREFILL_V2_UNTIL=33", "wide NVFP4 expanded", "wide NVFP4 kernels"),
)


TILED = ("SKINNY_TILES", "SKINNY_TILES_WIDE", "FP8_TILES")  # tables, tried at the end of this file


def make(**environ: str) -> NativeBackend:
    return NativeBackend(
        CONFIG,
        synthetic_weights(CONFIG, "nvfp4", seed=5),
        capacity=CAPACITY,
        knobs=KnobSet.resolve(environ=environ),
        pool=Pool(load_library(), 1),
    )


@pytest.fixture(scope="module")
def backend() -> Iterator[NativeBackend]:
    made = make()
    yield made
    made.close()


def run(backend: NativeBackend) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of a prompt's end, of chains, a tree and single rows behind it, and what was committed."""
    ids = sequence(80)
    backend.reset(speculate=True)
    rows = [backend.prefill(ids[:40]).logits[:1].copy()]
    for given, parents, path in (
        (ids[40:44], None, [0, 1]),
        (ids[42:43], None, [0]),
        (ids[43:49], TREE, [0, 1, 3]),
        (ids[46:48], None, [0]),
        (ids[47:50], None, [0, 1, 2]),
        (ids[50:51], None, [0]),
    ):
        backend.draft(given[0], 3)
        rows.append(backend.verify(given, parents).logits.copy())
        backend.commit(path)
    return torch.from_numpy(np.concatenate(rows)), backend.committed_state()


def counted(backend: NativeBackend, before: dict[str, int]) -> dict[str, int]:
    return {
        path: count - before.get(path, 0)
        for path, count in backend.engaged().items()
        if count != before.get(path, 0)
    }


# Of the largest value: another rounding of bf16 intermediate results, and of inputs to 8 bits.
_WITHIN = {"identical": 0.0, "near-tie": 0.02, "other-numbers": 0.1}


def close(values: torch.Tensor, wanted: torch.Tensor, within: float = 0.02) -> bool:
    """Whether no value is further off than this part of the largest."""
    return bool((values - wanted).abs().max() <= within * wanted.abs().max())


@pytest.fixture(scope="module")
def expected(backend: NativeBackend) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return run(backend)


# Eager passes issue the same steps: three flips stand for all.
WAYS = [(flip, "1") for flip in FLIPS] + [(FLIPS[at], "0") for at in (0, 7, 17)]


@pytest.mark.parametrize(("flip", "replay"), WAYS, ids=lambda each: getattr(each, "changes", each))
def test_a_flip_takes_the_other_path_and_keeps_what_it_promises(
    backend: NativeBackend,
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
    flip: Flip,
    replay: str,
) -> None:
    if flip.taken == "NVFP4 products of 8-bit inputs" and not backend.takes_int8:
        pytest.skip("the products of the matrix unit read bf16")
    logits, state = expected
    within = _WITHIN[max((knob_named(name).bits for name in flip.knobs), key=list(_WITHIN).index)]
    knobs = KnobSet.resolve(environ={"QWEN38_VERIFY_GRAPH": replay})
    before = backend.engaged()
    try:
        backend.apply_knobs(knobs.changed(flip.knobs))
        flipped, flipped_state = run(backend)
        paths = counted(backend, before)
        backend.apply_knobs(knobs)
        again = backend.engaged()
        restored, _ = run(backend)
    finally:
        backend.apply_knobs(KnobSet({}))
    assert paths.get(flip.taken, 0) > 0
    assert flip.left not in paths or flip.changes.startswith("GDNV_WY=1 ")
    assert flip.taken not in counted(backend, again)
    if flip.left != "delta commit kernels":  # a separate commit is no default
        assert counted(backend, again)[flip.left] > 0
    assert torch.equal(restored, logits)
    if flip.identical:
        assert torch.equal(flipped, logits)
    else:
        assert close(flipped, logits, within)
    for name, values in state.items():
        assert close(flipped_state[name].float(), values.float(), within) or not values.any(), name


def test_the_solve_is_bounded_by_rows_of_chains_and_of_trees(backend: NativeBackend) -> None:
    for bound, kept, solved in (
        ("GDNV_WY_MAXT", "delta tree kernels", "delta chain kernels"),
        ("GDNV_WY_CHAIN_MAXT", "delta chain kernels", "delta tree kernels"),
    ):
        before = backend.engaged()
        backend.apply_knobs(KnobSet({}).changed({"QWEN38_GDNV_WY": "1", f"QWEN38_{bound}": "0"}))
        run(backend)
        paths = counted(backend, before)
        backend.apply_knobs(KnobSet({}))
        assert kept in paths
        assert solved not in paths


def test_flips_between_any_two_rounds_keep_the_sequence_sound(
    backend: NativeBackend, expected: tuple[torch.Tensor, dict[str, torch.Tensor]]
) -> None:
    """Each round under another flip: what one path leaves, the next one finds."""
    ids, knobs = sequence(80), KnobSet({})
    backend.reset(speculate=False)
    wanted = [backend.prefill(ids[:20]).logits[0].copy()]
    for at in range(20, 20 + len(FLIPS)):
        wanted.append(backend.verify(ids[at : at + 1]).logits[0].copy())
        backend.commit(1)
    backend.reset(speculate=False)
    found = [backend.prefill(ids[:20]).logits[0].copy()]
    try:
        for at, flip in enumerate(FLIPS, 20):
            backend.apply_knobs(knobs.changed(flip.knobs))
            found.append(backend.verify(ids[at : at + 3]).logits[0].copy())
            backend.commit(1)
    finally:
        backend.apply_knobs(KnobSet({}))
    assert close(torch.from_numpy(np.stack(found)), torch.from_numpy(np.stack(wanted)))


def test_every_switch_of_a_recorded_pass_is_flipped_here() -> None:
    flipped = {name for flip in FLIPS for name in flip.knobs}
    recorded = {
        f"QWEN38_{knob.name}"
        for knob in KNOBS
        if knob.flip == "recapture" and "native" in knob.backends and knob.name not in TILED
    }
    assert not recorded - flipped
    proofs = {path for flip in FLIPS for path in (flip.taken, flip.left)}
    assert all(knob.engaged in proofs for knob in KNOBS if PREFIX + knob.name in recorded)


def test_a_flip_of_a_recorded_pass_changes_the_signature_and_others_do_not() -> None:
    base = KnobSet({}).changed({"QWEN38_COMMIT_IN_VERIFY": "0"})  # others depend on it
    for knob in KNOBS:
        other = {
            "bool": str(1 - int(base.raw(knob.name)[0])) if knob.kind == "bool" else "",
            "int": str(int(knob.low if knob.default != str(int(knob.low)) else knob.high)),
            "float": str(knob.high),
            "choice": next((c for c in knob.choices if c != knob.default), ""),
            "path": "x",
            "text": "x",
        }[knob.kind]
        changed = base.changed({f"QWEN38_{knob.name}": other})
        assert (changed.signature() != base.signature()) == (knob.flip == "recapture"), knob.name


def test_recordings_serve_contexts_up_to_the_bound_alone(backend: NativeBackend) -> None:
    ids = sequence(40)
    backend.reset(speculate=False)
    backend.apply_knobs(KnobSet({}).changed({"QWEN38_GRAPH_MAX_CTX": "10"}))
    try:
        backend.prefill(ids[:10])
        before = backend.engaged()
        at_the_bound = backend.verify(ids[10:11]).logits.copy()
        backend.commit(1)
        assert counted(backend, before)["tape replays"] == 1
        before = backend.engaged()
        backend.verify(ids[11:12])
        assert counted(backend, before)["eager passes"] == 1
        assert "tape replays" not in counted(backend, before)
    finally:
        backend.apply_knobs(KnobSet({}))
    backend.reset(speculate=False)
    backend.prefill(ids[:10])
    assert np.array_equal(backend.verify(ids[10:11]).logits, at_the_bound)


def test_another_number_of_threads_keeps_the_bits(
    backend: NativeBackend, expected: tuple[torch.Tensor, dict[str, torch.Tensor]]
) -> None:
    before = backend.engaged()
    backend.apply_knobs(KnobSet({}).changed({"QWEN38_CPU_THREADS": "2"}))
    try:
        assert backend.pool.threads == 2
        logits, state = run(backend)
    finally:
        backend.apply_knobs(KnobSet({}))
    assert backend.pool.threads == 1
    assert counted(backend, before)["passes on other threads"] > 0
    assert torch.equal(logits, expected[0])
    assert all(torch.equal(values, state[name]) for name, values in expected[1].items())


@pytest.mark.parametrize(
    ("name", "joined"),
    [
        ("GDN_AB", ["delta gates"]),
        ("FUSE_PROJ", ["delta in", "attention in", "MLP gate, up"]),
    ],
)
def test_products_over_one_input_keep_their_bits_one_by_one(
    backend: NativeBackend,
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
    name: str,
    joined: list[str],
) -> None:
    apart = make(**{f"QWEN38_{name}": "0"})
    try:
        logits, state = run(apart)
        paths = apart.engaged()
    finally:
        apart.close()
    assert torch.equal(logits, expected[0])
    assert all(torch.equal(values, state[name]) for name, values in expected[1].items())
    for path in joined:
        assert paths[f"separate {path}"] > 0
        assert f"joined {path}" not in paths
        assert backend.engaged()[f"joined {path}"] > 0
        assert f"separate {path}" not in backend.engaged()


def test_tile_tables_serve_their_rows_and_keep_the_bits(
    backend: NativeBackend, tmp_path: Path
) -> None:
    ids, sizes = sequence(60), {"rows": 1, "tiles": 2, "inputs": 128, "ahead_bytes": 0}
    backend.apply_knobs(KnobSet({}))

    def logits(rows: int) -> np.ndarray:
        backend.reset(speculate=False)
        backend.prefill(ids[:3])
        return backend.verify(ids[3 : 3 + rows]).logits.copy()

    wanted = {rows: logits(rows) for rows in (2, 20)}
    forward = backend._forward.weights
    keys = {
        shape_key(packed)
        for layer in forward.layers
        for packed, _ in (*layer.project.products, *layer.out.products, *forward.head.products)
    }
    path = tmp_path / "tiles.json"
    try:
        # The prompt's own three rows are narrow.
        for name, count, served in (
            ("SKINNY_TILES", "narrow NVFP4 products by a table", (2, 20)),
            ("SKINNY_TILES_WIDE", "wide NVFP4 products by a table", (20,)),
            ("FP8_TILES", "FP8 products by a table", (2, 20)),
        ):
            path.write_text(json.dumps({"tiles": dict.fromkeys(keys, sizes)}), "utf-8")
            backend.apply_knobs(KnobSet({}).changed({f"QWEN38_{name}": str(path)}))
            for rows, bits in wanted.items():
                before = backend.engaged()
                assert np.array_equal(logits(rows), bits)
                assert (count in counted(backend, before)) == (rows in served)
            # The same path with other contents is another recording.
            here, elsewhere = backend.pool.library.isa, {"tiles": dict.fromkeys(keys, sizes)}
            for contents in (
                {"tiles": {}},
                {"levels": {"another": elsewhere}},
                {"levels": {"another": elsewhere, here: {"tiles": {}}}},
            ):
                path.write_text(json.dumps(contents), "utf-8")
                backend.apply_knobs(KnobSet({}).changed({f"QWEN38_{name}": str(path)}))
                before = backend.engaged()
                assert np.array_equal(logits(2), wanted[2])
                assert count not in counted(backend, before)
    finally:
        backend.apply_knobs(KnobSet({}))


def test_a_table_that_is_none_leaves_everything_as_it_was(
    backend: NativeBackend, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"tiles": {"16x16": {"inputs": 16}}}')
    wrong = {"QWEN38_SKINNY_TILES": str(tmp_path / "bad.json"), "QWEN38_CPU_THREADS": "2"}
    with pytest.raises(UsageError, match="order of the sum over K"):
        backend.apply_knobs(KnobSet({}).changed(wrong))
    assert backend.pool.threads == 1
    before = backend.engaged()
    run(backend)
    assert not [path for path in counted(backend, before) if "table" in path]
