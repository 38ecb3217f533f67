"""The console's log: a line for each request, whose id the API's lines bear too."""

import re

import requests

from tests.support.client import Client
from tests.support.log_lines import await_line, read_log
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def test_a_pages_id_is_that_of_all_it_asked_the_api(stack: Stack) -> None:
    client = stack.client()
    browser = signed_in(stack, client)
    before = len(read_log(stack.state_dir, "web"))
    assert browser.get(f"{stack.console_url}/?q=hidden", timeout=10).ok

    def shown() -> list[dict[str, str]]:
        lines = read_log(stack.state_dir, "web")[before:]
        return [line for line in lines if line.get("path") == "/"]

    # Supervisor writes what it is told when it comes to it.
    wait_for(shown, "the page's line")
    (page,) = shown()
    assert (page["method"], page["status"], page["client"]) == ("GET", "200", "127.0.0.1")
    assert int(page["bytes"]) > 1000
    await_line(stack, "api", request=page["request"], path="/api/v2/projects")
    log = (stack.state_dir / "log" / "web.log").read_text()
    assert "hidden" not in log
    assert client.key not in log


def test_what_is_streamed_has_its_line_too(stack: Stack) -> None:
    page = requests.get(f"{stack.console_url}/sign-in", timeout=10).text
    found = re.search(r'(/static/[^"\s>]+\.css)', page)
    assert found
    style = requests.get(stack.console_url + found[1], timeout=10)
    line = await_line(stack, "web", path=found[1])
    assert (line["status"], int(line["bytes"]) > 0, style.ok) == ("200", True, True)


def signed_in(stack: Stack, client: Client) -> requests.Session:
    browser = requests.Session()
    page = browser.get(f"{stack.console_url}/sign-in", timeout=10)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token
    form = {"csrfmiddlewaretoken": token[1], "key": client.key}
    # Not on to the page that it leads to: that has a line of its own.
    answer = browser.post(page.url, data=form, timeout=10, allow_redirects=False)
    assert answer.status_code == 302
    return browser
