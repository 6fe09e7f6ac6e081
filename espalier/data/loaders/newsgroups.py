"""20 Newsgroups, the "bydate" version: folders of posts, the published archive, or JSON lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from espalier.core.errors import ConfigError, DataError, nearest
from espalier.data.dataset import Dataset, IntArray
from espalier.data.loaders.base import Layout, at_least, one_match
from espalier.data.loaders.files import members, read_bytes, reading

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


PARTS = {"20news-bydate-train": "train", "20news-bydate-test": "test"}
TEN = (
    "alt.atheism",
    "comp.os.ms-windows.misc",
    "comp.sys.mac.hardware",
    "misc.forsale",
    "rec.motorcycles",
    "rec.sport.hockey",
    "sci.electronics",
    "sci.space",
    "talk.politics.guns",
    "talk.politics.misc",
)
"""``topics=10``: EASF uses ten topics without naming them; these are every other one, all fields present."""


class NewsPost(NamedTuple):
    """One post: its part (train, test), its group, its subject and text."""

    part: str
    group: str
    text: str


def parse_post(data: bytes) -> str:
    """The subject and the body of a post; its other headers (which give the group away) are dropped."""
    head, _, body = data.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
    subject = next((line[8:].strip() for line in head.splitlines() if line.lower().startswith("subject:")), "")
    return f"{subject}\n{body}"


def from_folders(folder: Path) -> Iterator[NewsPost]:
    """Posts of ``20news-bydate-train/GROUP/NUMBER`` and the same for test."""
    for top, part in PARTS.items():
        for path in sorted((folder / top).glob("*/*")):
            with reading(path):
                yield NewsPost(part, path.parent.name, parse_post(path.read_bytes()))


def from_archive(folder: Path) -> Iterator[NewsPost]:
    """Posts of the published ``20news-bydate.tar.gz``."""
    for inside, data in members(one_match(folder, "20news-bydate*.tar.gz"), lambda p: len(p.split("/")) >= 3):
        top, group = inside.split("/")[-3:-1]
        if top in PARTS:
            yield NewsPost(PARTS[top], group, parse_post(data))


def from_lines(folder: Path) -> Iterator[NewsPost]:
    """Posts of a ``.jsonl`` file (plain, .gz or .xz) with split, group, subject and text."""
    path = one_match(folder, "*.jsonl*")
    text = read_bytes(path).decode("utf-8", errors="replace")
    # Not splitlines(): a post may contain other line separators, which JSON does not escape.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with reading(f"{path} (line {number})"):
                post = json.loads(line)
                yield NewsPost(post["split"], post["group"], f"{post.get('subject', '')}\n{post['text']}")


def build(posts: Iterator[NewsPost], where: Path, topics: int | tuple[str, ...], max_len: int, vocab: int) -> Dataset:
    """Choose the topics, build the vocabulary from the training posts, encode."""
    at_least("Option 'max_len' of dataset 'newsgroups20'", max_len, 1)
    at_least("Option 'vocab' of dataset 'newsgroups20'", vocab, 3)
    found: dict[str, list[tuple[str, list[str]]]] = {"train": [], "test": []}
    groups = set()
    chosen = _chosen(topics)
    for post in posts:
        groups.add(post.group)
        if post.part not in found:
            raise DataError(f"{where}: a post has split {post.part!r}; accepted are train and test.")
        if chosen is None or post.group in chosen:
            found[post.part].append((post.group, words(post.text)))
    names = sorted(groups) if chosen is None else list(chosen)
    for name in names:
        if name not in groups:
            raise ConfigError(f"There is no topic {name!r} in {where}.{nearest(name, groups)}")
    for part, texts in found.items():
        if not texts:
            raise DataError(f"{where} holds no posts of the {part} part; fetch it again.")
    index = {g: i for i, g in enumerate(names)}
    vocabulary = Vocabulary.of((w for _, w in found["train"]), vocab)
    x, y = (
        {p: vocabulary.encode([w for _, w in t], max_len) for p, t in found.items()},
        {p: np.array([index[g] for g, _ in t], np.int64) for p, t in found.items()},
    )
    return Dataset.from_arrays(
        x["train"],
        y["train"],
        x["test"],
        y["test"],
        name="newsgroups20",
        n_classes=len(names),
        meta={"classes": tuple(names), "vocabulary": len(vocabulary)},
    )


def _chosen(topics: int | tuple[str, ...]) -> tuple[str, ...] | None:
    if isinstance(topics, tuple):
        if len(set(topics)) != len(topics) or not topics:
            raise ConfigError(f"Option 'topics' of dataset 'newsgroups20' is {topics}; give different names.")
        return topics
    if topics not in (10, 20):
        raise ConfigError(
            f"Option 'topics' of dataset 'newsgroups20' is {topics}; accepted are 20, 10, or a list of topics' names."
        )
    return TEN if topics == 10 else None


def reader(posts: Callable[[Path], Iterator[NewsPost]]) -> Callable[..., Dataset]:
    """Return what makes a dataset of a folder's posts: token ids ``[n, max_len]``."""

    def read(folder: Path, *, topics: int | tuple[str, ...] = 20, max_len: int = 200, vocab: int = 10_000) -> Dataset:
        return build(posts(folder), folder, topics, max_len, vocab)

    return read


LAYOUTS = (
    Layout("extracted folders", tuple(f"{top}/*/*" for top in PARTS), reader(from_folders)),
    Layout("published archive", ("20news-bydate*.tar.gz",), reader(from_archive)),
    Layout("JSON lines", ("*.jsonl*",), reader(from_lines)),
)
