# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a verify pass costs by its rows, by chain or tree, and by the length of the context.

A price is the whole pass as the engine runs it: what it pays to commit the round before is in it, what it pays
to draft is not. File: {"1024": {"chain": {"1": ms, ...}, "tree": {...}}, ..., "_provenance": {...}}; the outer
keys are context classes, powers of two from 1,024.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.replace_file import replace_text
from engine.spec.tree import MAX_NODES
from engine.unique_keys import unique_keys

CHAIN, TREE = "chain", "tree"
KINDS = (CHAIN, TREE)
FIRST_CLASS_TOKENS = 1024
PROVENANCE_KEYS = (
    "machine",
    "isa",
    "threads",
    "backend",
    "kernels",
    "model",
    "weights",
    "commit",
    "date",
    "command",
    "trees",
    "rounds",
    "note",
)
_LAST_CLASS_TOKENS = 1 << 20
_BUCKET_TOKENS = 256  # one curve serves so many context lengths
_LIMIT_BYTES = 1 << 20
_LARGEST_MS = 1e7

Curve = tuple[float, ...]  # milliseconds by rows, 0 to MAX_NODES; entry 0 repeats entry 1


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Measured prices, ms by context class, kind and rows.

    `source` says in words where they come from. `notes` name rows that cost less than fewer rows do: noise,
    or a kernel with steps; they are used as they stand.
    """

    classes: Mapping[int, Mapping[str, Mapping[int, float]]]
    source: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _curves: dict[int, tuple[Curve, Curve]] = field(default_factory=dict, repr=False, compare=False)

    def verify_ms(self, kind: str, rows: int, context_tokens: int) -> float:
        """Price of a pass: linear in rows and in log2 of the context between what was measured, flat beyond."""
        chain, tree = self.curves(context_tokens)
        return (tree if kind == TREE else chain)[max(0, min(rows, MAX_NODES))]

    def curves(self, context_tokens: int) -> tuple[Curve, Curve]:
        """(chain, tree) prices of every row count at a context, the same for all of its 256 tokens."""
        bucket = context_tokens // _BUCKET_TOKENS
        found = self._curves.get(bucket)
        if found is None:
            at = (bucket + 0.5) * _BUCKET_TOKENS
            found = self._curves[bucket] = (self._curve(CHAIN, at), self._curve(TREE, at))
        return found

    def to_json(self) -> dict[str, Any]:
        """The file's content."""
        values: dict[str, Any] = {
            str(tokens): {
                kind: {str(rows): ms for rows, ms in kinds[kind].items()} for kind in KINDS
            }
            for tokens, kinds in self.classes.items()
        }
        if self.provenance:
            values["_provenance"] = dict(self.provenance)
        return values

    def _curve(self, kind: str, context_tokens: float) -> Curve:
        classes = sorted(self.classes)
        at = math.log2(context_tokens)
        logs = [math.log2(tokens) for tokens in classes]
        tables = [self.classes[tokens][kind] for tokens in classes]
        prices = []
        for rows in range(1, MAX_NODES + 1):
            of_class = [_between(list(t), list(t.values()), rows) for t in tables]
            prices.append(_between(logs, of_class, at))
        return (prices[0], *prices)


def parse_prices(text: str, *, name: str, source: str) -> PriceTable:
    """The table in the JSON text of a file called `name`.

    Raises:
        UsageError: not JSON, another shape, an unknown key, or a price that is no positive number.
    """
    try:
        values = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _refused(name, f"not a table in JSON ({error})") from None
    if not isinstance(values, dict):
        raise _refused(name, "the outermost value is not an object")
    provenance = values.pop("_provenance", {})
    _check_provenance(name, provenance)
    if not values:
        raise _refused(name, "no context class is in it")
    classes: dict[int, dict[str, dict[int, float]]] = {}
    for key, kinds in values.items():
        tokens = _class_tokens(name, key)
        classes[tokens] = _kinds(name, key, kinds)
    ordered = {tokens: classes[tokens] for tokens in sorted(classes)}
    return PriceTable(ordered, source, provenance, tuple(_dips(ordered)))


