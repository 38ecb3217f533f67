"""The form that says how to connect: from which program, and with which role, database, address."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms

from console.api.resources.endpoints import Endpoint
from console.api.resources.roles import Database
from console.endpoints.connection_strings import LABELS, URL, Target
from console.forms.fields import OpenChoiceField, offer

# The address is the endpoint's own host name. The API's URI may have another, which always resolves
# and takes the endpoint's id as an option.
BY_NAME = "name"


@dataclass(frozen=True)
class ChosenConnection:
    """The choices of the connection form, with defaults for those that were left out."""

    role: str
    database: str
    pooled: bool
    style: str
    address: str
    branch: str

    @property
    def fields(self) -> Sequence[tuple[str, str]]:
        """The fields that ask for the same connection again."""
        pooled = [("pooled", "on")] if self.pooled else []
        by_name = [("address", self.address)] if self.address else []
        return [
            ("branch", self.branch),
            ("role", self.role),
            ("database", self.database),
            *pooled,
            ("style", self.style),
            *by_name,
        ]

    @property
    def query(self) -> str:
        return urlencode(self.fields)

    def target(self, uri: str, endpoint: Endpoint) -> Target:
        """Return where the API's `uri` leads, with the chosen address.

        Raises ValueError if it is no connection URI.
        """
        found = Target.read(uri)
        if self.address != BY_NAME or not found.names_endpoint_by_option:
            return found
        return found.at(endpoint.pooled_host if self.pooled else endpoint.host)


class ConnectionForm(forms.Form):
    """How to connect. It is always usable: omitted or unknown choices have defaults."""

    style = OpenChoiceField(label="For", required=False)
    role = OpenChoiceField(label="Role", required=False)
    database = OpenChoiceField(label="Database", required=False)
    address = OpenChoiceField(label="Address", required=False)
    pooled = forms.BooleanField(label="Pooled", required=False)
    branch = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, data: Any, *, endpoint: Endpoint, roles: Sequence[str], databases: Sequence[Database]
    ) -> None:
        names = [database.name for database in databases]
        database = data.get("database") if data.get("database") in names else names[0]
        owner = next(one.owner_name for one in databases if one.name == database)
        usual = owner if owner in roles else roles[0]
        role = data.get("role") if data.get("role") in roles else usual
        chosen = {
            "role": role,
            "database": database,
            "style": data.get("style") if data.get("style") in LABELS else URL,
            "address": BY_NAME if data.get("address") == BY_NAME else "",
            "branch": endpoint.branch_id,
        }
        if data.get("pooled"):
            chosen["pooled"] = "on"
        super().__init__(chosen)
        offer(self, "style", LABELS.items())
        offer(self, "role", ((name, name) for name in roles))
        offer(self, "database", ((name, name) for name in names))
        self._endpoint = endpoint

    def chosen(self) -> ChosenConnection:
        """Return the choices, once the form is validated."""
        return ChosenConnection(**self.cleaned_data)

    def offer_addresses(self, uri: str) -> None:
        """Offer the addresses. The first is that of the API's `uri`, which always resolves.

        If that is the endpoint's own host name, there is no second one to choose.
        """
        found = Target.read(uri)
        if not (found.names_endpoint_by_option and self._endpoint.host):
            del self.fields["address"]
            return
        offer(
            self,
            "address",
            [
                ("", f"{found.host} (needs no DNS)"),
                (BY_NAME, f"{self._endpoint.host} (if the name resolves)"),
            ],
        )
