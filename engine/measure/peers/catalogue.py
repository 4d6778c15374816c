# SPDX-License-Identifier: MIT OR Apache-2.0
"""The other engines a bench can run beside this one, and what each needs to be there."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from engine.errors import UsageError


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """One peer in one weight format; `module` runs in its own process."""

    name: str  # as asked for, "llama.cpp"
    variant: str  # "Q4_0"
    module: str
    requires: tuple[str, ...]  # importable packages
    install: str
    repacks: bool = False  # weights for this processor, unless told not to

    @property
    def label(self) -> str:
        """What the report's rows call it."""
        return f"{self.name} {self.variant}"

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are not installed."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)


@dataclass(frozen=True, slots=True)
class _Kind:
    module: str
    variants: tuple[str, ...]
    default: tuple[str, ...]
    requires: tuple[str, ...]
    install: str
    repacks: bool = False


_KINDS = {
    "llama.cpp": _Kind(
        "engine.measure.peers.llama_cpp",
        ("Q4_0", "NVFP4", "Q8_0", "BF16"),
        ("Q4_0", "NVFP4"),
        ("llama_cpp", "gguf"),
        "pip install llama-cpp-python gguf",
        repacks=True,
    ),
    "transformers": _Kind(
        "engine.measure.peers.transformers",
        ("BF16", "INT4"),
        ("BF16",),
        ("transformers",),
        "pip install transformers",
    ),
}


def peer_choices(names: tuple[str, ...]) -> list[PeerChoice]:
    """The peers for NAME (its usual formats) and NAME:FORMAT entries, in order and without repetition.

    Raises:
        UsageError: an unknown peer or format; lists what there is.
    """
    chosen: dict[str, PeerChoice] = {}
    for text in names:
        name, _, variant = text.strip().partition(":")
        kind = _KINDS.get(name.lower())
        variants = (variant.upper(),) if variant else kind.default if kind else ()
        if kind is None or not set(variants) <= set(kind.variants):
            known = [f"{name}[:{'|'.join(kind.variants)}]" for name, kind in _KINDS.items()]
            raise UsageError(
                f"There is no peer {text!r}.", next_step=f"Use any of {', '.join(known)}."
            )
        for each in variants:
            choice = PeerChoice(
                name.lower(), each, kind.module, kind.requires, kind.install, kind.repacks
            )
            chosen.setdefault(choice.label, choice)
    return list(chosen.values())
