"""Ends clients' sessions whose role is gone, may not log in any more or was given another password
by the API. Called with each change of an endpoint that is heard (`changes`)."""

import logging
from dataclasses import replace
from functools import partial

from controlplane.models.connecting import RoleState, find_roles
from controlplane.proxy.control_database import ControlDatabase
from controlplane.proxy.directory import Client, Clients

log = logging.getLogger(__name__)


class OpenSessions:
    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    async def check(self, endpoint_id: str, clients: Clients) -> None:
        """End those of the endpoint's clients that must go. Raises ControlPlaneSilent."""
        names = {client.role for client in clients.of_endpoint(endpoint_id)}
        if not names:
            return
        ask = partial(find_roles, endpoint_id=endpoint_id, names=sorted(names))
        roles = await self._database.ask(ask)
        # Those that came while we asked know more than our answer, or as much.
        for client in clients.of_endpoint(endpoint_id):
            role = roles.get(client.role)
            if client.role in names and (reason := _why_ended(client, role)):
                # A branch that is reset has roles of the same names: whoever waits for it goes on,
                # where the password is the same.
                if role and _is_another(client, role) and client.confirm_again():
                    continue
                fields = {"endpoint": endpoint_id, "role": client.role, "reason": reason}
                log.info("session ended", extra=fields)
                client.end_login(reason)


def _why_ended(client: Client, role: RoleState | None) -> str:
    """ "" where the session goes on."""
    if client.identity.row is None:
        # Made by SQL, and unknown to the rows when the client came.
        if role is None or role.compute_oid != client.identity.oid:
            return ""
        client.identity = replace(client.identity, row=role.id)
    identity = client.identity
    if role is None or _is_another(client, role):
        return "the role was deleted"
    if role.no_login:
        return "the role may not log in any more"
    if role.sessions_end_at is not None and (
        identity.sessions_end_at is None or role.sessions_end_at > identity.sessions_end_at
    ):
        return "the role's password was reset"
    return ""


def _is_another(client: Client, role: RoleState) -> bool:
    """Whether the role only has the name of the one that the session is of."""
    identity = client.identity
    if identity.row != role.id:
        return True
    return None not in (identity.oid, role.compute_oid) and identity.oid != role.compute_oid
