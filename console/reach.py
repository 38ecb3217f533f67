"""Says in advance what the signed-in key may not do. In the end, the API decides."""

from console import sessions
from console.request import ConsoleRequest

READ_ONLY = "You are signed in with a read-only key: it changes nothing, and sees no password."
# The pages whose forms concern the whole account, by the beginning of the names of their URLs.
OF_THE_ACCOUNT = ("project_create", "project_delete", "api_key_", "webhook_")


def out_of_reach(request: ConsoleRequest) -> str:
    """Return why the key cannot use the form at this address; "" if it may be able to."""
    sign_in = sessions.present(request)
    if sign_in is None or request.resolver_match is None:
        return ""
    if sign_in.account.read_only:
        return READ_ONLY
    only = sign_in.account.project_id
    if only and (request.resolver_match.url_name or "").startswith(OF_THE_ACCOUNT):
        return f"You are signed in with a key of the project {only} alone: this is beyond it."
    return ""
