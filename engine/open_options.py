# SPDX-License-Identifier: MIT OR Apache-2.0
"""How a model is to be opened, and what of that is refused before a weight is read."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api import GenerateRequest
from engine.errors import UsageError
from engine.hardware import MOST_THREADS
from engine.knobs import KnobSet
from engine.load.checkpoint import Inspected
from engine.model.choose import refuse_device
from engine.model.config import ModelConfig
from engine.numbers import grouped
from engine.prompt_ids import PromptIds

_DEFAULT_CONTEXT_TOKENS = 32768  # or the model's own, if smaller


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """`Engine.open`'s options of these names. Making one raises UsageError for a value out of range."""

    device: str = "auto"
    threads: int | None = None
    compute: str | None = None
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.compute not in (None, "float32"):
            raise UsageError(
                f"compute={self.compute!r} is not known.", next_step='Use "float32" or None.'
            )
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise UsageError(
                f"{self.threads} threads are not accepted.", next_step=f"Use 1 to {MOST_THREADS}."
            )
        if self.context_tokens is not None and self.context_tokens < 2:
            raise UsageError(
                f"A context of {self.context_tokens} holds no answer.", next_step="Use 2 or more."
            )

    @property
    def float32(self) -> bool:
        """Whether the reference operations run in float32."""
        return self.compute == "float32"

    @property
    def wanted_tokens(self) -> int:
        """The context to make room for in a model that can be as long."""
        return self.context_tokens or _DEFAULT_CONTEXT_TOKENS

    def capacity(self, config: ModelConfig) -> int:
        """Tokens that the context of this model will hold."""
        return min(self.wanted_tokens, config.context_tokens)

    def context_notice(self, config: ModelConfig) -> tuple[str, ...]:
        """The notice of a context that was asked for and is longer than the model's own."""
        asked, held = self.context_tokens, self.capacity(config)
        if asked is None or asked <= held:
            return ()
        return (
            f"The context holds {grouped(held)} tokens, the model's limit; {grouped(asked)} were asked for.",
        )

    def refuse(self, found: Inspected, knobs: KnobSet, first: GenerateRequest | None) -> None:
        """Raise the RondoError for what cannot be: this model as asked for here, or `first` asked of it."""
        config = found.plan.config
        refuse_device(config, device=self.device, knobs=knobs, float32=self.float32)
        if first is not None:
            PromptIds(found, config, self.capacity(config)).fitted(first)
