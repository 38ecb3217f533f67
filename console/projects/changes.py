"""A project's settings, and the forms to create, change and delete one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from console.api.parallel import in_parallel, part
from console.api.resources.projects import Region
from console.forms import losses
from console.forms.api_requests import body_of
from console.forms.fields import PLAIN, ConfirmForm, OpenChoiceField, RenameForm, offer
from console.pages.form_errors import problems_beside
from console.pages.responses import FormPage, choices, done, show_form
from console.request import ConsoleRequest
from console.templatetags.console_tags import period

# Seconds.
PERIODS = (0, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
NO_HISTORY = "No history"
DEFAULT_VERSION = "The region's default"


class ProjectForm(forms.Form):
    name = forms.CharField(
        required=False,
        help_text="Leave empty to use its id.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True}),
    )
    region_id = OpenChoiceField(label="Region", required=False)
    pg_version = forms.IntegerField(
        label="Postgres",
        required=False,
        widget=forms.Select(attrs={"data-number": ""}),
    )

    def offer_regions(self, regions: Iterable[Region]) -> None:
        found = list(regions)
        offer(self, "region_id", ((region.id, region.name) for region in found))
        if not found and not self.is_bound:
            del self.fields["region_id"]
        self.initial.setdefault(
            "region_id", next((region.id for region in found if region.default), "")
        )
        versions = sorted({one for region in found for one in region.pg_versions}, reverse=True)
        if len(versions) < 2 and not self.data.get("pg_version"):
            del self.fields["pg_version"]
            return
        widget = cast(forms.Select, self.fields["pg_version"].widget)
        widget.choices = [("", DEFAULT_VERSION), *((one, str(one)) for one in versions)]


@require_http_methods(["GET", "HEAD", "POST"])
def create(request: ConsoleRequest) -> HttpResponse:
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            project = request.api.create_project(body_of(form, "project_create"))
            url = reverse("project", args=[project.id])
            return done(request, url, f"Project {project.name} is being created.")
    form.offer_regions(choices(request, request.api.regions))
    page = FormPage(
        title="Create project",
        intro="The project starts with one branch and a read-write endpoint.",
        submit="Create project",
        back=reverse("dashboard"),
    )
    return show_form(request, form, page)


@require_safe
def settings(request: ConsoleRequest, project_id: str) -> HttpResponse:
    project = request.api.project(project_id)
    context = {
        "project": project,
        "settings": list(_named_values(project.settings)),
        "defaults": list(_named_values(project.default_endpoint_settings)),
    }
    return render(request, "project_settings.html", context)


def _named_values(settings: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting's name with its value in words."""
    for name, value in settings.items():
        label = f"{within} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _named_values(value, label)
        elif isinstance(value, bool):
            yield label, "yes" if value else "no"
        elif isinstance(value, list):
            yield label, ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield label, str(value)


@require_http_methods(["GET", "HEAD", "POST"])
def rename(request: ConsoleRequest, project_id: str) -> HttpResponse:
    url = reverse("project_settings", args=[project_id])
    form = RenameForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "name"):
            request.api.update_project(project_id, body_of(form, "project_rename"))
            return done(request, url, "Project renamed.", is_live=False)
    if request.method != "POST":
        form.initial["name"] = request.api.project(project_id).name
    page = FormPage(title="Rename project", submit="Rename", back=url)
    return show_form(request, form, page)


class HistoryForm(forms.Form):
    retention = forms.IntegerField(
        label="Keep history for",
        help_text="A shorter time removes what is older for good. The account's plan may limit it.",
        widget=forms.Select(attrs={"data-number": ""}),
    )

    def offer_periods(self, present: int | None) -> None:
        """Offer the usual periods, and the present one."""
        seconds = sorted({*PERIODS, present or 0})
        widget = cast(forms.Select, self.fields["retention"].widget)
        widget.choices = [(one, period(one) if one else NO_HISTORY) for one in seconds]
        self.initial["retention"] = present


@require_http_methods(["GET", "HEAD", "POST"])
def history(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Change for how long the history of the project's branches is kept."""
    url = reverse("project_settings", args=[project_id])
    form = HistoryForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "retention"):
            request.api.update_project(project_id, body_of(form, "project_history"))
            return done(request, url, "History retention changed.", is_live=False)
    projects = choices(request, lambda: [request.api.project(project_id)])
    form.offer_periods(projects[0].history_retention if projects else None)
    page = FormPage(
        title="History retention",
        intro="Every moment of this time can become a branch, or replace a branch's data.",
        submit="Save",
        back=url,
    )
    return show_form(request, form, page)


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: ConsoleRequest, project_id: str) -> HttpResponse:
    form = ConfirmForm(request.POST or None, expected=project_id)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form):
            request.api.delete_project(project_id)
            return done(request, reverse("dashboard"), f"Project {project_id} is deleted.")
    # A page must not ask to confirm the deletion of a project that does not exist.
    found = choices(request, lambda: [_with_losses(request, project_id)])
    name, lost = found[0] if found else (project_id, [])
    page = FormPage(
        title=f"Delete project {name}",
        intro="This permanently deletes:",
        submit="Delete project",
        danger=True,
        back=reverse("project_settings", args=[project_id]),
        losses=lost,
    )
    return show_form(request, form, page)


def _with_losses(request: ConsoleRequest, project_id: str) -> tuple[str, list[losses.Loss]]:
    """Return the project's name, and what is lost with it. Raises NotFound."""
    api = request.api
    project, branches, endpoints, snapshots = in_parallel(
        lambda: api.project(project_id),
        part(lambda: api.branches(project_id)),
        part(lambda: api.endpoints(project_id)),
        part(lambda: api.snapshots.list(project_id)),
    )
    return project.name, losses.of_project(branches, endpoints, snapshots)
