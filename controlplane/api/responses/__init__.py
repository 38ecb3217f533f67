"""What callers get: the fields of each resource, read from its row.

What is None is left out (`exclude_none`), as clients of this API expect.
"""
