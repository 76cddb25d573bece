"""What a vocabulary says without a model: which tokens hold white space or punctuation, and a name for the whole."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

#: Characters of each class, by its bit. Byte-level vocabularies write a space as U+0120 and a newline as U+010A,
#: SentencePiece writes a space as U+2581.
CLASSES = (
    " \t\n\r\u0120\u010a\u0109\u2581",
    ".,;:!?'\"",
    "()[]{}<>",
    "\n\u010a|#=/\\`",
)


def token_classes(tokenizer: Any, vocab_size: int) -> npt.NDArray[np.uint8]:
    """Return the class bits of each token id, shape (vocab_size,); 0 for ids that the tokenizer lacks."""
    bits = np.zeros(vocab_size, np.uint8)
    for text, token in tokenizer.get_vocab().items():
        if 0 <= token < vocab_size:
            bits[token] = sum(1 << bit for bit, held in enumerate(CLASSES) if any(char in held for char in text))
    return bits


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return 32 hexadecimal digits that name a vocabulary: equal for equal texts of equal ids."""
    pairs = sorted((i, text) for text, i in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:32]
