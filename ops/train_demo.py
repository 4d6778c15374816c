# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains the demo model on the demo corpus: seeded, resumable, within a budget of minutes.

    python -m ops.train_demo --work DIR [--minutes 60] [--seed 1]
    python -m ops.train_demo --work DIR --export      # write the model folder, train nothing

A killed run continues from its last checkpoint in DIR; the schedule follows the minutes trained.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ops.demo.corpus import Entry, read_corpus
from ops.demo.losses import held_out_figures, training_losses, working_copy
from ops.demo.network import Network
from ops.demo.publish import write_model
from ops.demo.samples import Batch, Samples, collate
from ops.demo.shape import Shape, initial_tensors
from ops.demo.tasks import Tasks
from ops.demo.training_state import TrainingState, rates
from ops.demo.vocabulary import Chat, train_tokenizer
from ops.demo.wording import reword

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "checkpoint.pt"
TOKENIZER = "tokenizer.json"


def make_tokenizer(entries: list[Entry], shape: Shape, seed: int) -> Tokenizer:
    """The tokenizer of the corpus, its reworded questions and the generated tasks."""
    rng = random.Random(seed)
    tasks = Tasks([entry.answer for entry in entries])
    texts = [entry.answer for entry in entries] * 3
    texts += [reword(e.questions, rng) for e in entries for _ in range(12)]
    texts += [q for entry in entries for q in (*entry.questions, *map(str.lower, entry.questions))]
    texts += [tasks.draw(rng)[0] for _ in range(1500)]
    return train_tokenizer(texts, shape.vocab)


def held_out_batches(entries: list[Entry], samples: Samples, count: int, seed: int) -> list[Batch]:
    """Batches of entries asked with the phrasing that training never sees."""
    chosen = random.Random(seed).sample(entries, min(count, len(entries)))
    rows = [samples.render([(e.held_out, e.answer, "")]) for e in chosen]
    rows.sort(key=lambda row: len(row[0]))
    return [collate(rows[i : i + 32]) for i in range(0, len(rows), 32)]


def export(work: Path, out: Path, shape: Shape, entries: int) -> None:
    """Writes the model folder from the last checkpoint's averaged weights."""
    state = torch.load(work / CHECKPOINT, weights_only=True)
    step, _, seconds = state["progress"]
    tokenizer = Tokenizer.from_file(str(work / TOKENIZER))
    note = f"{step} steps, {seconds / 60:.0f} minutes on the CPU, {entries} subjects."
    write_model(out, state["average"], shape, tokenizer, note)
    print(f"wrote {out} from step {step}", flush=True)


def train(options: argparse.Namespace, shape: Shape, entries: list[Entry]) -> None:
    """Runs until the budget is used up."""
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    path = work / TOKENIZER
    if not path.exists():
        make_tokenizer(entries, shape, options.seed).save(str(path))
    chat = Chat(Tokenizer.from_file(str(path)))
    samples = Samples(
        entries, chat, seed=options.seed, tokens_per_batch=options.batch_tokens, cut=options.cut
    )
    probes = held_out_batches(entries, samples, options.probes, options.seed)
    state = TrainingState(initial_tensors(shape, options.seed))
    state.resume(work / CHECKPOINT)
    tensors, optimiser, progress = state.tensors, state.optimiser, state.progress
    network = Network(shape, drop=options.drop, chunk=32)
    judge = Network(shape, chunk=32)
    budget = options.minutes * 60.0
    last_save = last_probe = last_print = progress.seconds
    tokens = printed_steps = drafted_steps = 0
    sums = [0.0, 0.0, 0.0]
    while progress.seconds < budget:
        for batch in samples.pool(progress.pool):
            began = time.perf_counter()
            share = min(1.0, progress.seconds / budget)
            depth, part = (1, 4) if share < 0.4 else (3, options.draft_part)
            if progress.step % options.draft_every:
                depth = 0
            rows = torch.randperm(len(batch.ids))[: max(1, len(batch.ids) // part)]
            total, answer, drafted = training_losses(
                network, working_copy(tensors, torch.bfloat16), batch, rows, depth
            )
            total.backward()
            optimiser.step(*rates(share, options.adam_rate, options.muon_rate))
            state.step_done(longest=0.995)
            progress.seconds += time.perf_counter() - began
            tokens += batch.ids.numel()
            printed_steps += 1
            drafted_steps += depth > 0
            for i, value in enumerate((total, answer, drafted)):
                sums[i] += float(value.detach())
            if progress.seconds - last_print >= options.print_every:
                speed = tokens / (progress.seconds - last_print)
                left = (budget - progress.seconds) / 60
                print(
                    f"step {progress.step} loss {sums[0] / printed_steps:.3f} "
                    f"answer {sums[1] / printed_steps:.3f} "
                    f"mtp {sums[2] / max(1, drafted_steps):.3f} "
                    f"tok/s {speed:.0f} elapsed {progress.seconds / 60:.1f} min "
                    f"eta {left:.1f} min",
                    flush=True,
                )
                last_print, sums = progress.seconds, [0.0] * 3
                tokens = printed_steps = drafted_steps = 0
        progress.pool += 1
        if progress.seconds - last_save >= 180 or progress.seconds >= budget:
            state.save(work / CHECKPOINT)
            last_save = progress.seconds
        if progress.seconds - last_probe >= 300 or progress.seconds >= budget:
            figures = held_out_figures(judge, working_copy(state.average, torch.bfloat16), probes)
            print(
                f"held out: loss {figures.loss:.3f} begun {figures.begun_pct:.1f} % "
                f"exact {figures.exact_pct:.1f} % "
                f"tokens {figures.token_pct:.1f} % tokens/round {figures.tokens_per_round:.2f}",
                flush=True,
            )
            last_probe = progress.seconds


def main() -> None:
    """Parses the command line, trains unless told only to export, and writes the model folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--out", type=Path, help="the BF16 model folder (default: WORK/bf16)")
    parser.add_argument("--corpus", type=Path, default=ROOT / "assets" / "demo-corpus")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--probes", type=int, default=256)
    parser.add_argument("--drop", type=float, default=0.05)
    parser.add_argument("--adam-rate", type=float, default=3e-3)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--cut", type=float, default=0.8, help="share of shortened answers")
    parser.add_argument("--draft-part", type=int, default=4, help="drafts train on 1/N of the rows")
    parser.add_argument("--draft-every", type=int, default=1, help="drafts train each N steps")
    parser.add_argument("--print-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--export", action="store_true", help="only write the model folder")
    options = parser.parse_args()
    shape = Shape()
    entries, dropped = read_corpus(options.corpus, options.seed)
    print(f"{len(entries)} entries, {dropped} repeated phrasings left out", flush=True)
    if not options.export:
        train(options, shape, entries)
    export(options.work, options.out or options.work / "bf16", shape, len(entries))


if __name__ == "__main__":
    main()
