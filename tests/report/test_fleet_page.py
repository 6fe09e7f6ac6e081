"""The page of a real fleet: nobody without its token, nothing but reading, and what the cloud says."""

from __future__ import annotations

import json
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from espalier.core.errors import ConfigError, RunError
from espalier.report.endpoint import kept_token
from espalier.report.fleet_page import served


def get(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_shows_what_the_cloud_says(tmp_path: Path) -> None:
    said: dict[str, Any] = {"run": "<b>mine</b>", "scores": {"acc_global": float("nan")}}
    with served("0", tmp_path, lambda: said) as url:
        where, _, query = url.partition("?")
        code, text = get(f"{where}status.json?{query}")
        assert (code, json.loads(text)) == (200, {"run": "<b>mine</b>", "scores": {"acc_global": None}})
        code, page = get(url)
        assert code == 200
        assert "mine" not in page, "what members are called is never part of the markup"
        assert "/*STYLE*/" not in page
        assert get(f"{where}status.json?{query}", "POST")[0] == 405


def test_nobody_sees_it_without_the_token(tmp_path: Path) -> None:
    with served("0", tmp_path, dict) as url:
        where = url.partition("?")[0]
        assert where.startswith("http://127.0.0.1:")
        for wrong in ("", "status.json", "?token=", "status.json?token=guessed"):
            assert get(where + wrong)[0] == 403
    with pytest.raises(OSError):
        get(url)


def test_a_cloud_that_is_not_ready_says_so(tmp_path: Path) -> None:
    def look() -> dict[str, Any]:
        raise ConfigError("not yet")

    with served("0", tmp_path, look) as url:
        assert get(url.replace("?", "status.json?")) == (503, '{"error":"not yet"}')


def test_the_token_is_kept_for_its_owner(tmp_path: Path) -> None:
    token = kept_token(tmp_path / "token")
    assert kept_token(tmp_path / "token") == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    (tmp_path / "token").write_text("")
    with pytest.raises(RunError, match="holds no token"):
        kept_token(tmp_path / "token")


@pytest.mark.parametrize("where", ["nowhere", "127.0.0.1:", "70000", "203.0.113.1:0"])
def test_a_place_where_nothing_can_be_served(where: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--status-page {where}"), served(where, tmp_path, dict):
        raise AssertionError("it is served")
