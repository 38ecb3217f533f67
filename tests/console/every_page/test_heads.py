"""The head of a request, which anybody may send, takes little time."""

import http.cookies

import pytest

from tests.console.browser import Browser


def test_backslashes_in_cookies_are_not_decoded(
    visitor: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of Python decode them in quadratic time: 8 KiB of them take 0.3 s."""
    decoded: list[str] = []

    def decode(text: str) -> str:
        decoded.append(text)
        return text

    monkeypatch.setattr(http.cookies, "_unquote", decode)
    odd = f'other="{chr(92) * 8000}"; perch_zone=Europe/Berlin'
    assert visitor.get("/sign-in", headers={"Cookie": odd}).status_code == 200
    assert "Europe/Berlin" in decoded
    assert not any("\\" in one for one in decoded)
