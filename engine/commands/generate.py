# SPDX-License-Identifier: MIT OR Apache-2.0
"""`rondo generate`: one answer, streamed to the terminal or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import threading
from typing import TYPE_CHECKING

from engine.api import GenerateRequest, Generation, LoadProgress, Message, roof_name
from engine.cli import OK, add_model_options, open_model, print_json
from engine.errors import LongPromptError, UsageError
from engine.numbers import grouped

if TYPE_CHECKING:
    from engine.engine import Engine


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_model_options(parser)
    parser.add_argument("--prompt", required=True, metavar="T", help="the question; - reads stdin")
    parser.add_argument("--system", metavar="T", help="a system message before it (default: none)")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="most tokens of the answer, thinking included (default: 512)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="X",
        help="0 takes the likeliest token, up to 100 draws more evenly (default: 0)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="X",
        help="draw from the likeliest tokens that have this share together, above 0 to 1 (default: 1, all)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="draw from the N likeliest tokens (default: 0, all)",
    )
    parser.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="X",
        help="draw from tokens at least X times as likely as the likeliest, 0 to 1 (default: 0, all)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="whole number; the same one draws the same answer (default: another one each time)",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="T",
        help="end the answer before this text; may be repeated (default: none)",
    )
    parser.add_argument(
        "--no-spec", action="store_true", help="draft nothing: one token a round, for comparison"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="give the model the prompt alone, without the chat template",
    )
    parser.add_argument(
        "--thinking",
        choices=("on", "off"),
        help="whether the model thinks before it answers (default: as its chat template has it)",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="cut the oldest part of a prompt that does not fit the context, which is an error otherwise",
    )


def run(arguments: argparse.Namespace, cancel: threading.Event) -> int:
    """Open the model, answer, print."""
    from engine.request import checked_sampling

    request = _request(arguments)
    checked_sampling(request)  # a slip of the pen need not wait for the model
    with _open(arguments, request, cancel) as engine:
        show = None if arguments.json else _write
        generation = engine.generate(request, on_text=show, cancel=cancel, remember=True)
        device = engine.card.device
    if arguments.json:
        values = dataclasses.asdict(generation)
        print_json({**values, "token_ids": list(generation.token_ids), "device": device})
    else:
        print()
        print(figures(generation), file=sys.stderr)
    return OK


def _open(
    arguments: argparse.Namespace, request: GenerateRequest, cancel: threading.Event
) -> Engine:
    try:
        return open_model(
            arguments,
            cancel,
            remember=True,
            first=request,
            on_trouble=lambda trouble: print(f"note: {trouble}", file=sys.stderr),
            on_progress=None if arguments.json else _show_progress,
        )
    except LongPromptError as error:
        error.next_step += " Or have its oldest part cut: --truncate."
        raise


def figures(generation: Generation) -> str:
    """The figures of an answer in one line; what was not measured is left out."""
    parts = [f"{grouped(len(generation.token_ids))} tokens"]
    if generation.dropped_prompt_tokens:
        parts.append(f"{grouped(generation.dropped_prompt_tokens)} tokens of the prompt cut")
    if generation.decode_tps is not None:
        parts.append(f"{grouped(generation.decode_tps)} tok/s")
    if generation.tokens_per_round is not None:
        parts.append(f"{generation.tokens_per_round:.2f} tok/round")
    if generation.acceptance_pct is not None:
        parts.append(f"acceptance {generation.acceptance_pct:.0f} %")
    if generation.round_ms_median is not None:
        parts.append(f"{generation.round_ms_median:.2f} ms/round (median)")
    parts.append(f"first token after {grouped(generation.ttft_ms)} ms")
    if generation.read_gbps is not None:
        parts.append(f"{generation.read_gbps:.1f} GB/s")
        if generation.roof_gbps:
            share = 100 * generation.read_gbps / generation.roof_gbps
            name = roof_name(generation.roof_place)
            parts[-1] += (
                f" ({share:.{0 if share >= 1 else 1}f} % of {name} {generation.roof_gbps:.1f})"
            )
    parts.append(f"ended: {generation.finish_reason}")
    return ", ".join(parts)


def _request(arguments: argparse.Namespace) -> GenerateRequest:
    if arguments.raw and arguments.system is not None:
        raise UsageError(
            "--system needs the chat template, and --raw goes without it.",
            next_step="Leave one of the two out, or write the system text into the prompt.",
        )
    prompt = arguments.prompt
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    messages = [] if arguments.system is None else [Message("system", arguments.system)]
    thinking = None if arguments.thinking is None else arguments.thinking == "on"
    return GenerateRequest(
        messages=() if arguments.raw else (*messages, Message("user", prompt)),
        prompt=prompt if arguments.raw else None,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
        speculate=not arguments.no_spec,
        thinking=thinking,
        truncate=arguments.truncate,
    )


def _write(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def _show_progress(progress: LoadProgress) -> None:
    if sys.stderr.isatty():
        if not progress.total_bytes:  # a stage that counts no bytes
            print(progress.stage, file=sys.stderr)
            return
        share = 100 * progress.done_bytes // progress.total_bytes
        end = "\n" if progress.done_bytes >= progress.total_bytes else "\r"
        print(f"{progress.stage}: {share:3d} %", end=end, file=sys.stderr)
