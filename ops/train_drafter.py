# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a block drafter for the demo model on what that model writes: seeded and resumable.

    python -m ops.train_drafter --work DIR [--model assets/demo-model] [--minutes 60] [--seed 1]
    python -m ops.train_drafter --work DIR --export --out DIR     # write the folder, train nothing

The text is that of the demo corpus and its tasks; only tokens that the model chooses itself count. A killed run
continues from its last checkpoint in DIR; the schedule follows the minutes trained.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.model.block_config import BlockConfig
from ops.demo.corpus import Entry, read_corpus
from ops.demo.samples import Samples, collate
from ops.demo.training_state import TrainingState, rates
from ops.demo.vocabulary import Chat
from ops.drafter.acceptance import Answer, tally_rounds
from ops.drafter.data import Seen, draw_blocks, look, without_prompts
from ops.drafter.losses import block_losses
from ops.drafter.network import BlockNetwork
from ops.drafter.publish import write_drafter
from ops.drafter.target import Target
from ops.drafter.tensors import aim_attention, initial_tensors

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "drafter.pt"
MASK_TOKEN = "<tool_response>"  # an id the demo model never writes
WIDTHS = (8, 16)
# Rows of the blocks to train on, and how often: the first slots earn the most and are worth most samples.
TRAINED_WIDTHS, SHARES = (4, 8, 16), torch.tensor((0.45, 0.45, 0.1))


