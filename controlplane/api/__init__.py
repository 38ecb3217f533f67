"""The management API, `/api/v2`."""
