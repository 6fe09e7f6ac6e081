"""Downloads from a publisher on this machine: whole, resumed, wrong, and without a network."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from espalier.core.errors import DataError
from espalier.data import registry
from espalier.data.download import download
from espalier.data.loaders.base import DatasetEntry, Source

CONTENT = bytes(range(256)) * 4096


@dataclass
class Publisher:
    """What the server was asked, and how it behaves."""

    url: str = ""
    ranges: bool = True
    cut: int | None = None
    asked: list[str | None] = field(default_factory=list)

    def source(self, content: bytes = CONTENT, algorithm: str = "sha256") -> Source:
        return Source("data.bin", f"{self.url}/data.bin", f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    state = Publisher()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start : state.cut])

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_file_arrives_whole_with_progress(publisher: Publisher, tmp_path: Path, algorithm: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download(publisher.source(algorithm=algorithm), tmp_path / "new", lambda *a: seen.append(a))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("data.bin", len(CONTENT), len(CONTENT))
    assert [n for _, n, _ in seen] == sorted(n for _, n, _ in seen)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["data.bin"]


def test_a_file_that_is_there_is_not_fetched_again(publisher: Publisher, tmp_path: Path) -> None:
    download(publisher.source(), tmp_path)
    download(publisher.source(), tmp_path)
    assert len(publisher.asked) == 1
    (tmp_path / "data.bin").write_bytes(CONTENT[:-1])
    download(publisher.source(), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_broken_download_is_resumed(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cut = 300_000
    with pytest.raises(DataError, match=r"Could not download data.bin .*data\.bin\.part"):
        download(publisher.source(), tmp_path)
    assert not (tmp_path / "data.bin").exists()
    have = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < have <= 300_000
    publisher.cut = None
    assert download(publisher.source(), tmp_path).read_bytes() == CONTENT
    assert publisher.asked == [None, f"bytes={have}-"]


def test_a_server_without_ranges_starts_again(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    publisher.ranges = False
    assert download(publisher.source(), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_taken(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert download(publisher.source(), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_removed(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has the checksum sha256:.*, expected sha256:"):
        download(publisher.source(b"something else"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_said(tmp_path: Path) -> None:
    source = Source("data.bin", "http://127.0.0.1:9/data.bin", "md5:0")
    with pytest.raises(DataError, match="Is there a network"):
        download(source, tmp_path)


def test_fetch_puts_all_files_into_the_datasets_folder(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = DatasetEntry(
        "toy", "classification", (1, 1), 2, "none", "nobody", folders=("toys", "TOYS"), sources=(publisher.source(),)
    )
    monkeypatch.setattr(registry, "ENTRIES", (entry,))
    assert registry.fetch("toy", tmp_path) == tmp_path / "toys"
    assert (tmp_path / "toys" / "data.bin").exists()
