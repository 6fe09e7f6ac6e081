"""Words to numbers: a plain tokenizer and a vocabulary built from the training texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from espalier.data.dataset import IntArray

PAD, UNKNOWN = 0, 1
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+")


def words(text: str) -> list[str]:
    """Split a text into lower-case words and numbers."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Ids of words: 0 pads, 1 is any unknown word, then the words by frequency."""

    ids: dict[str, int]

    @staticmethod
    def of(texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """Number the most frequent words (ties in alphabetical order); ``size`` ids in all."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        ranked = sorted(counts, key=lambda w: (-counts[w], w))[: size - 2]
        return Vocabulary({w: i + 2 for i, w in enumerate(ranked)})

    def __len__(self) -> int:
        return len(self.ids) + 2

    def encode(self, texts: Sequence[Sequence[str]], length: int) -> IntArray:
        """Ids of each text's first ``length`` words, padded at the end; int64 ``[texts, length]``.

        A text without words becomes one unknown word, so that no input is all padding.
        """
        out = np.full((len(texts), length), PAD, np.int64)
        for row, text in zip(out, texts, strict=True):
            found = [self.ids.get(w, UNKNOWN) for w in text[:length]] or [UNKNOWN]
            row[: len(found)] = found
        return out
