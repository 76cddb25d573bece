"""llama.cpp's own tokenizer and the model's chat template, as much of it as generation asks for."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Longest text of one token that is looked up at the first try, in bytes.
PIECE_BYTES = 64


class LlamaTokenizer:
    """Text to ids and back, with the calls that generation makes of a transformers tokenizer.

    Parameters
    ----------
    library : module
        ``llama_cpp``.
    model : pointer
    keep : object
        Keeps the model alive.
    """

    def __init__(self, library: Any, model: Any, keep: object) -> None:
        self._library, self._keep = library, keep
        self._vocabulary = library.llama_model_get_vocab(model)
        self.vocab_size = int(library.llama_vocab_n_tokens(self._vocabulary))
        template = library.llama_model_chat_template(model, None)
        #: The model's own chat template, or None.
        self.chat_template: str | None = None if template is None else template.decode("utf-8")
        self._pieces: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``; texts of special tokens become these."""
        data = text.encode("utf-8")
        room = len(data) + 8
        ids = (self._library.llama_token * room)()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, room, add_special_tokens, True)
        if count < 0:
            raise InvalidInputError(f"llama.cpp cannot tokenize a text of {len(data)} bytes into {room} ids")
        return list(ids[:count])

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Return the text of ``ids``; bytes that are no whole character show as replacement characters.

        ``clean_up_tokenization_spaces`` is part of the interface; llama.cpp never cleans up.
        """
        whole = b"".join(b"" if skip_special_tokens and self.is_special(i) else self.piece(i) for i in ids)
        return whole.decode("utf-8", errors="replace")

    def piece(self, token: int) -> bytes:
        """Return the text of one id, special or not, as bytes."""
        found = self._pieces.get(token)
        if found is None:
            if not 0 <= token < self.vocab_size:
                raise InvalidInputError(f"id {token} is not an id of the model, which has {self.vocab_size}")
            found = self._pieces[token] = self._piece(token)
        return found

    def _piece(self, token: int, room: int = PIECE_BYTES) -> bytes:
        buffer = ctypes.create_string_buffer(room)
        count = self._library.llama_token_to_piece(self._vocabulary, token, buffer, room, 0, True)
        return self._piece(token, -count) if count < 0 else buffer.raw[:count]

    def is_special(self, token: int) -> bool:
        """Return whether an id steers the model rather than being text."""
        return bool(self._library.llama_vocab_is_control(self._vocabulary, token))

    @functools.cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end a text by llama.cpp's own judgement, the usual one first."""
        is_end = self._library.llama_vocab_is_eog
        found = [token for token in range(self.vocab_size) if is_end(self._vocabulary, token)]
        usual = int(self._library.llama_vocab_eos(self._vocabulary))
        return tuple(sorted(found, key=lambda token: token != usual))

    def get_vocab(self) -> dict[str, int]:
        """Return the texts of all ids as the model's file writes them."""
        text = self._library.llama_vocab_get_text
        return {
            text(self._vocabulary, token).decode("utf-8", errors="replace"): token for token in range(self.vocab_size)
        }

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True, tokenize: bool = False
    ) -> str:
        """Return the messages as one text in the model's own form. Ids are made by :meth:`encode`."""
        if tokenize:
            raise InvalidInputError("tokenize=True is not offered; pass the text to encode(add_special_tokens=False)")
        if self.chat_template is None:
            raise InvalidInputError("the model has no chat template; pass text instead of messages")
        return str(
            self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self._text_of(self._library.llama_vocab_bos(self._vocabulary)),
                eos_token=self._text_of(self._library.llama_vocab_eos(self._vocabulary)),
                raise_exception=_refuse,
            )
        )

    def _text_of(self, token: int) -> str:
        return "" if token < 0 else self.piece(token).decode("utf-8", errors="replace")

    @functools.cached_property
    def _template(self) -> Any:
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise MissingExtraError("chat templates need jinja2; install it with: pip install jinja2") from error
        # A template comes with the model's file: it runs in jinja's sandbox.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        return environment.from_string(self.chat_template or "")


def _refuse(message: str) -> None:
    """Raise what a template says about messages that it does not take."""
    raise InvalidInputError(f"the model's chat template refuses the messages: {message}")
