"""The document that the API publishes about itself (`/api/v2/openapi.json`), and its page
(`/api/v2/docs`).

What belongs to a route stands beside it: its function's name is the operation's id, its docstring
the description, its schemas what comes and goes. The rest follows from that by the rules here:
which errors a route can give, where its answer leads on to, what each field means and an example of
it. A route or a field that these know nothing of fails `tests/controlplane/test_document.py`, which
names it.
"""
