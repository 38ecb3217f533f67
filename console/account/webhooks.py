"""The pages of webhooks: the URLs that the account's events are sent to, and their deliveries."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from django import forms
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.api.parallel import in_parallel
from console.api.resources.account import ALL_EVENTS, Webhook
from console.events.types import GROUPS, event_type
from console.forms.api_requests import body_of
from console.forms.fields import PLAIN, OpenChoiceField, offer_projects
from console.forms.losses import Loss
from console.pages.live_regions import Polling, Shown, page_and_region
from console.pages.problems import problems_beside
from console.pages.responses import (
    FormPage,
    act,
    choices,
    done,
    show_confirmation,
    show_dialog,
)
from console.pages.statuses import delivery_status
from console.request import ConsoleRequest


class WebhookForm(forms.Form):
    url = forms.CharField(
        label="URL",
        help_text="Perch sends each event to this URL as a signed JSON POST request. A private "
        "address is refused unless the operator of the service allows its network.",
        widget=forms.TextInput(attrs={**PLAIN, "autofocus": True, "inputmode": "url"}),
    )
    description = forms.CharField(required=False, widget=forms.TextInput(attrs=PLAIN))
    project_id = OpenChoiceField(label="Project", required=False)
    event_types = forms.MultipleChoiceField(
        label="Events",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Select none to receive all events, including new types.",
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        cast(forms.MultipleChoiceField, self.fields["event_types"]).choices = [
            (group, [(kind.value, kind.label) for kind in kinds]) for group, kinds in GROUPS.items()
        ]


# The page of a webhook shows this many of its latest deliveries.
MAX_SHOWN_DELIVERIES = 30
# While a delivery is pending and younger than POLLING_TIMEOUT, the page polls, to show its outcome.
POLLING_TIMEOUT = timedelta(seconds=30)
POLL_INTERVAL_MS = 1_000  # milliseconds


def _list(request: ConsoleRequest) -> Shown:
    rows = [(one, _event_labels(one)) for one in request.api.webhooks.list()]
    return {"rows": rows}, Polling()


def _event_labels(webhook: Webhook) -> list[str]:
    if list(webhook.event_types) == [ALL_EVENTS]:
        return ["All events"]
    return [event_type(value).label for value in webhook.event_types]


index = page_and_region(_list, "webhooks.html", "_webhooks.html")


def create(request: ConsoleRequest) -> HttpResponse:
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with problems_beside(form, "url"):
            return _show_secret(
                request, request.api.webhooks.create(body_of(form, "webhook_create"))
            )
    offer_projects(form, choices(request, request.api.all_projects))
    return FormPage(
        title="Create webhook",
        intro="Sends events of the account to your URL.",
        back=reverse("webhooks"),
    ).show(request, form)


def edit(request: ConsoleRequest, webhook_id: str) -> HttpResponse:
    page = FormPage(
        title="Edit webhook",
        intro="Deliveries that are still tried go to the new URL.",
        submit="Save",
        back=reverse("webhook", args=[webhook_id]),
    )
    form = WebhookForm(request.POST if request.method == "POST" else None)
    # The API could change its project, but not to all projects again.
    del form.fields["project_id"]
    if request.method != "POST":
        found = request.api.webhooks.get(webhook_id)
        form.initial = {
            "url": found.url,
            "description": found.description,
            "event_types": [one for one in found.event_types if one != ALL_EVENTS],
        }
    elif form.is_valid():
        with problems_beside(form, "url"):
            request.api.webhooks.update(webhook_id, body_of(form, "webhook_edit"))
            return done(request, page.back, "Webhook changed.", is_live=False)
    return page.show(request, form)


def _show_secret(request: ConsoleRequest, webhook: Webhook) -> HttpResponse:
    context = {
        "words": "The secret is shown only once. Use it to verify the signatures of messages, "
        "as Standard Webhooks specifies.",
        "what": "secret",
        "secret": webhook.secret,
        "is_shown_once": True,
        "back": reverse("webhook", args=[webhook.id]),
    }
    # No other answer than that to a POST may hold the secret.
    return show_dialog(request, "_secret.html", context, title="Webhook secret")


def _detail_context(request: ConsoleRequest, webhook_id: str) -> Shown:
    webhook, deliveries = in_parallel(
        lambda: request.api.webhooks.get(webhook_id),
        lambda: request.api.webhooks.deliveries(webhook_id, limit=MAX_SHOWN_DELIVERIES),
    )
    context = {
        "webhook": webhook,
        "most": MAX_SHOWN_DELIVERIES,
        "types": _event_labels(webhook),
        "here": reverse("webhook", args=[webhook_id]),
        "rows": [(one, event_type(one.event_type), delivery_status(one)) for one in deliveries],
    }
    # The outcome of a delivery changes no mark.
    since = datetime.now(UTC) - POLLING_TIMEOUT
    is_awaited = any(
        one.status == "pending" and one.created_at and one.created_at > since for one in deliveries
    )
    return context, Polling(every=POLL_INTERVAL_MS if is_awaited else 0)


show = page_and_region(_detail_context, "webhook.html", "_webhook.html")


def _title(request: ConsoleRequest, webhook_id: str) -> str:
    """Say which webhook a form is about. Raises NotFound, but not for a form that was sent."""
    found = choices(request, lambda: [request.api.webhooks.get(webhook_id)])
    return f"The webhook sends to {found[0].url}" if found else f"The webhook is {webhook_id}"


def rotate(request: ConsoleRequest, webhook_id: str) -> HttpResponse:
    def page() -> FormPage:
        return FormPage(
            title="Rotate secret",
            intro=f"{_title(request, webhook_id)}. This creates a new secret and shows it once. "
            "For a day, messages are also signed with the previous secret.",
            back=reverse("webhook", args=[webhook_id]),
        )

    return show_confirmation(
        request,
        page,
        lambda: _show_secret(request, request.api.webhooks.rotate_secret(webhook_id)),
    )


def delete(request: ConsoleRequest, webhook_id: str) -> HttpResponse:
    def remove() -> HttpResponse:
        request.api.webhooks.delete(webhook_id)
        return done(request, reverse("webhooks"), "Webhook deleted.", is_live=False)

    def page() -> FormPage:
        return FormPage(
            title="Delete webhook",
            intro=f"{_title(request, webhook_id)}. This permanently deletes:",
            danger=True,
            back=reverse("webhook", args=[webhook_id]),
            losses=(
                Loss("Secret", "nothing is signed with it any more"),
                Loss("Deliveries", "their history, and those not yet sent"),
            ),
        )

    return show_confirmation(request, page, remove)


@require_POST
def enable(request: ConsoleRequest, webhook_id: str) -> HttpResponse:
    on = request.POST.get("to") == "on"
    return act(
        request,
        lambda: request.api.webhooks.update(webhook_id, {"webhook": {"enabled": on}}),
        otherwise=reverse("webhook", args=[webhook_id]),
        message="Webhook enabled." if on else "Webhook disabled.",
    )


@require_POST
def test(request: ConsoleRequest, webhook_id: str) -> HttpResponse:
    return act(
        request,
        lambda: request.api.webhooks.test(webhook_id),
        otherwise=reverse("webhook", args=[webhook_id]),
        message="Test event sent. See its delivery below.",
    )


@require_POST
def resend(request: ConsoleRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
    return act(
        request,
        lambda: request.api.webhooks.resend(webhook_id, delivery_id),
        otherwise=reverse("webhook", args=[webhook_id]),
        message="The event is being sent again.",
    )
