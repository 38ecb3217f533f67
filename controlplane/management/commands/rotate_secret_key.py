"""`manage.py rotate_secret_key`: encrypts what is stored with the present PERCH_SECRET_KEY."""

from typing import Any

import psycopg
from django.core.management.base import CommandError

from controlplane.database.secret_keys import (
    OtherSecretKey,
    RotationRefused,
    refuse_other_key,
    rotate,
)
from controlplane.database.version import OtherVersion, refuse_other_version
from controlplane.deployment.service_command import ServiceCommand


class Command(ServiceCommand):
    help = (
        "Encrypts everything that is stored with the present PERCH_SECRET_KEY, while the service "
        "runs. Values are read with PERCH_SECRET_KEY_FALLBACKS too."
    )
    refusals = (OtherVersion, OtherSecretKey, RotationRefused)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            refuse_other_version()
            refuse_other_key()
            rotate(self._say)
        except psycopg.OperationalError as error:
            raise CommandError(f"the database does not answer: {error}") from error
