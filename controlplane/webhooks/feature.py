"""The feature of webhooks. `events.outbox` enqueues its jobs: a trigger does so with events."""

from controlplane.features import LONG_REST_INTERVAL, Feature, Round
from controlplane.models import JobTask
from controlplane.webhooks.lines import break_off
from controlplane.webhooks.sending import send_deliveries
from controlplane.webhooks.upkeep import look_after_webhooks

WEBHOOKS = Feature(
    rounds=(Round(60, look_after_webhooks, at_rest=LONG_REST_INTERVAL),),
    jobs={JobTask.SEND_DELIVERIES: send_deliveries},
    end=break_off,
)
