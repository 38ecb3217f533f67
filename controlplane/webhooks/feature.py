"""The feature of webhooks, whose queue is in `events.outbox`: a trigger fills it with events."""

from controlplane.features import LONG_REST_INTERVAL, Feature, Round
from controlplane.webhooks import sending  # noqa: F401 # the task of the queue's jobs
from controlplane.webhooks.lines import break_off
from controlplane.webhooks.upkeep import look_after_webhooks

WEBHOOKS = Feature(
    rounds=(Round(60, look_after_webhooks, at_rest=LONG_REST_INTERVAL),), end=break_off
)
