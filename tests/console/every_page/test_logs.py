"""The console's log: one line for each request, with an id that the API's lines have too."""

import re

import requests

from tests.support.client import Client
from tests.support.log_lines import await_line, read_log
from tests.support.stack import Stack
from tests.support.waiting import wait_for


def test_a_page_and_its_api_calls_have_the_same_request_id(stack: Stack) -> None:
    client = stack.client()
    browser = signed_in(stack, client)
    before = len(read_log(stack.state_dir, "web"))
    assert browser.get(f"{stack.console_url}/?q=never%20logged", timeout=10).ok

    def shown() -> list[dict[str, str]]:
        lines = read_log(stack.state_dir, "web")[before:]
        return [line for line in lines if line.get("path") == "/"]

    # Supervisor writes a process's output with a delay.
    wait_for(shown, "the page's line")
    (page,) = shown()
    assert (page["method"], page["status"], page["client"]) == ("GET", "200", "127.0.0.1")
    assert int(page["bytes"]) > 1000
    await_line(stack, "api", request=page["request"], path="/api/v2/projects")
    log = (stack.state_dir / "log" / "web.log").read_text()
    # A project's name may have any single word.
    assert not re.search("never.*logged", log)
    assert client.key not in log


def test_a_stream_has_its_line_in_the_log(stack: Stack) -> None:
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
    # Does not follow the redirect: the page there has a line of its own.
    answer = browser.post(page.url, data=form, timeout=10, allow_redirects=False)
    assert answer.status_code == 302
    return browser
