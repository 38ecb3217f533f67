"""The traces of requests, operations and wakes: which of them work belongs to (`context`), and what
is sent of them to OpenTelemetry (`spans`)."""
