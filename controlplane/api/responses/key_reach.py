"""What an API key is limited to, as callers get it."""

from ninja import Schema
from pydantic import SerializerFunctionWrapHandler, model_serializer

from controlplane.api.fields import Timestamp


class KeyReach(Schema):
    """What a key is limited to. What does not limit it is left out: neonctl takes a `project_id`
    of null for a key that reaches nothing."""

    project_id: str | None = None
    read_only: bool
    expires_at: Timestamp | None = None

    @model_serializer(mode="wrap")
    # Without the type of what it returns the OpenAPI document has the model's own.
    def without_absent(self, serialized: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        limits = KeyReach.model_fields
        told = serialized(self).items()
        return {name: value for name, value in told if value is not None or name not in limits}
