"""`manage.py computes`: `stop --all` ends every compute of this host, and `restart` restarts those
whose Postgres is an older minor release than the host's programs."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import OperationalError, connections

from controlplane.compute import compute
from controlplane.compute.data.state_directory import (
    StateDirectoryUnusable,
    check_ours,
    hold_state_directory,
    sole_holder,
)
from controlplane.compute.processes.process import StopFailed
from controlplane.deployment.service_command import ServiceCommand
from controlplane.operations.own_host import HostTaken, own_host
from controlplane.operations.rounds.reconcile import reconcile_host, stop_computes
from controlplane.services.endpoints import restart_endpoint
from controlplane.services.errors import ServiceError
from controlplane.services.monitoring.health import on_replaced_postgres


class Command(ServiceCommand):
    help = (
        "Stops all computes of this host, so that it can be shut down, or restarts those whose "
        "Postgres was replaced by another minor release since they were started."
    )
    refusals = (StateDirectoryUnusable, StopFailed)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["stop", "restart"])
        parser.add_argument(
            "--all", action="store_true", help="for `stop`: every compute of this host"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action == "restart":
            self._restart()
            return
        if not options["all"]:
            raise CommandError("stop needs --all")
        check_ours()
        # Both are held until the end, so that no compute is started meanwhile.
        with hold_state_directory(), sole_holder("worker") as alone:
            if not alone:
                raise CommandError("the worker runs, and would start computes again: stop it")
            running = compute.running_branches()
            stop_computes(running)
            self._record()
        ended = sum(endpoint is not None for endpoint in running.values())
        self.stdout.write(f"Computes stopped: {ended}.")

    def _restart(self) -> None:
        """Schedule the restarts; the worker runs them, as many at once as its lanes allow."""
        of_host = on_replaced_postgres().filter(host=settings.HOST_NAME)
        outdated = of_host.select_related("project__account")
        if not outdated:
            self.stdout.write("No compute runs on a replaced release of Postgres.")
        for endpoint in outdated:
            try:
                restart_endpoint(endpoint.project.account, endpoint.project_id, endpoint.id)
                self.stdout.write(f"{endpoint.id} has Postgres {endpoint.pg_release}: restarting")
            except ServiceError as error:
                self.stderr.write(f"{endpoint.id} is not restarted: {error.message}")

    def _record(self) -> None:
        """Note in the rows that nothing runs. If the database is stopped too, the next worker does
        it."""
        try:
            reconcile_host(own_host())
        except (OperationalError, HostTaken) as error:
            self.stderr.write(f"The next worker will record it: {error}".strip())
        finally:
            connections.close_all()
