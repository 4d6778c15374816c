# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the lookup drafters of a loaded model share: the stores they search, and what they learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import UsageError
from engine.knobs import KnobSet
from engine.spec.corpus import open_corpus, tokenizer_sha256
from engine.spec.lookup import Continuations
from engine.spec.lookup_rate import LookupRate
from engine.spec.suffix_store import StoreOptions, SuffixStore

READ_ONLY = ":ro"


@dataclass(frozen=True, slots=True)
class Memory:
    """What lookup searches besides the text, and what it learned; lives as long as the loaded model.

    stores: the corpus and the suffix store, by name. suffix_store: where finished answers go, None where off.
    counts: what was drafted, by the names of the switches' counters.
    """

    stores: dict[str, Continuations] = field(default_factory=dict)
    suffix_store: SuffixStore | None = None
    rate: LookupRate = field(default_factory=LookupRate)
    counts: Counter[str] = field(default_factory=Counter)

    def begin(self, *, remember: bool) -> None:
        """A request begins; whether it may use the suffix store. A measurement must not."""
        if self.suffix_store is not None:
            self.suffix_store.in_use = remember

    def finish(self, answer: Sequence[int]) -> None:
        """The request ended: its answer goes to the suffix store, where there is one that it may use."""
        if self.suffix_store is not None:
            self.suffix_store.finish(answer)


def open_memory(
    knobs: KnobSet,
    *,
    model: Path,
    vocab_size: int,
    remember: bool,
    on_trouble: Callable[[str], None] | None = None,
) -> Memory:
    """Open what QWEN38_CORPUS, QWEN38_SUFFIX_STORE and QWEN38_STAIR_RHO name; nothing is read without a name.

    `remember` off leaves the suffix store closed, whatever the switch says: for measurements. Raises
    CorpusError or UsageError for what cannot be used as it stands.
    """
    corpus = knobs.path("CORPUS")
    named = parse_store(knobs.text("SUFFIX_STORE")) if remember else None
    stores: dict[str, Continuations] = {}
    suffix_store = None
    if corpus or named:
        tokenizer = tokenizer_sha256(model)
        if corpus:
            stores["the corpus"] = open_corpus(
                corpus, tokenizer_sha256=tokenizer, vocab_size=vocab_size
            )
        if named:
            path, read_only = named
            suffix_store = stores["the store"] = SuffixStore(
                path,
                tokenizer_sha256=tokenizer,
                vocab_size=vocab_size,
                options=StoreOptions(read_only=read_only),
                on_trouble=on_trouble,
            )
    return Memory(stores, suffix_store, lookup_rate(knobs))


def lookup_rate(knobs: KnobSet) -> LookupRate:
    """New rates on top of the prior that QWEN38_STAIR_RHO names, if any; UsageError for one that is none."""
    prior = knobs.path("STAIR_RHO")
    return LookupRate.read(prior) if prior else LookupRate()


def parse_store(value: str) -> tuple[Path, bool] | None:
    """(folder, whether it is only read) of a QWEN38_SUFFIX_STORE value; None for the empty one."""
    if not value:
        return None
    path = value.removesuffix(READ_ONLY)
    if not path:
        raise UsageError(
            f"QWEN38_SUFFIX_STORE={value!r} names no folder.",
            next_step="Use a folder, a folder with :ro behind it to only read it, or nothing.",
        )
    return Path(path).expanduser(), path != value
