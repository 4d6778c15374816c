# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a model is asked, as token ids."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api import GenerateRequest
from engine.errors import PromptError, UsageError
from engine.load.checkpoint import Checkpoint, Inspected
from engine.model.config import ModelConfig
from engine.numbers import grouped
from engine.prompt_room import fitted


class PromptIds:
    """Requests to one model, loaded or only looked at, as token ids that it takes.

    capacity: positions that its context holds.
    """

    def __init__(self, model: Checkpoint | Inspected, config: ModelConfig, capacity: int) -> None:
        self._tokenizer = model.tokenizer
        self._template = model.template
        self._vocab_size = config.vocab_size
        self._capacity = capacity

    def fitted(self, request: GenerateRequest) -> tuple[list[int], bool, int]:
        """As `of`, cut to the context where the request allows that; the last: tokens that were cut.

        Raises also LongPromptError for a prompt that does not fit.
        """
        ids, thinking = self.of(request)
        kept, dropped = fitted(
            ids, self._capacity, truncate=request.truncate, max_tokens=request.max_tokens
        )
        return kept, thinking, dropped

    def of(self, request: GenerateRequest) -> tuple[list[int], bool]:
        """The prompt's token ids and whether the answer starts inside a thinking part.

        Raises PromptError when there is no prompt or more than one, UsageError for a thinking choice that the
        chat template cannot follow.
        """
        given = [bool(request.messages), request.prompt is not None, bool(request.token_ids)]
        if sum(given) != 1:
            raise PromptError(
                "A request needs exactly one of messages, prompt and token ids.",
                next_step="Type a question first.",
            )
        if request.token_ids:
            return self._known(request.token_ids), False
        if request.prompt is not None:
            ids = self._tokenizer.encode_text(request.prompt)
            if not ids:
                raise PromptError("The prompt is empty.", next_step="Type a question first.")
            return ids, False
        if not request.messages[-1].content.strip():
            raise PromptError("The message is empty.", next_step="Type a question first.")
        if request.thinking is not None and not self._template.has_thinking_switch:
            raise UsageError(
                "The chat template of this model has no thinking switch, so thinking cannot be switched "
                f"{'on' if request.thinking else 'off'}.",
                next_step="Leave the thinking choice out, or open a model whose chat_template.jinja has one.",
            )
        rendered = self._template.render(request.messages, thinking=request.thinking)
        return list(rendered.token_ids), rendered.opens_thinking

    def checked(self, token_ids: Sequence[int]) -> list[int]:
        """Ids given as such. Raises PromptError for none, one outside the vocabulary, or too many."""
        ids = self._known(token_ids)
        if len(ids) > self._capacity:
            raise PromptError(
                f"{grouped(len(ids))} tokens do not fit the context of {grouped(self._capacity)}."
            )
        return ids

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise PromptError("The prompt is empty.", next_step="Give at least one token.")
        bad = next((token for token in ids if not 0 <= token < self._vocab_size), None)
        if bad is not None:
            raise PromptError(
                f"Token id {grouped(bad)} is outside the vocabulary of {grouped(self._vocab_size)}.",
                next_step="Use ids of this model's tokenizer.",
            )
        return ids
