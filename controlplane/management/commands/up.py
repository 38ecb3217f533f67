"""`manage.py up`: runs the whole service on this machine, with one command."""

import contextlib
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import requests
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, connections

from controlplane.compute import compute
from controlplane.compute.data.branch_data import template
from controlplane.compute.data.state_directory import (
    StateDirectoryUnusable,
    prepare_state_directory,
)
from controlplane.compute.host.accounts import AccountUnusable, service_account
from controlplane.compute.host.binaries import PostgresUnusable, check_programs
from controlplane.compute.host.filesystem import LockTimeout
from controlplane.compute.host.space import CRITICAL_BYTES, host_space
from controlplane.compute.processes import metadata
from controlplane.database.connection_counts import connection_shortage
from controlplane.database.secret_keys import OtherSecretKey, refuse_other_key
from controlplane.database.version import OtherVersion, refuse_unknown
from controlplane.deployment.coming_up import ComingUp
from controlplane.deployment.greeting import greeting, reachable
from controlplane.deployment.host_resources import (
    MAKE_ROOM,
    holding_state_directory,
    raise_file_limit,
    refuse_few_processes,
    room_on_disk,
)
from controlplane.deployment.process_setup import (
    choose_accounts,
    launcher,
    prepare_address_file,
    set_up_files,
)
from controlplane.deployment.proxy_account import sockets_directories
from controlplane.deployment.service_command import ServiceCommand
from controlplane.deployment.supervision import (
    MARK,
    Program,
    Supervisor,
    end_leftovers,
    end_proxies,
    programs_of,
)
from controlplane.models import Account, ApiKey, Host, Plan
from controlplane.operations.own_host import HostTaken, own_host
from controlplane.operations.rounds.reconcile import reconcile_host, stop_computes
from controlplane.proxy.listeners import is_offered
from controlplane.services.accounts import KeySpec, create_key

DEFAULT_PORTS = {"console": 8000, "api": 8001, "proxy": 5432}
# Variables that the processes get as files.
SECRETS = ("PERCH_SECRET_KEY", "PERCH_SECRET_KEY_FALLBACKS")
# Errors of Django's connection, and of a connection without Django.
DATABASE_LOST = (OperationalError, psycopg.OperationalError)
# Seconds: on a busy host an answer takes long, and asking again would add to the load.
ANSWER_TIMEOUT = 10.0
# How often the first start may fail because the supervisor or the database was lost. A service that
# was up before is started again for as long as it takes, such as until a full disk has room.
MAX_FIRST_FAILURES = 5
# The pause before a start grows by a second with each failure in a row, up to this many.
MAX_PAUSE_SECONDS = 30

log = logging.getLogger(__name__)


