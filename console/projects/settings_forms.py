"""The forms that change a project's settings."""

import ipaddress
from abc import abstractmethod
from typing import Any, cast

from django import forms

from console.api.fields import inner, number, texts
from console.api.resources.projects import Project
from console.endpoints.forms import SettingFields
from console.forms.endpoint_settings import ENDPOINT_SETTINGS
from console.forms.fields import PLAIN, LinesField, ScaledField, lines_of
from console.projects.usage import QUOTAS
from console.templatetags.console_tags import period

# Seconds.
PERIODS = (0, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
NO_HISTORY = "No history"


class SettingsForm(forms.Form):
    # The project that is changed; None if it cannot be read.
    project: Project | None = None

    @abstractmethod
    def fill_in(self, project: Project) -> None:
        """Fill in the project's present settings."""


class HistoryForm(SettingsForm):
    retention = forms.IntegerField(
        label="Keep history for",
        help_text="A shorter time removes what is older for good. The account's plan may limit it.",
        widget=forms.Select(),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offer(0)

    def fill_in(self, project: Project) -> None:
        self._offer(project.history_retention or 0)
        self.initial["retention"] = project.history_retention

    def _offer(self, present: int) -> None:
        widget = cast(forms.Select, self.fields["retention"].widget)
        periods = sorted({*PERIODS, present})
        widget.choices = [(one, period(one) if one else NO_HISTORY) for one in periods]


class DurabilityForm(SettingsForm):
    durability = forms.ChoiceField(
        label="Each commit is on",
        choices=(("host", "The disk of its host"), ("region", "The disks of two hosts")),
        help_text="A client learns that a commit is done once it is there. With two hosts, the loss"
        " of one loses no commit, and each commit takes longer. If no second host can be reached,"
        " commits go on without one; the activity page"
        " says so.",
    )

    def fill_in(self, project: Project) -> None:
        self.initial["durability"] = project.settings.get("durability", "host")


class AddressesForm(SettingsForm):
    ips = LinesField(
        label="Addresses",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={**PLAIN, "rows": 5}),
    )
    protected_branches_only = forms.BooleanField(
        label="Only for protected branches",
        required=False,
        help_text="Other branches accept clients from everywhere.",
    )
    block_public_connections = forms.BooleanField(
        label="Refuse public addresses",
        required=False,
        help_text="Also refuses listed ones. Only private networks may connect.",
    )
    block_outbound_connections = forms.BooleanField(
        label="Block outbound connections",
        required=False,
        help_text="The project's endpoints then reach no other servers, such as publishers.",
    )
    without_mine = forms.BooleanField(label="Save the list without my address", required=False)

    def __init__(self, *args: Any, own: str, blocks_outbound: bool) -> None:
        super().__init__(*args)
        self.own = own
        places = "One per line: an address, a range such as 192.0.2.0/24, or a first and a last"
        places += " address such as 192.0.2.1-192.0.2.9. An empty list allows all addresses."
        if own:
            places += f" The console sees your address as {own}."
            self.fields["ips"].widget.attrs["placeholder"] = own
        self.fields["ips"].help_text = places
        if not blocks_outbound:
            del self.fields["block_outbound_connections"]
        typed = lines_of(str(self.data.get("ips", "")))
        if not self.is_bound or self._has_own(typed):
            del self.fields["without_mine"]

    def fill_in(self, project: Project) -> None:
        allowed = inner(project.settings, "allowed_ips")
        self.initial["ips"] = texts(allowed, "ips")
        self.initial["protected_branches_only"] = allowed.get("protected_branches_only") is True
        for name in ("block_public_connections", "block_outbound_connections"):
            self.initial[name] = project.settings.get(name) is True

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if "without_mine" in self.fields and not cleaned.get("without_mine"):
            self.add_error(
                "without_mine",
                f"Your own address {self.own} is not in the list: Postgres clients on this"
                " computer, Query and Tables could no longer connect. Add it, or confirm.",
            )
        return cleaned

    def _has_own(self, ips: list[str]) -> bool:
        """True if the list allows the browser's address, or everything. Lines that are no addresses
        are left to the API."""
        try:
            own = ipaddress.ip_address(self.own)
        except ValueError:
            return True
        return not ips or any(_holds(one, own) for one in ips)


def _holds(allowed: str, own: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True if a line of the list allows the address."""
    first, _, last = allowed.partition("-")
    try:
        if last:
            low, high = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
            return low.version == own.version == high.version and int(low) <= int(own) <= int(high)
        return own in ipaddress.ip_network(allowed, strict=False)
    except ValueError:
        return False


class QuotasForm(SettingsForm):
    """The fields have the API's names. An empty field is no limit."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for one in QUOTAS:
            self.fields[one.name] = ScaledField(
                label=f"{one.label} ({one.unit})",
                scale=one.scale,
                required=False,
                min_value=0,
                show_hidden_initial=True,
                widget=forms.NumberInput(attrs={"autocomplete": "off", "placeholder": "no limit"}),
            )
        if self.is_bound:
            self.fields["suspend_now"] = forms.BooleanField(
                label="Suspend the endpoints now", required=False
            )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        amounts = [(one, one.used(self.project) or 0) for one in QUOTAS] if self.project else []
        over = [
            (one, amount)
            for one, amount in amounts
            if 0 < (cleaned.get(one.name) or 0) * one.scale <= amount
        ]
        if not over:
            del self.fields["suspend_now"]
        elif not cleaned.get("suspend_now"):
            used = ", ".join(f"{one.label.lower()}: {one.words(amount)}" for one, amount in over)
            self.add_error(
                "suspend_now",
                f"The project has used more already ({used}): its endpoints would be suspended, and"
                " none would start until the next period. Raise the quota, or confirm.",
            )
        return cleaned

    def fill_in(self, project: Project) -> None:
        limits = inner(project.settings, "quota")
        for one in QUOTAS:
            limit = number(limits, one.name)
            self.initial[one.name] = f"{limit / one.scale:.12g}" if limit else ""
            used = one.used(project)
            if used is not None:
                self.fields[one.name].help_text = f"Used in this period: {one.words(used)}."
        self.fields["logical_size_bytes"].help_text = "Of each branch."


class DefaultsForm(SettingFields, SettingsForm):
    offered = tuple(one for one in ENDPOINT_SETTINGS if one.is_in_change_form)

    def fill_in(self, project: Project) -> None:
        for one in self.offered:
            if one.attribute in project.default_endpoint_settings:
                value = number(project.default_endpoint_settings, one.attribute)
                self.initial[one.field] = f"{value:g}"
                self.drop_default(one.field)
