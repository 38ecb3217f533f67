"""An endpoint's logs are read by its owner through the API, and on its host by the command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.compute.host.log_lines import (
    Follower,
    LogLine,
    last_lines,
    parse_lines,
    without_passwords,
)
from tests.support.client import Client
from tests.support.project import Project, refusal
from tests.support.stack import ROOT, Stack, running_stack
from tests.support.waiting import wait_for

SECRET = "4111-1111-secret"
FAILING = f'SELECT 1/0 AS "{SECRET}"'
PREFIX = "2026-11-23 20:00:00.123 UTC [77] "


def logs(project: Project, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = project.client.get(project.endpoint_path(rest="/logs"), **query)[
        "logs"
    ]
    return found


def fail(project: Project) -> None:
    """Run a statement that fails, as a client."""
    with (
        psycopg.connect(
            host=str(project.stack.state_dir / "sockets" / project.endpoint_id),
            user="neondb_owner",
            dbname="neondb",
        ) as client,
        pytest.raises(psycopg.errors.DivisionByZero),
    ):
        client.execute(FAILING.encode())


def shown(stack: Stack, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "manage.py", "logs", "--state-dir", stack.state_dir, *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_its_owner_reads_all_and_the_operator_nothing_that_clients_wrote(
    stack: Stack, project: Project, bob: Client
) -> None:
    fail(project)
    with pytest.raises(psycopg.Error):
        project.sql(f"CREATE ROLE a LOGIN PASSWORD '{SECRET}' NONSENSE")
    project.suspend()
    found = logs(project)
    assert SECRET not in json.dumps([line for line in found if line["message"] != FAILING])
    statement, hidden = (line for line in found if line["level"] == "STATEMENT")
    assert "may hold a password" in hidden["message"]
    assert statement["message"] == FAILING
    assert statement["source"] == "postgres"
    assert statement["at"].endswith("Z")
    assert [line["level"] for line in found if line["message"] == "division by zero"] == ["ERROR"]
    assert any(line["message"] == "database system is shut down" for line in found)
    assert str(stack.state_dir) not in json.dumps(found)
    assert [line["at"] for line in found] == sorted(line["at"] for line in found)
    assert logs(project, limit=2) == found[-2:]
    assert logs(project, source="pgbouncer") == []
    answer = bob.call("GET", project.endpoint_path(rest="/logs"))
    assert refusal(answer)[0] == 404
    output = shown(stack, project.endpoint_id).communicate(timeout=60)[0]
    assert "postgres  LOG  database system is shut down" in output
    assert "postgres  ERROR  [redacted]" in output
    assert SECRET not in output


@pytest.mark.thorough
def test_the_command_follows_the_log_and_shows_all_if_asked_to(
    stack: Stack, project: Project
) -> None:
    following = shown(stack, project.endpoint_id, "-f", "--lines", "1", "--whole", "--json")
    assert following.stdout is not None
    try:
        first = json.loads(following.stdout.readline())
        assert first["source"] == "postgres"
        fail(project)
        lines = [json.loads(following.stdout.readline()) for _ in range(2)]
        assert [line["message"] for line in lines] == ["division by zero", FAILING]
    finally:
        following.kill()
        following.communicate()


@pytest.mark.thorough
def test_the_worker_writes_the_logs_to_its_output(state_dir: Path) -> None:
    with running_stack(state_dir, PERCH_COMPUTE_LOGS_TO_STDOUT="redacted") as stack:
        project = Project.create(stack, stack.client())
        fail(project)
        log_file = stack.state_dir / "log" / "worker.log"

        def written() -> list[dict[str, Any]]:
            lines = log_file.read_text().splitlines()
            return [json.loads(line) for line in lines if line.startswith("{")]

        wait_for(lambda: any(line["level"] == "STATEMENT" for line in written()), "the statement")
        assert {line["branch"] for line in written()} == {project.branch_id}
        messages = {line["message"] for line in written()}
        assert "database system is ready to accept connections" in messages
        assert not [message for message in messages if SECRET in message]


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("LOG:  database system is ready to accept connections", ...),
        ("FATAL:  sorry, too many clients already", ...),
        ('FATAL:  could not open file "base/5/secret": No', 'could not open file "…": No'),
        ("LOG:  statement: SELECT 'secret'", "[redacted]"),
        ('ERROR:  duplicate key value violates unique constraint "secret"', "[redacted]"),
        ("DETAIL:  database system secret", "[redacted]"),
        ("LOG:  checkpoint complete\n\tsecret", "checkpoint complete"),
        ("ERROR:  a secret that RAISE has sent", "[redacted]"),
    ],
)
def test_redaction_keeps_only_what_the_server_says_of_itself(message: str, left: Any) -> None:
    (line,) = parse_lines(PREFIX + message + "\n", "postgres")
    assert (line.pid, line.level) == (77, message.partition(":")[0])
    expected = message.partition(":  ")[2] if left is ... else left
    assert line.redacted().message == expected


HIDDEN = "[not shown, as it may hold a password]"


@pytest.mark.parametrize(
    ("written", "messages"),
    [
        (
            f'{PREFIX}ERROR:  syntax error at or near "\'my "secret" at character 20\n'
            f"{PREFIX}HINT:  Quote it.\n"
            f"{PREFIX}STATEMENT:  create role foo login\n\tpassWord 'my \"secret\n",
            ['syntax error at or near "…" at character 20', "Quote it.", HIDDEN],
        ),
        (
            f'{PREFIX}ERROR:  role "foo" already exists\n'
            f"{PREFIX}CONTEXT:  SQL statement \"alter role foo password 'secret'\"\n"
            f"{PREFIX}QUERY:  select dblink('secret')\n"
            f"{PREFIX}STATEMENT:  select f()\n",
            ['role "…" already exists', HIDDEN, HIDDEN, "select f()"],
        ),
        (f"{PREFIX}LOG:  statement: create user\n\tmapping for a options (a 'secret')\n", [HIDDEN]),
        (f"{PREFIX}LOG:  statement: create user/**/mapping for a options (a 'x')\n", [HIDDEN]),
        (f"{PREFIX}LOG:  statement: select load('postgresql://a:secret@b/c')\n", [HIDDEN]),
        (f"{PREFIX}LOG:  statement: select crypt('secret', gen_salt('bf'))\n", [HIDDEN]),
        (f"{PREFIX}LOG:  statement: select 'http://a/b@c'\n", ["statement: select 'http://a/b@c'"]),
        (f"{PREFIX}LOG:  duration: 1.0 ms  execute a: alter role a password 'secret'\n", [HIDDEN]),
        ("\t'secret';\n\tselect 1\n", [HIDDEN]),
        ("ATEMENT:  alter role a password 'secret'\n", [HIDDEN]),
    ],
)
def test_no_statement_that_may_hold_a_password_is_shown(written: str, messages: list[str]) -> None:
    lines = without_passwords(parse_lines(written, "postgres"))
    assert [line.message for line in lines] == messages


def test_a_line_without_the_usual_form_is_kept_and_redacted() -> None:
    for text in ("lost beginning secret", "9999-99-99 99:99:99.999 UTC [1] LOG:  checkpoint x"):
        (line,) = parse_lines(text, "postgres")
        assert line == LogLine("postgres", text)
        assert line.redacted().message == "[redacted]"
    # Other characters that some call line breaks do not begin a line.
    (line,) = parse_lines(f"{PREFIX}ERROR:  a\u2028{PREFIX}LOG:  checkpoint b", "postgres")
    assert line.redacted().message == "[redacted]"


def test_the_last_lines_of_both_logs_are_in_order_and_go_on_after_a_rotation(
    tmp_path: Path, settings: Any, request: pytest.FixtureRequest
) -> None:
    settings.STATE_DIR = tmp_path
    place = tmp_path / "branches" / "br-a"
    place.mkdir(parents=True)
    log_file = place / "postgres.log"
    written = [
        f"2026-11-23 20:00:0{second}.000 UTC [1] LOG:  line {second}\n" for second in range(8)
    ]
    log_file.with_suffix(".log.1").write_text("".join(written[:2]))
    log_file.write_text("".join([*written[2:4], *written[5:6]]))
    (place / "pgbouncer.log").write_text(written[4].replace("LOG:  ", "LOG "))
    follower = Follower("br-a", "postgres")
    request.addfinalizer(follower.close)
    found = last_lines("br-a", sources=("postgres", "pgbouncer"), most=5)
    assert [line.message for line in found] == [f"line {second}" for second in range(1, 6)]
    assert found[3].source == "pgbouncer"
    assert follower.new_lines() == []
    with log_file.open("a") as file:
        file.write(written[6] + written[7][:20])
        file.flush()
        assert [line.message for line in follower.new_lines()] == ["line 6"]
        file.write(written[7][20:])
    log_file.rename(log_file.with_suffix(".log.1"))
    log_file.write_text(written[0])
    assert [line.message for line in follower.new_lines()] == ["line 7", "line 0"]
