# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo corpus build`: text files as a corpus that the lookup drafter searches (QWEN38_CORPUS)."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from engine.cli import OK, print_json
from engine.errors import Cancelled, UsageError, reason_of
from engine.numbers import grouped


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("action", choices=("build",), help="make a corpus")
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="model folder whose tokenizer is used (default: the demo model)",
    )
    parser.add_argument(
        "--text", required=True, nargs="+", metavar="FILE", help="UTF-8 files, each a document"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write, new or empty")


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Encode the files, sort, write, and say what was written."""
    from engine.load.files import model_folder
    from engine.load.tokenizer import Tokenizer
    from engine.paths import demo_model
    from engine.spec.corpus import build_corpus, refuse_occupied, tokenizer_sha256

    out = Path(arguments.out).expanduser()
    refuse_occupied(out)
    model = model_folder(arguments.model or demo_model())
    tokenizer = Tokenizer.read(model)
    documents = []
    for name in arguments.text:
        if cancel.is_set():
            raise Cancelled(kept="Nothing was written.")
        documents.append(tokenizer.encode_text(_text(Path(name))))
        if not arguments.json:
            print(f"{name}: {grouped(len(documents[-1]))} tokens", file=sys.stderr)
    meta = build_corpus(out, documents, tokenizer_sha256=tokenizer_sha256(model))
    report = {"out": str(out), **meta, "bytes": sum(each.stat().st_size for each in out.iterdir())}
    if arguments.json:
        print_json(report)
    else:
        print(f"{out}: {grouped(meta['tokens'])} tokens of {meta['documents']} documents")
        print(f"Use it with QWEN38_LOOKUP=1 QWEN38_CORPUS={out}")
    return OK


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot read the text: {reason_of(error)}.",
            kept="Nothing was written.",
            next_step="Give files of UTF-8 text.",
        ) from error
