# SPDX-License-Identifier: MIT OR Apache-2.0
"""The guide to the switches as Markdown, made from the registry alone."""

from __future__ import annotations

from engine.knob_kinds import Knob
from engine.knob_left_out import LEFT_OUT
from engine.knob_rows import rules_of, served_values
from engine.knob_table import GROUPS
from engine.knobs import KNOBS, PREFIX

_TOP = """# Switches

This page is made by `python -m engine knobs --markdown`; a test keeps it in step with the registry.

A value comes from the default, then the profile (`ops/serve.env`), then the environment, then `--knob` and the
panel. An unknown name or a value that does not parse is an error. A relative path is sought in the present
folder, then in the product's own; a profile's beside it, then in the product's own, then in the present one.

- **bits**: what a flip does to the text. *identical*: every bit stays. *near-tie*: the same mathematics with
  another rounding, so a token may differ where two were almost equally likely. Rows that go through
  PyTorch may depend on the rows beside them, so that speculative and plain text may part at such a place, too.
  *other-numbers*: weights, inputs or keys are rounded further, so that a token may differ where two were close;
  drafts still change no text. *proposes-only*: what is drafted and how fast; greedy text stays.
- **takes effect**: *live*: at the next round. *recapture*: at the next round, with new recordings. *reload*:
  when a model is loaded.
- **proof**: the counter that moves when the switch is engaged.
"""


def guide() -> str:
    """The whole page."""
    served = served_values()
    parts = [_TOP]
    for group, title in GROUPS.items():
        rows = [knob for knob in KNOBS if knob.group == group]
        acting = [knob for knob in rows if "native" in knob.backends]
        idle = [knob for knob in rows if "native" not in knob.backends]
        parts.append(f"## {title}\n")
        if acting:
            parts.append(
                "| switch | accepts | default | served | effect | bits | takes effect | proof |\n"
                "|-|-|-|-|-|-|-|-|\n" + "".join(_acting(knob, served) for knob in acting)
            )
        if idle:
            parts.append("Shown, but without effect on the CPU:\n")
            parts.append(
                "| switch | default | effect | why not here |\n|-|-|-|-|\n"
                + "".join(
                    f"| {_name(k)} | {_value(k.default)} | {k.effect} | {k.why} |\n" for k in idle
                )
            )
    parts.append("## Deliberately left out\n")
    parts.append(
        "Switches of related engines that Rondo does not declare; setting one is an error.\n"
    )
    parts.append(
        "| switch | why |\n|-|-|\n"
        + "".join(f"| `{PREFIX}{name}` | {why} |\n" for name, why in LEFT_OUT.items())
    )
    return "\n".join(parts)


def _acting(knob: Knob, served: dict[str, str]) -> str:
    effect = " ".join((knob.effect, *(f"({rule})" for rule in rules_of(knob))))
    if knob.needs:
        effect += f" Needs {' and '.join(knob.needs)}."
    value = served.get(PREFIX + knob.name, knob.default)
    cells = (
        _name(knob),
        knob.accepted(),
        _value(knob.default),
        _value(value),
        effect,
        knob.bits,
        knob.flip,
        knob.engaged,
    )
    return "| " + " | ".join(cells) + " |\n"


def _name(knob: Knob) -> str:
    return f"`{PREFIX}{knob.name}`"


def _value(text: str) -> str:
    return f"`{text}`" if text else "(empty)"