class Command(ServiceCommand):
    help = "Runs the whole service: console, API, worker and proxy, with a Postgres of its own."
    refusals = (
        *(StateDirectoryUnusable, AccountUnusable, PostgresUnusable),
        *(OtherVersion, OtherSecretKey, HostTaken),
    )
    # Set once the database is known to have this version's schema.
    may_use_database = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Set if another `up` takes this one's place.
        self.makes_room = threading.Event()

    def add_arguments(self, parser: CommandParser) -> None:
        state_dir = str(settings.STATE_DIR).replace("%", "%%")
        parser.add_argument(
            "--state-dir",
            metavar="DIR",
            help=f"where everything is kept, here {state_dir}; unless told by this or by "
            "PERCH_STATE_DIR, as root /var/lib/perch, in a checkout its var/, else "
            "$XDG_STATE_HOME/perch (~/.local/state/perch)",
        )
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        for name, port in DEFAULT_PORTS.items():
            parser.add_argument(
                f"--{name}-port",
                type=int,
                metavar="PORT",
                help=f"{port}, or the next free one if that is taken",
            )
        parser.add_argument(
            "--replace",
            action="store_true",
            help="take the place of the `up` that runs on the state directory, such as after an "
            "upgrade: computes and their clients' connections stay",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = threading.Event()
        stop_on_signals(stopped)

        def make_room(*_: object) -> None:
            self.makes_room.set()
            stopped.set()

        signal.signal(MAKE_ROOM, make_room)
        self._say(f"Starting Perch on {settings.STATE_DIR} …")
        warning = raise_file_limit()
        refuse_few_processes()
        with contextlib.ExitStack() as held:
            try:
                with room_on_disk():
                    prepare_state_directory()
                    check_programs()
                    notice = choose_accounts()
                    held.enter_context(
                        holding_state_directory(replace=options["replace"], say=self._say)
                    )
            except OSError as error:
                raise CommandError(str(error)) from error
            for words in filter(None, (warning, notice)):
                self._say(words)
            held.enter_context(room_on_disk())
            if ended := end_leftovers(settings.STATE_DIR):
                self._say(f"Ended {len(ended)} processes that an earlier run had left behind.")
            host = options["host"]
            ports: dict[str, int] = {}
            for name in DEFAULT_PORTS:
                wanted = options[f"{name}_port"]
                ports[name] = self._port(host, name, wanted, taken=ports.values())
            supervisor = self._supervisor(host, ports)
            try:
                self._run(supervisor, host, ports, stopped)
            finally:
                if self.makes_room.is_set():
                    self._make_room(supervisor)
                else:
                    self._stop(supervisor, was_asked=stopped.is_set())
                redirect_lost_output()

    def _run(
        self, supervisor: Supervisor, host: str, ports: dict[str, int], stopped: threading.Event
    ) -> None:
        """Start everything, print how to use it, and keep it running until `stopped`."""
        set_up_files()
        making_template = threading.Thread(target=self._make_template)
        making_template.start()
        if "DATABASE_URL" not in os.environ:
            if not metadata.data_dir().exists():
                self._say("Making Perch's own Postgres, which happens once …")
            metadata.create_metadata_cluster()
        elif complaint := metadata.why_unreachable(os.environ["DATABASE_URL"]):
            raise CommandError(f"the database of DATABASE_URL does not answer: {complaint}")
        greeted, failures = False, 0
        while not stopped.is_set():
            try:
                self._bring_up(supervisor, host, ports, stopped)
            except Exception as error:
                failures += 1
                is_lost = not supervisor.is_running() or isinstance(error, DATABASE_LOST)
                # Other errors of the first start are reported at once.
                may_come_up = greeted or (is_lost and failures <= MAX_FIRST_FAILURES)
                if stopped.is_set() or not may_come_up:
                    raise
                log.warning("not started, tried again", extra={"error": repr(error)})
                pause = min(failures, MAX_PAUSE_SECONDS)
                self._say(f"Perch has not started ({error}). It tries again in {pause} s.")
                stopped.wait(pause)
            else:
                failures = 0
                making_template.join()
                if not greeted and not stopped.is_set():
                    self._say(greeting(host, ports))
                    greeted = True
                while supervisor.is_running() and not stopped.wait(0.5):
                    pass
            if not stopped.is_set():
                what = "Not everything has started"
                if not supervisor.is_running():
                    words = supervisor.last_error()
                    what = (
                        f"The supervisor has exited ({words})"
                        if words
                        else "The supervisor has exited"
                    )
                self._say(f"{what}; starting everything again.")
                supervisor.stop()
                end_leftovers(settings.STATE_DIR)

    def _bring_up(
        self, supervisor: Supervisor, host: str, ports: dict[str, int], stopped: threading.Event
    ) -> None:
        own = "DATABASE_URL" not in os.environ
        if own:
            self._say("Starting Perch's own Postgres …")
        # An earlier run's, if that was killed.
        prepare_address_file()
        supervisor.start()
        wait_for = ComingUp(supervisor, stopped, self._say).wait_for
        if not wait_for(supervisor.is_listening, "the supervisor"):
            return
        if own and not wait_for(metadata.create_metadata_database, "Perch's own Postgres"):
            return
        refuse_unknown()
        self._say("Bringing the database's schema up to date …")
        call_command("migrate", verbosity=0)
        refuse_other_key()
        self.may_use_database = True
        self._make_local_account()
        # An earlier run's signs of life say nothing about this one. Other hosts keep theirs.
        host_id = own_host().id
        Host.objects.filter(id=host_id).update(worker_seen_at=None, proxy_seen_at=None)
        if words := connection_shortage(hosts=Host.objects.count()):
            self._say(f"Warning: {words}.")
        connections.close_all()
        self._say("Starting console, API, worker and proxy …")
        for program in supervisor.programs:
            if not program.autostart and not stopped.is_set():
                supervisor.start_program(program.name)
        for url in (
            f"http://{reachable(host)}:{ports['api']}/healthz",
            f"http://{reachable(host)}:{ports['console']}/sign-in",
        ):
            wait_for(partial(_answers, url), url)
        if settings.METRICS_LISTEN != "off":
            wait_for(_metrics_are_served, "the figures' address")

    def _stop(self, supervisor: Supervisor, *, was_asked: bool) -> None:
        """Stop the processes, then the computes, then the metadata's Postgres. If that was not
        asked for, because the start failed, the proxy of an earlier `up` goes on serving its
        clients for a limited time: the next `up` may succeed."""
        if supervisor.is_running():
            self._say("Stopping …")
            if self.may_use_database:
                stop_programs(supervisor)
        if was_asked:
            end_proxies(settings.STATE_DIR)
        if not supervisor.is_running():
            return
        if not self.may_use_database:
            supervisor.stop()
            return
        stop_computes(compute.running_branches())
        try:
            # If another state directory serves this host, no compute was started here.
            with contextlib.suppress(HostTaken):
                reconcile_host(own_host())
        finally:
            connections.close_all()
            supervisor.stop()
        self._say("Stopped.")

    def _make_room(self, supervisor: Supervisor) -> None:
        """Stop the processes for another `up`. Computes run on, and the proxy's processes serve
        clients until its own proxy has started."""
        if supervisor.is_running():
            self._say("Making room for another `up` …")
            stop_programs(supervisor)
            connections.close_all()
            supervisor.stop()
        self._say("Its computes run on.")

    def _supervisor(self, host: str, ports: dict[str, int]) -> Supervisor:
        programs = programs_of(settings.BASE_DIR / "Procfile", launcher=launcher())
        if settings.METRICS_LISTEN == "off":
            programs = [program for program in programs if program.name != "metrics"]
        if "DATABASE_URL" not in os.environ:
            database = Program(
                "metadata",
                shlex.join(metadata.metadata_command(mark=f"{MARK}={settings.STATE_DIR}")),
                user=str(service_account().uid) if os.geteuid() == 0 else None,
                stop_signal="INT",
                autostart=True,
            )
            programs.insert(0, database)
        return Supervisor(
            programs,
            state_dir=settings.STATE_DIR,
            socket=settings.SOCKET_DIR / "supervisor.sock",
            directory=settings.BASE_DIR,
            environment={
                **{name: value for name, value in os.environ.items() if name not in SECRETS},
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
                "PERCH_STATE_DIR": str(settings.STATE_DIR),
                "PERCH_SECRET_KEY_FILE": str(self._secret_key_file()),
                "PERCH_SECRET_KEY_FALLBACKS_FILE": str(self._fallbacks_file()),
                "PERCH_HOST": host,
                "PERCH_PROXY_PORT": str(ports["proxy"]),
                "PERCH_CONSOLE_STATE_DIR": str(settings.STATE_DIR / "console"),
                "MANAGEMENT_API_URL": f"http://{reachable(host)}:{ports['api']}/api/v2",
                "HOST": host,
                "PORT": str(ports["console"]),
                "API_HOST": host,
                "API_PORT": str(ports["api"]),
                "PYTHONUNBUFFERED": "1",
            },
        )

    def _secret_key_file(self) -> Path:
        """The file from which the processes read the secret key. Not the environment: other
        processes of the same account can read that, and the key gives access to all passwords."""
        if "PERCH_SECRET_KEY" not in os.environ:
            return Path(os.environ.get("PERCH_SECRET_KEY_FILE", settings.STATE_DIR / "secret-key"))
        return _private_file("secret-key.given", settings.SECRET_KEY)

    def _fallbacks_file(self) -> Path:
        """The file from which the processes read the secret keys before this one."""
        if "PERCH_SECRET_KEY_FALLBACKS_FILE" in os.environ:
            return Path(os.environ["PERCH_SECRET_KEY_FALLBACKS_FILE"])
        if "PERCH_SECRET_KEY_FALLBACKS" in os.environ:
            return _private_file(
                "secret-key-fallbacks.given", "\n".join(settings.SECRET_KEY_FALLBACKS)
            )
        path: Path = settings.STATE_DIR / "secret-key-fallbacks"
        # Those of an earlier run are not needed any more.
        path.with_suffix(".given").unlink(missing_ok=True)
        return path

    def _make_local_account(self) -> None:
        """Make sure that the account `local` exists and the state directory has a valid key."""
        account, _ = Account.objects.get_or_create(name="local", defaults={"plan": Plan.UNLIMITED})
        path = settings.STATE_DIR / "api-key"
        known = path.read_text().strip() if path.exists() else secrets.token_hex()
        if ApiKey.objects.filter(digest=ApiKey.digest_of(known), revoked_at=None).exists():
            return
        _, key = create_key(account, KeySpec(name="up"))
        _private_file("api-key", key + "\n")

    def _make_template(self) -> None:
        """Make the template of new projects now, beside the rest of the first start, rather than
        when it is first needed. Those of other major versions wait for their first project."""
        try:
            template()
        except (OSError, RuntimeError, LockTimeout, subprocess.SubprocessError) as error:
            log.error("no template", extra={"error": str(error)})

    def _port(self, host: str, name: str, wanted: int | None, *, taken: Collection[int]) -> int:
        def is_usable(port: int) -> bool:
            # An earlier run's proxy passes its port on to ours.
            is_ours = name == "proxy" and any(map(is_offered, sockets_directories(port)))
            return is_ours or _is_free(host, port)

        if wanted is not None:
            if not is_usable(wanted):
                raise CommandError(f"port {wanted}, which --{name}-port names, is in use")
            return wanted
        default = port = DEFAULT_PORTS[name]
        while port in taken or not is_usable(port):
            port += 1
        if port != default:
            self._say(f"Port {default} is taken; the {name} takes {port}.")
        return port

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self.stdout.write(text)
        redirect_lost_output()


def stop_programs(supervisor: Supervisor) -> None:
    """Stop the programs that need the database."""
    with ThreadPoolExecutor() as threads:
        names = [program.name for program in supervisor.programs if not program.autostart]
        list(threads.map(supervisor.stop_program, names))


def _private_file(name: str, content: str) -> Path:
    """A new file in the state directory, which only its owner can read."""
    path: Path = settings.STATE_DIR / name
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    return path


def redirect_lost_output() -> None:
    """Redirect output to /dev/null if its terminal is gone. Otherwise errors in writing would keep
    `up` from stopping the rest, or make its end look like a failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def stop_on_signals(stopped: threading.Event) -> None:
    """Make Ctrl-C, SIGTERM and the closing of the terminal set `stopped`. Under nohup, SIGHUP is
    already ignored and stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stopped.set())


def _answers(url: str) -> bool:
    try:
        # The service is on this host: use no HTTP proxy of the environment.
        return requests.get(url, timeout=ANSWER_TIMEOUT, proxies={"http": ""}).ok
    except requests.RequestException:
        return False


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _metrics_are_served() -> bool:
    # On a full disk the address cannot be written.
    return bool(settings.METRICS_ADDRESS_FILE.exists() or host_space().free < CRITICAL_BYTES)
