# SPDX-License-Identifier: MIT OR Apache-2.0
"""Frozen records as plain JSON values and back, with every type checked on the way in."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def plain(value: Any) -> Any:
    """JSON values of a record: tuples as lists, a number that is not finite as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def record(kind: type[T], values: Any) -> T:
    """The record of a class from what `plain` made of it.

    Fields that are missing take their default; fields the class does not know are left out, so that a later
    version may add some. Raises ValueError that names the field of a wrong type.
    """
    return _read(kind, values, kind.__name__)


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, value, where)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_union(parts, value, where)
    if origin is tuple:
        return _read_tuple(parts, value, where)
    if origin is not None and issubclass(origin, Mapping):
        return dict(_typed(value, dict, where))
    if kind is float:
        try:
            return float(_typed(value, (int, float), where))
        except OverflowError:
            raise ValueError(f"{where} is too large") from None
    return _typed(value, kind, where)


def _read_record(kind: Any, value: Any, where: str) -> Any:
    values = _typed(value, dict, where)
    hints = typing.get_type_hints(kind)
    known = {}
    for field in dataclasses.fields(kind):
        if field.name in values:
            known[field.name] = _read(
                hints[field.name], values[field.name], f"{where}.{field.name}"
            )
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}.{field.name} is missing")
    return kind(**known)


def _read_union(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in parts:
        return None
    faults = []
    for part in parts:
        if part is type(None):
            continue
        try:
            return _read(part, value, where)
        except ValueError as error:
            faults.append(str(error))
    raise ValueError(faults[0])


def _read_tuple(parts: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _typed(value, list, where)
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_read(parts[0], item, f"{where}[{n}]") for n, item in enumerate(items))
    if len(items) != len(parts):
        raise ValueError(f"{where} has {len(items)} items, not {len(parts)}")
    return tuple(
        _read(part, item, f"{where}[{n}]")
        for n, (part, item) in enumerate(zip(parts, items, strict=True))
    )


def _typed(value: Any, kind: Any, where: str) -> Any:
    # True is an int to Python, and not to us.
    wrong = isinstance(value, bool) and kind is not bool
    if wrong or not isinstance(value, kind):
        raise ValueError(f"{where} is {type(value).__name__}")
    return value
