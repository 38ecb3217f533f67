"""The response fields for the limits of an API key."""

from ninja import Schema
from pydantic import SerializerFunctionWrapHandler, model_serializer

from controlplane.api.http.fields import Timestamp


class KeyLimits(Schema):
    """What an API key is limited to. Limits that the key does not have are left out, because
    neonctl treats a `project_id` of null as a key that reaches nothing."""

    project_id: str | None = None
    read_only: bool
    expires_at: Timestamp | None = None

    @model_serializer(mode="wrap")
    # It has no return annotation: with one, the OpenAPI document would show the annotated type
    # instead of the model's fields.
    def without_absent(self, serialized: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        limits = KeyLimits.model_fields
        fields = serialized(self).items()
        return {name: value for name, value in fields if value is not None or name not in limits}
