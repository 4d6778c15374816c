# SPDX-License-Identifier: MIT OR Apache-2.0
"""The two tables of switches in `ops/guides/measured.md`: what each compares, and on which rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.api import CompareRequest, KnobRow
from engine.errors import UsageError
from engine.knobs import PREFIX

NEAR_TIE, PROPOSES = "near-tie", "proposes-only"

# Plain rounds need VERIFY_ROWS=1: with MTP off, the block drafter beside the demo model would draft.
# A candidate that is served already is dropped: some are for a router that is served, some for one that is not.
ALTERNATIVES = (
    "LEN_SWITCH=0,MTP_DEPTH=3", "LEN_SWITCH=0,MTP_DEPTH=0,LOOKUP=0,VERIFY_ROWS=1",
    "LEN_SWITCH=1,LOOKUP=1,MTP_DEPTH=4", "LOOKUP=0", "LOOKUP=1", "MTP_DEPTH=1",
    "MTP_DEPTH=2", "MTP_DEPTH=3", "MTP_DEPTH=4", "MTP_TREE=2",
    "VERIFY_ROWS=2", "TREE_NODES=1", "CPU_THREADS=2", "COMMIT_IN_VERIFY=0,FUSED_COMMIT=0",
    "COMMIT_IN_VERIFY=0,RANKK=0", "GQA_FROM=1",
)  # fmt: skip
# Bools that are left out: those of the prompt alone, which a round does not show, and those named above.
ELSEWHERE = frozenset(
    {"FUSED_GDNPREFILL", "NVFP4_PREFILL_V2", "UT_INVERSE", "LEN_SWITCH", "LOOKUP", "STAIR_SKIP"}
)
# Those whose cost is in the kernels of a round.
SLICE = (
    "VERIFY_GRAPH=0", "COMMIT_IN_VERIFY=0", "FUSE_PROJ=0", "GDN_AB=0", "FUSED_ADDNORM=0", "FUSED_NORM=0",
    "FUSED_GDN=0", "FUSED_GDNPRE=0", "FUSED_ATTN_PREP=0", "DECODE_ATTN=0", "KV_FP8=1", "CPU_THREADS=2",
    "COMMIT_IN_VERIFY=0,RANKK=0",
)  # fmt: skip
# A text that says one sentence over and over: lookup foretells it whatever the weights are, so that both sides
# draft the same tokens in every round and accept all of them.
SENTENCE = "The memory sets the pace of every round."
_SAID = 3  # in the prompt, where the tokens behind any three were seen before


@dataclass(frozen=True, slots=True)
class Section:
    """One table. `changes` None: every switch that acts; `fixed` are put on both sides of what is no drafting.

    begin, end: marks in the guide. workload: in words, for the head of the table. repeats: answers of a side
    within a pair, as in `CompareRequest`.
    """

    heading: str
    begin: str
    end: str
    workload: str
    changes: tuple[str, ...] | None
    fixed: Mapping[str, str]
    repeats_a_sentence: bool = False
    repeats: int = 0

    def request(
        self, changes: str, bits: str, rows: Mapping[str, KnobRow], *, pairs: int, tokens: int
    ) -> CompareRequest:
        """The A/B of `changes`; with equal rounds on both sides, unless it is about drafting."""
        base = {} if bits == PROPOSES else self.fixed
        base = {PREFIX + name: value for name, value in base.items() if rows[name].available}
        text = " ".join([SENTENCE] * _SAID)
        # A word is a token or more, so this is long enough.
        reference = " ".join([SENTENCE] * (_SAID + tokens // len(SENTENCE.split())))
        return CompareRequest(
            base=base,
            candidate=base | {PREFIX + name: value for name, value in parsed(changes).items()},
            workload="prompt" if self.repeats_a_sentence else "mix",
            prompt=text if self.repeats_a_sentence else "",
            reference=reference if self.repeats_a_sentence else "",
            pairs=pairs,
            tokens=tokens,
            repeats=self.repeats,
            forced=self.repeats_a_sentence or bits == NEAR_TIE,
            label=changes,
        )


SECTIONS = {
    "demo": Section(
        "Switches on the demo model",
        "<!-- switches: begin -->",
        "<!-- switches: end -->",
        "on the four classes of prompts; what is no drafting with a chain of three tokens on both sides",
        None,
        {"LEN_SWITCH": "0", "MTP_DEPTH": "3"},
    ),
    "slice": Section(
        "Switches on a slice of Qwen3.8-27B",
        "<!-- switches on a slice: begin -->",
        "<!-- switches on a slice: end -->",
        "along one text, with three drafted tokens in a round, all accepted",
        SLICE,
        {"LEN_SWITCH": "0", "MTP_DEPTH": "0", "LOOKUP": "1", "TREE_NODES": "3"},
        repeats_a_sentence=True,
        repeats=1,  # a round is longer than a time slice: repeating finds none that nothing interrupts
    ),
}


def candidates(
    section: Section, rows: Mapping[str, KnobRow], only: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """(changes, what they do to the text) of the section, or of `only`; none that changes nothing.

    Raises:
        UsageError: a switch in `only` that there is not.
    """
    if only := tuple(only):
        listed = only
        for name in (name for changes in only for name in parsed(changes)):
            if name not in rows:
                raise UsageError(f"{name} is no switch.", next_step="`rondo knobs` lists them.")
    elif section.changes is not None:
        listed = section.changes
    else:
        listed = (
            *(
                f"{name}={'0' if row.value == '1' else '1'}"
                for name, row in rows.items()
                if row.kind == "bool" and name not in ELSEWHERE
            ),
            *ALTERNATIVES,
        )
    seen = set()
    for changes in listed:
        wanted = parsed(changes)
        if not all(name in rows and rows[name].available for name in wanted):
            continue
        bits = {rows[name].bits for name in wanted}
        worst = next((each for each in (NEAR_TIE, PROPOSES) if each in bits), "identical")
        fixed = {} if worst == PROPOSES else section.fixed
        left = frozenset(
            (name, value)
            for name, value in wanted.items()
            if fixed.get(name, rows[name].value) != value
        )
        if left and left not in seen:
            seen.add(left)
            yield changes, worst


def parsed(changes: str) -> dict[str, str]:
    """NAME=VALUE[,NAME=VALUE] as a mapping; UsageError where a part has no =."""
    values = {}
    for change in changes.split(","):
        name, equals, value = change.partition("=")
        if not (name and equals):
            raise UsageError(f"{change!r} is not NAME=VALUE.", next_step="Write LOOKUP=0.")
        values[name.strip().removeprefix(PREFIX)] = value.strip()
    return values
