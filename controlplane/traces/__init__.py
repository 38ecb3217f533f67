"""Traces of requests, operations and wakes: the trace that work belongs to (`context`), and the
spans that are sent to OpenTelemetry (`spans`)."""
