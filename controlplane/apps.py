from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ControlPlane(AppConfig):
    name = "controlplane"
    verbose_name = "Perch's control plane"

    def ready(self) -> None:
        # It imports psycopg, which the settings of the processes must come before.
        from controlplane.database.version import record_compatibility

        post_migrate.connect(record_compatibility, sender=self)
