"""Pages that run: their blocks in order, as a reader would follow them.

``python`` blocks share one namespace, ``sh`` blocks are commands, and a block with a title is a file. The same blocks
are the cells of the page's notebook.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)

#: what runs a page: the blocks are on standard input as JSON
_DRIVER = """
import json, pathlib, subprocess, sys
sys.path.insert(0, "")
for language, title, text in json.load(sys.stdin):
    if title:
        pathlib.Path(title).write_text(text, encoding="utf-8")
    elif language == "python":
        exec(compile(text, "<page>", "exec"), globals())
    else:
        subprocess.run(["bash", "-euc", text], check=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the file it is (or ""), its text, and the prose before it."""

    language: str
    title: str
    text: str
    before: str


def blocks(page: Path) -> tuple[list[Block], str]:
    """Return a page's blocks that run or are files, and the prose after the last."""
    text, found, end = page.read_text(encoding="utf-8"), [], 0
    for match in _BLOCK.finditer(text):
        language, title, body = match[1], match[2] or "", match[3]
        if title or language in ("python", "sh"):
            found.append(Block(language, title, body, text[end : match.start()].strip()))
            end = match.end()
    return found, text[end:].strip()


def follow(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's blocks in a folder."""
    wanted = [(b.language, b.title, b.text) for b in blocks(page)[0]]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [sys.executable, "-c", _DRIVER], input=json.dumps(wanted), cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PATH": path},
    )  # fmt: skip


def unprinted(page: Path, printed: str) -> list[str]:
    """Return what a page says that it prints, and did not; numbers may differ in their last digits from CPU to CPU."""
    said = re.findall(r"^> It prints: (.*?)\n\n", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [text for text in said if _shape(text.replace("\n> ", " ")) not in _shape(printed)]


def _shape(text: str) -> str:
    return re.sub(r"[−-]?\d[\d.,]*\d|\d", "#", " ".join(text.split()))


def notebook(page: Path) -> str:
    """Return a page as a notebook."""
    found, rest = blocks(page)
    cells: list[dict[str, Any]] = []
    for block in found:
        if block.before:
            cells.append({"cell_type": "markdown", "metadata": {}, "source": block.before})
        magic = f"%%writefile {block.title}\n" if block.title else "%%sh\n" if block.language == "sh" else ""
        source = (magic + block.text).rstrip("\n")
        cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source})
    if rest:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": rest})
    for number, cell in enumerate(cells):
        cell["id"] = f"{page.stem}-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebook of every tutorial beside it."""
    for page in sorted((ROOT / "docs/tutorials").glob("*.md")):
        page.with_suffix(".ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    main()
