"""`manage.py upgrade_project PROJECT --to 18`: moves a project to a newer major version of
Postgres."""

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.deployment.service_command import ServiceCommand
from controlplane.models import Operation, OperationStatus
from controlplane.operations.engine.scheduling import HostAway
from controlplane.services import project_changes
from controlplane.services.errors import ServiceError

POLL_INTERVAL = 0.5  # seconds


class Command(ServiceCommand):
    help = "Moves a project to a newer major version of Postgres that its host has."
    refusals = (ServiceError, HostAway)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "project", metavar="PROJECT", help="its id, such as quiet-heron-12345678"
        )
        parser.add_argument("--to", type=int, required=True, metavar="MAJOR", help="such as 18")
        parser.add_argument(
            "--check",
            action="store_true",
            help="only try it on copies of all branches, and change nothing",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, project: str, to: int, check: bool, **options: Any) -> None:
        *_, operation = project_changes.upgrade_project(project, to=to, only_check=check)
        self.stdout.write(f"Operation {operation.id} of project {project}. Ctrl-C cancels it.")
        try:
            ended = self._wait_for(operation)
        except KeyboardInterrupt:
            if why_not := project_changes.cancel_upgrade(operation):
                self.stderr.write(f"Not cancelled: {why_not}.")
            ended = self._wait_for(operation)
        if ended.status != OperationStatus.FINISHED:
            raise CommandError(ended.error or f"the operation is {ended.status}")
        outcome = f"can be upgraded to Postgres {to}" if check else f"has Postgres {to} now"
        self.stdout.write(f"The project {outcome}.")

    def _wait_for(self, operation: Operation) -> Operation:
        """Show the steps until the operation has ended; return it as it ended."""
        shown = ""
        while True:
            try:
                row = Operation.objects.get(id=operation.id)
                step = str(row.steps[-1]["name"]) if row.steps else ""
                if row.is_finished:
                    return row
            except (OperationalError, InterfaceError):
                close_old_connections()
                step = "Perch's own database does not answer, still waiting"
            if step != shown:
                shown = step
                self.stdout.write(f"  {step.replace('_', ' ')}")
                self.stdout.flush()
            time.sleep(POLL_INTERVAL)
