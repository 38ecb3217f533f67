"""What callers get: the response fields of each resource, read from its row.

A field that has a default is left out if it is None, as clients of this API expect. A field without
a default is always present (see `api.http.routing`).
"""
