"""The OpenAPI document of the API (`/api/v2/openapi.json`), and its page (`/api/v2/docs`).

Each route defines its own part: the function's name becomes the operation's id, the docstring
becomes the description, and the schemas describe the request and the response. The rules in this
package add the rest: the errors that a route can return, the calls that can follow its response,
and a description and an example of each field. If a rule does not cover a route or a field,
`tests/controlplane/api/test_document.py` fails and names it.
"""
