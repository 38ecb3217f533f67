"""`manage.py certificate_authority`: prints the authority for clients that verify certificates."""

from typing import Any

from django.core.management.base import CommandError

from controlplane.deployment.service_command import ServiceCommand
from controlplane.services.hosts import certificate_authorities


class Command(ServiceCommand):
    help = (
        "Prints, in PEM, the certificate authority that clients with sslmode=verify-full name in "
        "sslrootcert; of all regions, one after the other."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        pem = certificate_authorities()
        if not pem:
            raise CommandError(
                "there is none: the operator provides the certificates (PERCH_TLS_CERTIFICATE), or "
                "no proxy has been started yet"
            )
        self.stdout.write(pem, ending="")
