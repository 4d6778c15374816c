# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stop tokens and sampling defaults, as generation_config.json gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.load.files import read_json_object
from engine.load.tokenizer import Tokenizer

FILE = "generation_config.json"
_TURN_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling as the model's makers recommend it; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


def read_generation(
    folder: Path, model_config: Mapping[str, Any], tokenizer: Tokenizer
) -> tuple[GenerationDefaults, tuple[int, ...], tuple[str, ...]]:
    """(defaults, stop ids, notices) of a model folder.

    config.json knows only the end of a document, not the end of a chat turn, so its eos counts only when
    generation_config.json is missing; the turn end of the tokenizer is then added.

    Raises:
        CheckpointError: a value of the wrong kind or an id outside the vocabulary.
    """
    values = read_json_object(folder, FILE)
    notices: list[str] = []
    if values is None or values.get("eos_token_id") is None:
        text_part = model_config.get("text_config") or {}
        eos = text_part.get("eos_token_id", model_config.get("eos_token_id"))
        stops = list(_ids(eos, "config.json", tokenizer)) if eos is not None else []
        turn_end = tokenizer.token_id(_TURN_END)
        if turn_end is not None and turn_end not in stops:
            stops.insert(0, turn_end)
        why = "is missing" if values is None else "has no eos_token_id"
        stated = ", ".join(map(str, stops)) or "none: answers end only at their length limit"
        notices.append(
            f"{FILE} {why}; stop tokens are taken from config.json and the tokenizer: {stated}."
        )
    else:
        stops = list(_ids(values["eos_token_id"], FILE, tokenizer))
    return _defaults(values or {}), tuple(stops), tuple(notices)


def _ids(value: Any, file: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    for item in ids:
        if type(item) is not int or not 0 <= item < tokenizer.vocab_size:
            raise CheckpointError(
                f"{file}: eos_token_id must hold ids from 0 to {tokenizer.vocab_size - 1}, "
                f"but holds {item!r}.",
                next_step=f"Use the {file} that was published with this model.",
            )
    return tuple(dict.fromkeys(ids))


def _defaults(values: Mapping[str, Any]) -> GenerationDefaults:
    samples = values.get("do_sample", False)
    if not isinstance(samples, bool):
        raise _wrong("do_sample", "true or false", samples)
    if not samples:
        return GenerationDefaults()
    return GenerationDefaults(
        temperature=_number(values, "temperature", 1.0, 100.0),
        top_p=_number(values, "top_p", 1.0, 1.0),
        top_k=int(_number(values, "top_k", 0, 1e7)),
        min_p=_number(values, "min_p", 0.0, 1.0),
    )


def _number(values: Mapping[str, Any], name: str, default: float, largest: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "a number", value)
    if not (math.isfinite(value) and 0 <= value <= largest):
        raise _wrong(name, f"a number from 0 to {largest:g}", value)
    return float(value)


def _wrong(name: str, expected: str, got: Any) -> CheckpointError:
    return CheckpointError(
        f"{FILE}: {name} must be {expected}, but is {got!r}.",
        next_step=f"Use the {FILE} that was published with this model.",
    )
