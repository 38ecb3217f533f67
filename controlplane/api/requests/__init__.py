"""What callers send. Unknown fields are ignored. Null counts as absent, except where it removes an
expiry.

The schemas of bodies are pydantic models, not ninja's `Schema`. `Schema` reads the attributes of
any object, so it would accept a list as an object without any fields.
"""
