# SPDX-License-Identifier: MIT OR Apache-2.0
"""Names that related engines know and this one deliberately does not declare, with the reason."""

from __future__ import annotations

_WRONG = "its output is wrong by design; a timing experiment has no place in a console"
_BENCH = "it lists sizes for a bench tool; `rondo bench --rows` does"
_PARTS = "an A/B compares two values of the one switch in one process"
_FOLDER = "the model folder says in which format each weight is stored; `rondo quantize` writes one"

LEFT_OUT: dict[str, str] = {
    "MODEL": "`--model` and the window choose the folder",
    "NVFP4": _FOLDER,
    "FP8_HEAD": _FOLDER,
    "SKINNY_TILES_B": _PARTS,
    "SKINNY_TILES_C": _PARTS,
    "SKINNY_TILES_WIDE_B": _PARTS,
    "SKINNY_XSTUB": _WRONG,
    "SKINNY_SSTUB": _WRONG,
    "WY_DBG": _WRONG,
    "GDN_PREFILL_SERIES": "it gives NaN on real keys; the gated delta tests keep the case",
    "WY_GRID": _BENCH,
    "WY_SIZES": _BENCH,
    "NVFP4_SPLITK": "splitting K makes a row's bits depend on the number of rows",
    "NVFP4_BLOCK_TILES": "it belongs to a product that QWEN38_NVFP4_SKINNY replaced",
    "VERIFY_TILES": "it belongs to a product that QWEN38_NVFP4_SKINNY replaced",
    "NVFP4_DEQUANT_FROM": "QWEN38_NVFP4_PREFILL_V2_UNTIL is that bound",
    "DSPARK": "that family of drafters is not supported",
    "DSPARK_NO_YARN": "that family of drafters is not supported",
}
