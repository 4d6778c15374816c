# SPDX-License-Identifier: MIT OR Apache-2.0
"""Renders a conversation with the checkpoint's own chat template.

What people wrote is kept apart from the template's markup: the template sees a private word in the place of
every text, and the real text takes its place after rendering, marked as plain text. White space around a text
is left in sight of the template, so that its own trimming applies.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from engine.api import Message
from engine.errors import CheckpointError, PromptError
from engine.load.files import read_json_object, read_text
from engine.load.tokenizer import Segment, Tokenizer, clean_text
from engine.numbers import grouped

FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
ROLES = ("system", "user", "assistant", "tool")
_RANGE_ITEMS = 1_000_000
_MARKUP_CHARACTERS = 4_000_000
_STRING_CHARACTERS = 4_000_000
_AGAIN = "Use the chat_template.jinja that was published with this model."
_CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt ready to run; `opens_thinking` says that it ends inside a thinking part."""

    token_ids: tuple[int, ...]
    opens_thinking: bool


class ChatTemplate:
    """A compiled chat template.

    `has_thinking_switch`: enable_thinking changes the prompt. `thinks_by_default`: what happens when the
    switch is left alone.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, tokens: Mapping[str, str] | None = None
    ) -> None:
        """Compile `source`; `tokens` are names such as eos_token that a template may use.

        Raises:
            CheckpointError: a syntax error, or a template that fails on a plain question.
        """
        self._tokenizer = tokenizer
        self._tokens = dict(tokens or {})
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise _broken(f"does not parse{where}: {error}") from error
        try:
            left_alone, on, off = (self._probe(thinking) for thinking in (None, True, False))
        except PromptError as error:
            raise _broken(f"refuses a plain question: {error.cause}") from error
        self.has_thinking_switch = on != off
        self.thinks_by_default = left_alone == on if on != off else _opens_thinking(left_alone)

    @staticmethod
    def read(folder: Path, tokenizer: Tokenizer) -> tuple[ChatTemplate, tuple[str, ...]]:
        """(template, notices) of a model folder: chat_template.jinja, then tokenizer_config.json.

        Without either, plain ChatML is used when the tokenizer has its two tokens.
        """
        settings = read_json_object(folder, CONFIG_FILE) or {}
        tokens = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _token_text(settings.get(name))) is not None
        }
        source = read_text(folder, FILE)
        if source is None:
            source = _listed_template(settings.get("chat_template"))
        if source is not None:
            return ChatTemplate(source, tokenizer, tokens), ()
        if tokenizer.token_id("<|im_start|>") is None or tokenizer.token_id("<|im_end|>") is None:
            raise CheckpointError(
                f"No chat template: {FILE} is missing and {CONFIG_FILE} has none.",
                next_step=f"Download {FILE} of this model into the folder.",
            )
        notice = f"{FILE} is missing; conversations are written as plain ChatML."
        return ChatTemplate(_CHATML, tokenizer, tokens), (notice,)

    def render(
        self, messages: Sequence[Message], *, thinking: bool | None = None
    ) -> RenderedPrompt:
        """The prompt that asks for the next answer of a conversation.

        Raises:
            PromptError: an unknown role, or a conversation that the template refuses.
            CheckpointError: the template fails.
        """
        segments = self.segments(messages, thinking=thinking)
        markup = "".join(segment.text for segment in segments if segment.markup)
        token_ids = tuple(self._tokenizer.encode_prompt(segments))
        return RenderedPrompt(token_ids, _opens_thinking(markup))

    def segments(
        self, messages: Sequence[Message], *, thinking: bool | None = None
    ) -> list[Segment]:
        """The rendered prompt as markup and plain text; raises as `render` does."""
        # Digits and lower-case letters survive trimming, splitting and JSON, but not upper-casing.
        stem = "q" + secrets.token_hex(16) + "x"
        texts: list[str] = []

        def hidden(text: str) -> str:
            text = clean_text(text)
            core = text.strip()
            if not core:
                return text
            before, after = text.split(core, 1) if core != text else ("", "")
            texts.append(core)
            return f"{before}{stem}{len(texts) - 1}z{after}"

        turns = []
        for message in messages:
            if message.role not in ROLES:
                raise PromptError(
                    f"The role {message.role!r} is not known; {', '.join(ROLES)} are.",
                    next_step="Correct the role of this message.",
                )
            turn = {"role": message.role, "content": hidden(message.content)}
            if message.reasoning:
                turn["reasoning_content"] = hidden(message.reasoning)
            turns.append(turn)
        rendered = self._run(turns, thinking)
        segments = []
        for number, piece in enumerate(re.split(f"{stem}([0-9]+)z", rendered)):
            plain = number % 2 == 1
            if not plain and stem[:12] in piece.lower():
                raise _broken("changes the text of a message")
            segments.append(Segment(texts[int(piece)] if plain else piece, markup=not plain))
        return [segment for segment in segments if segment.text]

    def _probe(self, thinking: bool | None) -> str:
        return self._run([{"role": "user", "content": "question"}], thinking)

    def _run(self, messages: list[dict[str, str]], thinking: bool | None) -> str:
        names: dict[str, Any] = {**self._tokens, "messages": messages, "range": _Range()}
        names |= {"add_generation_prompt": True, "tools": None, "documents": None}
        if thinking is not None:
            names["enable_thinking"] = thinking
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(names):
                pieces.append(piece)
                length += len(piece)
                if length > _MARKUP_CHARACTERS:
                    raise _broken(f"writes more than {grouped(_MARKUP_CHARACTERS)} characters")
        except _TemplateRefusalError as error:
            raise PromptError(
                f"The model's chat template refuses this conversation: {error}",
                next_step="Change the conversation as the template asks.",
            ) from error
        except CheckpointError:
            raise
        except Exception as error:  # template code may raise anything
            raise _broken(f"fails: {type(error).__name__}: {error}") from error
        return "".join(pieces)


class _TemplateRefusalError(Exception):
    """What a template says through raise_exception."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with bounds on repeated strings and powers."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if abs(left) > 1_000_000 or abs(right) > 64:
                raise SecurityError("a power of numbers this large")
        elif isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple):
            sized, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(times, int) and len(sized) * times > _STRING_CHARACTERS:
                raise SecurityError("a repetition this long")
        return super().call_binop(context, operator, left, right)


class _Range:
    """range() whose items are bounded over a whole rendering, nested loops included."""

    def __init__(self) -> None:
        self._left = _RANGE_ITEMS

    def __call__(self, *bounds: int) -> range:
        items = range(*bounds)
        self._left -= len(items)
        if self._left < 0:
            raise OverflowError(f"its loops run over more than {grouped(_RANGE_ITEMS)} items")
        return items


class _GenerationBlock(Extension):
    """Lets {% generation %} ... {% endgeneration %}, a mark for training, pass unchanged."""

    tags = frozenset(["generation"])

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for tools and arguments; unlike Jinja's own filter it does not escape for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefusalError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _opens_thinking(markup: str) -> bool:
    return markup.rfind("<think>") > markup.rfind("</think>")


def _token_text(value: Any) -> str | None:
    """The text of a token, plain or as the object {"content": ...}."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _listed_template(value: Any) -> str | None:
    """tokenizer_config.json holds one template, or a list of named ones with a default."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and item.get("name") == "default":
                return _token_text({"content": item.get("template")})
    raise CheckpointError(
        f"{CONFIG_FILE}: chat_template must be a text or a list with one named default.",
        next_step=_AGAIN,
    )


def _broken(what: str) -> CheckpointError:
    return CheckpointError(f"The model's chat template {what}.", next_step=_AGAIN)