def read_prices(path: Path, *, source: str) -> PriceTable:
    """The table of a file; UsageError when it cannot be read or is not one."""
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise _refused(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > _LIMIT_BYTES:
        raise _refused(str(path), f"larger than {_LIMIT_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(str(path), f"not UTF-8 text (byte {error.start})") from None
    return parse_prices(text, name=str(path), source=source)


def write_prices(table: PriceTable, path: Path) -> None:
    """Write a table in place of what `path` holds, all of it or nothing; makes the folder.

    Raises:
        UsageError: the folder or the file cannot be written.
    """
    text = json.dumps(table.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        replace_text(path, text)
    except OSError as error:
        raise UsageError(
            f"The price table {path} cannot be written: {error.strerror}.",
            kept="A table that stood there is as it was.",
            next_step="Name another file with --out.",
        ) from error


def _between(knots: list[float], values: list[float], at: float) -> float:
    """Piecewise linear through (knots, values), flat outside."""
    above = bisect_left(knots, at)
    if above == 0:
        return values[0]
    if above == len(knots):
        return values[-1]
    share = (at - knots[above - 1]) / (knots[above] - knots[above - 1])
    return values[above - 1] + share * (values[above] - values[above - 1])


def _kinds(name: str, key: str, kinds: Any) -> dict[str, dict[int, float]]:
    if not isinstance(kinds, dict) or set(kinds) != set(KINDS):
        raise _refused(name, f"class {key} must hold exactly {' and '.join(KINDS)}")
    return {kind: _rows(name, f"{key}, {kind}", kinds[kind]) for kind in KINDS}


def _rows(name: str, where: str, table: Any) -> dict[int, float]:
    if not isinstance(table, dict) or not table:
        raise _refused(name, f"{where}: not an object of rows and milliseconds")
    prices = {}
    for key, ms in table.items():
        rows = int(key) if key.isascii() and key.isdigit() and len(key) < 4 else 0
        if not 1 <= rows <= MAX_NODES or key != str(rows):
            raise _refused(name, f"{where}: {key[:20]!r} is no row count from 1 to {MAX_NODES}")
        if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 < ms <= _LARGEST_MS:
            raise _refused(
                name, f"{where}, {rows} rows: {str(ms)[:40]} is no positive number of ms"
            )
        prices[rows] = float(ms)
    return dict(sorted(prices.items()))


def _class_tokens(name: str, key: str) -> int:
    tokens = int(key) if key.isascii() and key.isdigit() and len(key) < 9 else 0
    if (
        not FIRST_CLASS_TOKENS <= tokens <= _LAST_CLASS_TOKENS
        or tokens & (tokens - 1)
        or key != str(tokens)
    ):
        raise _refused(
            name,
            f"{key[:40]!r} is no context class (a power of two from {FIRST_CLASS_TOKENS} to "
            f"{_LAST_CLASS_TOKENS})",
        )
    return tokens


def _check_provenance(name: str, provenance: Any) -> None:
    if not isinstance(provenance, dict):
        raise _refused(name, "_provenance is not an object")
    for key, value in provenance.items():
        if key not in PROVENANCE_KEYS:
            raise _refused(name, f"_provenance has the unknown key {key[:40]!r}")
        if not isinstance(value, str | int | float | None):
            raise _refused(name, f"_provenance, {key}: not a text or a number")


def _dips(classes: Mapping[int, Mapping[str, Mapping[int, float]]]) -> list[str]:
    found = []
    for tokens, kinds in classes.items():
        for kind in KINDS:
            prices = list(kinds[kind].items())
            for (fewer, less), (more, ms) in zip(prices[:-1], prices[1:], strict=True):
                if ms < less:
                    found.append(f"{tokens} {kind}: {more} rows cost less than {fewer}")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no price")


def _refused(name: str, reason: str) -> UsageError:
    return UsageError(
        f"{name}: {reason}.",
        kept="No price was taken from it.",
        next_step="Write a table with `rondo bench --suite verify --write-tables`.",
    )
