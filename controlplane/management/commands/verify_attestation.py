"""`manage.py verify_attestation FILE`: checks the proof that the data of a branch is masked."""

import json
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from controlplane.deployment.service_command import ServiceCommand
from controlplane.models import Project
from controlplane.operations import masked_data


class Command(ServiceCommand):
    help = (
        "Checks that the attestation in FILE (of GET …/branches/{branch_id}/attestation) was made "
        "by this service and not changed. Prints what it attests."
    )
    refusals = (masked_data.AttestationInvalid,)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("file", metavar="FILE")
        parser.add_argument(
            "--public-key",
            metavar="KEY",
            help="the project's key, in base64, to check the attestation of another service",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            content = json.loads(Path(options["file"]).read_text())
            attestation = content.get("attestation", content)
            project_id = str(attestation["project_id"])
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CommandError(f"{options['file']} has no attestation: {error}") from None
        key = options["public_key"]
        if key is None:
            project = Project.objects.filter(id=project_id).exclude(masking_secret="").first()
            if project is None:
                raise CommandError(f"the project {project_id} is not known here: add --public-key")
            key = masked_data.public_key(project)
        masked_data.verify(attestation, key)
        self.stdout.write(
            f"valid: the branch {attestation['branch_id']} has the data of "
            f"{attestation['source_id']} as copied at {attestation['copied_at']}; "
            f"{masked_data.count_masked(attestation)} columns are masked; "
            f"policy: {attestation['policy']}"
        )
