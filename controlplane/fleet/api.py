"""The calls about hosts. Operators change and remove hosts, and move projects between them. A new
machine takes its invitation from `/hosts/join`."""

from typing import Any

import orjson
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST
from pydantic import BaseModel, Field

from controlplane.api.http.auth import AuthenticatedRequest
from controlplane.api.http.errors import error_response
from controlplane.api.http.fields import Attributes, Text
from controlplane.api.http.routing import Router
from controlplane.api.responses.operations import OperationsOut
from controlplane.api.responses.status import LostHost, OneHost
from controlplane.fleet import lost_hosts, moves
from controlplane.fleet.invitations import take_invitation
from controlplane.services import hosts
from controlplane.services.account_management import acting_for, check_operator
from controlplane.services.monitoring import health

router = Router(tags=["status"])


class ChangedHost(Attributes):
    draining: bool | None = Field(
        None,
        description="Whether new projects are placed on other hosts. If set, its projects are also "
        "moved to the other hosts of its region, as far as these can have them",
    )


class UpdateHost(BaseModel):
    host: ChangedHost


class MoveProject(BaseModel):
    host_id: Text = Field(
        description="The host that the project is to live on: another one of its region"
    )


@router.patch("/status/hosts/{host_id}", response=OneHost, summary="Drain or resume a host")
def update_host(request: AuthenticatedRequest, host_id: Text, body: UpdateHost) -> dict[str, Any]:
    """Decides whether new projects are placed on the host. One that is drained has its projects
    moved to the other hosts of its region, by operations. Only for the accounts that operate the
    service."""
    check_operator(request.auth)
    if body.host.draining is not None:
        host = hosts.drain_host(host_id, draining=body.host.draining)
        if body.host.draining:
            with acting_for(request.auth):
                moves.empty_host(host)
    return {"host": health.host_status(hosts.find_host(host_id))}


@router.delete("/status/hosts/{host_id}", response=OneHost, summary="Remove a host")
def delete_host(request: AuthenticatedRequest, host_id: Text) -> dict[str, Any]:
    """Removes a host that has no projects and whose worker is stopped; 409 otherwise. Returns it
    as it was. Only for the accounts that operate the service."""
    check_operator(request.auth)
    removed = health.host_status(hosts.find_host(host_id))
    hosts.remove_host(host_id)
    return {"host": removed}


@router.post(
    "/status/hosts/{host_id}/lost", response=LostHost, summary="Declare a host lost for good"
)
def declare_host_lost(request: AuthenticatedRequest, host_id: Text) -> dict[str, Any]:
    """Has the other hosts of the region restore the host's projects from the history's store; what
    was committed after the last copy is lost. The host does not serve them any more, even if it
    comes back. 409 if its worker is alive, or if nothing could be restored. Only for the accounts
    that operate the service."""
    check_operator(request.auth)
    with acting_for(request.auth):
        found = lost_hosts.declare_lost(host_id)
    return {
        "host": health.host_status(hosts.find_host(host_id)),
        "restored_elsewhere": found.taken,
        "without_copy": found.without_copy,
        "without_place": found.without_place,
    }


@router.post(
    "/projects/{project_id}/move",
    response=OperationsOut,
    exclude_none=True,
    tags=["projects"],
    summary="Move a project to another host",
)
def move_project(
    request: AuthenticatedRequest, project_id: str, body: MoveProject
) -> dict[str, Any]:
    """Moves the project, of any account, with all its branches, snapshots and history to another
    host of its region. Its active endpoints are suspended meanwhile, and started again there. Only
    for the accounts that operate the service."""
    check_operator(request.auth)
    with acting_for(request.auth):
        return {"operations": moves.move(project_id, to=body.host_id)}


@require_POST
def join_host(request: HttpRequest) -> HttpResponse:
    """Respond without authentication: who knows the invitation's name may take it, once, and only
    who has the whole token can read it. The body is {"invitation": NAME}."""
    try:
        name = orjson.loads(request.body)["invitation"]
    except (ValueError, KeyError, TypeError):
        return error_response(request, 400, 'the body must be {"invitation": NAME}')
    content = take_invitation(name) if isinstance(name, str) else None
    if content is None:
        return error_response(
            request, 404, "there is no such invitation, or it was used, or it has expired"
        )
    return JsonResponse({"content": content})