def drafter_config(target: Target, *, layers: int, intermediate: int) -> BlockConfig:
    """The shape of a small drafter for the target."""
    c = target.config
    taps = tuple(sorted({c.layers * (i + 1) // 4 - 1 for i in range(4)} - {-1}))
    return BlockConfig(
        hidden_size=c.hidden_size,
        intermediate_size=intermediate,
        layers=layers,
        attention_heads=4,
        kv_heads=2,
        head_dim=64,
        vocab_size=c.vocab_size,
        rms_eps=1e-6,
        rope_theta=1e3,
        window=2048,
        block_size=16,
        conv_group=16,
        selector_rank=32,
        top_k=16,
        mask_id=target.tokenizer.token_to_id(MASK_TOKEN),
        taps=taps,
        tap_offset=1,
        target_layers=c.layers,
        context_tokens=c.context_tokens,
    )


def pools(
    target: Target, samples: Samples, config: BlockConfig, first: int, *, size: int, passes: int
) -> Iterator[tuple[int, list[Seen]]]:
    """(pool number, its batches in the order to train on), each batch `passes` times, for ever."""
    number = first
    while True:
        seen = [look(target, batch, config.streams) for batch in samples.pool(number, size)]
        order = seen * passes
        random.Random(number).shuffle(order)
        number += 1
        yield number, order


def held_out_answers(
    entries: list[Entry], samples: Samples, target: Target, count: int, seed: int
) -> list[Answer]:
    """Chats that ask in words never trained on, and fresh tasks, each as far as the target writes it."""
    rng = random.Random(seed)
    chosen = rng.sample(entries, min(count, len(entries)))
    rows = [("corpus", samples.render([(e.held_out, e.answer, "")])) for e in chosen]
    tasks = (samples.tasks.draw(rng) for _ in range(count // 2))
    rows += [("task", samples.render([(request, answer, "")])) for request, answer in tasks]
    answers = []
    for kind, row in rows:
        seen = look(target, collate([row]), (0,))
        places = seen.answer[0].nonzero().flatten().tolist()
        end = next((p for p in places if not seen.written[0, p]), places[-1] + 1)
        if end - places[0] >= 8:
            answers.append(Answer(tuple(row[0][:end]), places[0], kind))
    return answers


def train(options: argparse.Namespace) -> None:
    """Runs until the budget is used up."""
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    target = Target.read(options.model)
    config = drafter_config(target, layers=options.layers, intermediate=options.intermediate)
    entries = training_entries(options)
    chat = Chat(target.tokenizer)
    samples = Samples(
        entries, chat, seed=options.seed, tokens_per_batch=options.batch_tokens, cut=0.0
    )
    probes = held_out_answers(entries, samples, target, options.probes, options.seed)
    first = initial_tensors(config, options.seed, target.final_norm)
    sample = look(target, samples.pool(0, 20)[0], config.streams)
    aim_attention(first, config, sample.taps[sample.answer], target.embed[config.mask_id])
    state = TrainingState(first, dtype=torch.float32)
    if state.resume(work / CHECKPOINT):
        generator.manual_seed(options.seed + state.progress.step)
    tensors, optimiser, progress = state.tensors, state.optimiser, state.progress
    shape = (config.layers, config.intermediate_size)
    network = BlockNetwork(config)
    budget = options.minutes * 60.0
    last_save = last_probe = last_print = progress.seconds
    sums, printed = [0.0] * 3, 0
    began, done = time.perf_counter(), False
    for number, order in pools(
        target, samples, config, progress.pool, size=options.pool, passes=options.passes
    ):
        for seen in order:
            share = min(1.0, progress.seconds / budget)
            width = TRAINED_WIDTHS[int(torch.multinomial(SHARES, 1, generator=generator))]
            count = max(1, options.rows // (len(seen.ids) * width))
            blocks = draw_blocks(seen, count, width, generator)
            if not blocks.valid.any(-1).any(-1).all():
                continue
            losses = block_losses(network, tensors, target, seen, blocks, width)
            losses.total.backward()
            optimiser.step(*rates(share, options.adam_rate, options.muon_rate))
            state.step_done(longest=0.98)
            now = time.perf_counter()
            progress.seconds += now - began
            began = now
            printed += 1
            for i, value in enumerate((losses.slot, losses.selector, losses.first_pct)):
                sums[i] += value
            if progress.seconds - last_print >= options.print_every:
                slot, selector, first = (value / printed for value in sums)
                print(
                    f"step {progress.step} slot {slot:.3f} selector {selector:.3f} "
                    f"first {first:.1f} % elapsed {progress.seconds / 60:.1f} min",
                    flush=True,
                )
                last_print, sums, printed = progress.seconds, [0.0] * 3, 0
            if progress.seconds - last_save >= options.save_every:
                state.save(work / CHECKPOINT, shape=shape)
                last_save = progress.seconds
            done = progress.seconds >= budget or progress.step == options.steps
            if done:
                break
        progress.pool = number
        if done:
            state.save(work / CHECKPOINT, shape=shape)
        if progress.seconds - last_probe >= options.probe_every or done:
            for width in WIDTHS:
                for tally in tally_rounds(network, state.average, target, probes, width):
                    print(
                        f"held out, block {width}, {tally.kind}: {tally.tokens_per_round:.2f} tokens a "
                        f"round over {tally.answers} answers",
                        flush=True,
                    )
            last_probe = progress.seconds
            began = time.perf_counter()
        if done:
            return


def export(options: argparse.Namespace) -> None:
    """Writes the drafter's folder from the last checkpoint's averaged weights."""
    torch.set_num_threads(options.threads)
    state = torch.load(options.work / CHECKPOINT, weights_only=True)
    step, _, seconds = state["progress"]
    layers, intermediate = state["shape"]
    target = Target.read(options.model)
    config = drafter_config(target, layers=layers, intermediate=intermediate)
    answers = read_answers(options.answers) if options.answers else []
    lines = []
    for width in WIDTHS if answers else ():
        tallies = tally_rounds(BlockNetwork(config), state["average"], target, answers, width)
        parts = ", ".join(f"{t.kind} {t.tokens_per_round:.2f} ({t.answers})" for t in tallies)
        lines.append(f"Blocks of {width} rows: {parts}.")
    figures = (
        "Tokens a round on the demo model's own greedy answers to the prompts in `assets/prompts.txt`, "
        "with the chain of the greedy walk, by class (answers): " + " ".join(lines)
        if lines
        else "Not measured in this run."
    )
    training = (
        f"{step} steps of about {options.rows} rows, {seconds / 60:.0f} minutes on one shared CPU thread, "
        "on the demo corpus under random rewording and on its generated tasks; only tokens that the demo model "
        f"itself chooses count. The phrasings in `assets/prompts.txt` are left out. {options.note}"
    ).strip()
    out = options.out or options.work / "demo-drafter"
    write_drafter(out, config, state["average"], training=training, figures=figures)
    print(f"wrote {out} from step {step}\n{figures}", flush=True)


def read_answers(path: Path) -> list[Answer]:
    """Answers of a JSON-lines file: {"ids": [..], "start": N, "kind": ".."} a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [Answer(tuple(row["ids"]), row["start"], row["kind"]) for row in rows]


def training_entries(options: argparse.Namespace) -> list[Entry]:
    """The corpus without the phrasings of the test prompts."""
    entries, _ = read_corpus(options.corpus, options.corpus_seed)
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    return without_prompts(entries, (line for line in lines if line and line[0] != "#"))


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--model", type=Path, default=ROOT / "assets" / "demo-model")
    parser.add_argument("--corpus", type=Path, default=ROOT / "assets" / "demo-corpus")
    parser.add_argument("--prompts", type=Path, default=ROOT / "assets" / "prompts.txt")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--steps", type=int, default=0, help="stop at this step already; 0: do not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus-seed", type=int, default=1, help="as in ops.train_demo")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=2048, help="rows of all blocks of a step")
    parser.add_argument("--pool", type=int, default=200, help="chats in a pool")
    parser.add_argument("--passes", type=int, default=3, help="times each pool is trained on")
    parser.add_argument("--probes", type=int, default=40)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--muon-rate", type=float, default=0.03)
    parser.add_argument("--print-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--save-every", type=float, default=180.0, help="seconds")
    parser.add_argument("--probe-every", type=float, default=420.0, help="seconds")
    parser.add_argument("--export", action="store_true", help="only write the drafter's folder")
    parser.add_argument("--out", type=Path, help="the folder to write (default: WORK/demo-drafter)")
    parser.add_argument("--note", default="", help="a further sentence about the run for the card")
    parser.add_argument("--answers", type=Path, help="greedy answers to measure acceptance on")
    return parser


def main() -> None:
    """Parses the command line; trains unless told only to export."""
    options = arguments().parse_args()
    (export if options.export else train)(options)


if __name__ == "__main__":
    main()
