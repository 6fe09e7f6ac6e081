"""20 Newsgroups: folders, the published archive, JSON lines; and the words' numbers."""

import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest
import torch

from espalier.core.errors import ConfigError, DataError
from espalier.data.loaders.newsgroups import TEN, Vocabulary, parse_post, words
from espalier.data.registry import load

POSTS = {
    ("train", "sci.space", "1"): ("Orbit", "The moon and the moon."),
    ("train", "rec.autos", "2"): ("Car", "A car, a \xe9lan."),
    ("train", "rec.autos", "3"): ("", "!!!"),
    ("test", "sci.space", "4"): ("Moon", "unseen words"),
    ("test", "rec.autos", "5"): ("Car", "car"),
}


def raw(subject: str, body: str) -> bytes:
    return f"From: someone@rec.autos\nSubject: {subject}\nLines: 3\n\n{body}\n".encode("latin-1")


def write(root: Path, layout: str) -> None:
    folder = root / "newsgroups20"
    folder.mkdir(parents=True)
    if layout == "lines":
        lines = [
            json.dumps({"split": p, "label": 0, "group": g, "id": i, "subject": s, "text": t}, ensure_ascii=False)
            for (p, g, i), (s, t) in POSTS.items()
        ]
        (folder / "20news.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
        return
    if layout == "folders":
        for (part, group, number), (subject, text) in POSTS.items():
            path = folder / f"20news-bydate-{part}" / group / number
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw(subject, text))
        return
    with tarfile.open(folder / "20news-bydate.tar.gz", "w:gz") as tar:
        for (part, group, number), (subject, text) in POSTS.items():
            data = raw(subject, text)
            member = tarfile.TarInfo(f"20news-bydate-{part}/{group}/{number}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("layout", ["folders", "archive", "lines"])
def test_every_layout_gives_the_same_numbers(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    data = load("20newsgroups", tmp_path, max_len=6, vocab=6)
    assert data.meta["classes"] == ("rec.autos", "sci.space")
    # Training words: a 2, and 1, car 2, lan 1, moon 2, orbit 1, the 2. Six ids: 0 pads, 1 is unknown, then by
    # frequency, ties by the alphabet: a=2, car=3, moon=4, the=5.
    assert data.vocabulary == 6
    texts = {tuple(x): y for x, y in zip(data.x_train.tolist(), data.y_train.tolist(), strict=True)}
    assert texts == {
        (1, 5, 4, 1, 5, 4): 1,  # orbit the moon and the moon
        (3, 2, 3, 2, 1, 0): 0,  # car a car a lan, one pad
        (1, 0, 0, 0, 0, 0): 0,  # no words at all
    }
    assert data.x_test.dtype == torch.int64
    assert sorted(data.x_test.tolist()) == [[3, 3, 0, 0, 0, 0], [4, 1, 1, 0, 0, 0]]


def test_headers_that_name_the_group_are_dropped() -> None:
    assert parse_post(raw("Re: x", "body\n\nmore")) == "Re: x\nbody\n\nmore\n"
    assert parse_post(b"no headers at all") == "\n"


def test_topics_by_name_and_number(tmp_path: Path) -> None:
    write(tmp_path, "lines")
    data = load("newsgroups20", tmp_path, topics=["sci.space"])
    assert data.n_classes == 1 and data.y_train.tolist() == [0]
    with pytest.raises(ConfigError, match=r"no topic 'sci.spice'.*Did you mean 'sci.space'"):
        load("newsgroups20", tmp_path, topics=["sci.spice"])
    with pytest.raises(ConfigError, match="accepted are 20, 10, or a list"):
        load("newsgroups20", tmp_path, topics=7)
    with pytest.raises(ConfigError, match="different names"):
        load("newsgroups20", tmp_path, topics=["a", "a"])
    assert len(set(TEN)) == 10


def test_damage_is_named(tmp_path: Path) -> None:
    write(tmp_path, "lines")
    path = tmp_path / "newsgroups20" / "20news.jsonl.xz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"20news.jsonl.xz is truncated"):
        load("newsgroups20", tmp_path)
    path.write_bytes(lzma.compress(lzma.decompress(whole) + b"\n{oops"))
    with pytest.raises(DataError, match=r"\(line 6\)"):
        load("newsgroups20", tmp_path)
    path.write_bytes(lzma.compress(b'{"split": "dev", "group": "a", "text": "b"}'))
    with pytest.raises(DataError, match="split 'dev'; accepted are train and test"):
        load("newsgroups20", tmp_path)
    path.write_bytes(lzma.compress(b'{"split": "train", "group": "a", "text": "b"}'))
    with pytest.raises(DataError, match="no posts of the test part"):
        load("newsgroups20", tmp_path)


def test_words_and_vocabulary() -> None:
    assert words("Don't PANIC: 42 e-mails!") == ["don't", "panic", "42", "e", "mails"]
    vocabulary = Vocabulary.of([["b", "a", "b"], ["c"]], 4)
    assert vocabulary.ids == {"b": 2, "a": 3}
    assert len(vocabulary) == 4
    assert vocabulary.encode([["a", "c", "b"], []], 2).tolist() == [[3, 1], [1, 0]]
