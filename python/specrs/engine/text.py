"""Text from tokens as they come: what can be shown already, and whether a stop string is complete."""

from __future__ import annotations

from typing import Any


class TextStream:
    """Decodes an output token by token.

    A token may end in the middle of a character; such text is held back until it is whole. The pieces joined equal
    the tokenizer's decoding of all tokens.

    Parameters
    ----------
    tokenizer : object
        A transformers tokenizer.
    stop_strings : tuple of str
        Texts to watch for.
    """

    def __init__(self, tokenizer: Any, stop_strings: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = stop_strings
        # A stop string must end in the newest piece, so one character less than the longest is remembered.
        self._remembered = max((len(text) for text in stop_strings), default=1) - 1
        self._ids: list[int] = []
        # Text up to `_shown` tokens is out; decoding starts at `_context`, early enough for spaces to come out right.
        self._context = 0
        self._shown = 0
        self._tail = ""
        self._window = ""
        self._newest = 0

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def push(self, token: int) -> str:
        """Add a token and return the text that became whole by it."""
        self._ids.append(token)
        self._window = ""
        shown = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        if len(text) <= len(shown) or text.endswith("\ufffd"):
            return ""
        piece = text[len(shown) :]
        self._context, self._shown = self._shown, len(self._ids)
        self._window = self._tail + piece
        self._newest = len(piece)
        self._tail = self._window[-self._remembered :] if self._remembered else ""
        return piece

    def completed_stop(self) -> str | None:
        """Return the stop string that the text of the last push completed, or None."""
        before = len(self._window) - self._newest
        for text in self._stop_strings:
            # What is remembered may hold a whole shorter stop string; only one that ends in the newest piece counts.
            if self._window.find(text, max(0, before - len(text) + 1)) >= 0:
                return text
        return None

    def flush(self) -> str:
        """Return the text still held back (an unfinished character shows as a replacement character)."""
        shown = self._decode(self._ids[self._context : self._shown])
        text = self._decode(self._ids[self._context :])
        self._context = self._shown = len(self._ids)
        return text[len(shown) :]
