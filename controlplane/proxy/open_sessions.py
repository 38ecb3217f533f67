"""Ends clients' sessions whose role was deleted, may not log in any more or got another password by
the API. Called for each change of an endpoint that is received (`changes`)."""

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
        """Ends those of the endpoint's clients that must go. Raises ControlPlaneSilent."""
        names = {client.role for client in clients.of_endpoint(endpoint_id)}
        if not names:
            return
        ask = partial(find_roles, endpoint_id=endpoint_id, names=sorted(names))
        roles = await self._database.ask(ask)
        # Clients that came during the query, with a role that it did not ask for, are skipped: the
        # rows by which they were admitted are at least as new as its answer.
        for client in clients.of_endpoint(endpoint_id):
            role = roles.get(client.role)
            if client.role in names and (reason := _why_ended(client, role)):
                # After a branch's reset its roles are others of the same names. A client that is on
                # its way goes on, if its password is also the new role's.
                if role and _is_another(client, role) and client.confirm_again():
                    continue
                fields = {"endpoint": endpoint_id, "role": client.role, "reason": reason}
                log.info("session ended", extra=fields)
                client.end_login(reason)


def _why_ended(client: Client, role: RoleState | None) -> str:
    """Returns why the session must end; "" if it may go on."""
    if client.identity.row is None:
        # SQL has created the role, and the rows did not have it when the client came.
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
    """True if the role is another one with the same name as the session's."""
    identity = client.identity
    if identity.row != role.id:
        return True
    return None not in (identity.oid, role.compute_oid) and identity.oid != role.compute_oid
