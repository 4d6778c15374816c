# SPDX-License-Identifier: MIT OR Apache-2.0
"""Turns a stream of token ids into text, holding back the bytes of a character that is not complete."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

_UNKNOWN = "\ufffd".encode()


class Detokeniser:
    """Decodes one stream; make a new one for each answer.

    `token_bytes` holds the bytes of every id. The concatenation of all that `feed` and `flush` return equals
    decoding all bytes at once with broken sequences replaced by U+FFFD.
    """

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes; an id outside the vocabulary gives U+FFFD."""
        known = 0 <= token_id < len(self._token_bytes)
        return self._decoder.decode(self._token_bytes[token_id] if known else _UNKNOWN)

    def feed_all(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete."""
        return "".join(map(self.feed, token_ids))

    def flush(self) -> str:
        """What is left at the end of the stream; U+FFFD for bytes that never became a character."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable Latin-1 characters stand for their own byte; the other bytes, in order, for the characters
    from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return table
