# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tables of product sizes by weight shape, as `rondo tune` writes them.

A table is keyed "NxK": outputs of the stored product, pads included, by inputs. Sizes never change a bit, so a
table may be used, changed or dropped between any two rounds.

A file holds a table for each instruction level it was measured at, {"levels": {"avx2": {"tiles": {...},
"tiles_from": {...}}}}: which sizes are fast is a matter of the level, so those of another one are not used. A
plain "tiles" serves the level that its "tiles_from" names as "isa", or every level where it names none. Another
device's table may lie beside them: each reads its own part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.unique_keys import unique_keys
from kernels.cpu.blocking import Blocking
from kernels.cpu.product import TILE_ROWS, PackedLinear

LEVELS = "levels"
_LIMIT_BYTES = 1 << 22
_SIZES = tuple(each.name for each in fields(Blocking))
_SPLITS = ("split_k", "split", "wk", "kr", "il")  # other engines' names for parts of K


@dataclass(frozen=True, slots=True)
class TileTable:
    """Sizes by shape.

    digest: names the contents, so that recordings depend on them. unfit: why the file's sizes are not used
    here, empty where they are. measured_on: the processor behind them, empty where the file does not say.
    """

    sizes: Mapping[str, Blocking] = field(default_factory=dict)
    digest: str = ""
    unfit: str = ""
    measured_on: str = ""

    def of(self, packed: PackedLinear) -> Blocking | None:
        """The sizes for a weight, None where the table has none."""
        return self.sizes.get(shape_key(packed))


def shape_key(packed: PackedLinear) -> str:
    """The key of a weight: 16 times its tiles, by its inputs."""
    return f"{packed.tiles * TILE_ROWS}x{packed.k}"


def read_tiles(path: Path | None, level: str) -> TileTable:
    """The table that a JSON file has for an instruction level; an empty one without a path.

    Raises:
        UsageError: a file that cannot be read or is no such table, at whichever level; names the entry and the
            reason.
    """
    if path is None:
        return TileTable()
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _bad(path, f"it cannot be read: {reason}") from error
    if len(data) > _LIMIT_BYTES:
        raise _bad(path, f"it is larger than {_LIMIT_BYTES} bytes")
    try:
        content = json.loads(data, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
        raise _bad(path, f"it is not JSON: {error}") from error
    content = content if isinstance(content, dict) else {}
    if not {"tiles", LEVELS, "cuda"} & content.keys():
        raise _bad(path, 'it has no object "tiles"')
    levels = content.get(LEVELS, {})
    if not isinstance(levels, dict):
        raise _bad(path, f'"{LEVELS}" is not an object')
    tables = {name: _table(path, each, f"{LEVELS}.{name}.") for name, each in levels.items()}
    if "tiles" in content:
        plain = _table(path, content)
        if plain[0] or not levels:
            tables.setdefault(plain_level(content) or level, plain)
    digest = hashlib.sha256(data).hexdigest()[:12]
    if level in tables:
        sizes, measured_on = tables[level]
        return TileTable(sizes, digest, measured_on=measured_on)
    unfit = f"measured at {', '.join(sorted(tables))}, this is {level}" if tables else ""
    return TileTable({}, digest, unfit)


def plain_level(content: Mapping[str, Any]) -> str:
    """The level at which a file's plain "tiles" were measured, empty where it names none."""
    origin = content.get("tiles_from")
    level = origin.get("isa") if isinstance(origin, dict) else None
    return level if isinstance(level, str) else ""


def _table(path: Path, holder: Any, where: str = "") -> tuple[dict[str, Blocking], str]:
    """The sizes under "tiles" in an object, and the processor that its "tiles_from" names."""
    tiles = holder.get("tiles") if isinstance(holder, dict) else None
    if not isinstance(tiles, dict):
        raise _bad(path, f'it has no object "{where}tiles"')
    origin = holder.get("tiles_from")
    machine = origin.get("machine") if isinstance(origin, dict) else None
    model = machine.get("cpu_model") if isinstance(machine, dict) else None
    sizes = {key: _entry(path, key, entry) for key, entry in tiles.items()}
    return sizes, model if isinstance(model, str) else ""


def _entry(path: Path, key: str, entry: Any) -> Blocking:
    outputs, cross, inputs = key.partition("x")
    whole = cross and all(
        part.isascii() and part.isdigit() and len(part) < 10 for part in (outputs, inputs)
    )
    if not whole or int(outputs) % TILE_ROWS or not int(outputs) or not int(inputs):
        raise _bad(path, f"{key!r} is no shape NxK with N a multiple of {TILE_ROWS}")
    if not isinstance(entry, dict):
        raise _bad(path, f"entry {key} is not an object")
    for name in entry:
        if name in _SPLITS:
            raise _bad(path, f"entry {key}: {name} would change the order of the sum over K")
    values = {name: entry[name] for name in _SIZES if name in entry}
    wrong = next(
        (n for n, v in values.items() if isinstance(v, bool) or not isinstance(v, int)), ""
    )
    if wrong:
        raise _bad(path, f"entry {key}: {wrong} is not a whole number")
    if entry and not values:
        raise _bad(path, f"entry {key} names none of {', '.join(_SIZES)}")
    try:
        return Blocking(**values)
    except ValueError as error:
        raise _bad(path, f"entry {key}: {error}") from error


def _bad(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is not used as a tile table: {reason}.",
        kept="Nothing was changed.",
        next_step="`rondo tune` writes a table for this machine.",
    )
