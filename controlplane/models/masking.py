"""How a branch is masked, and the proof that it was."""

from django.db import models

from controlplane import clock
from controlplane.models.project import Project


class Masking(models.Model):
    """Of one masked branch; branches that were copied from it name it too (`Branch.masked_as`). It
    is removed when no branch does."""

    # That of the branch.
    id = models.CharField(primary_key=True, max_length=60)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="maskings")
    # As in the API: [{database_name, schema_name, table_name, column_name, masking_function or
    # masking_value}].
    rules = models.JSONField(default=list)
    # What was masked and scanned, signed (`masked_data`); None before the data was made.
    attestation = models.JSONField(null=True)
    created_at = models.DateTimeField(default=clock.now)
    updated_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.id
