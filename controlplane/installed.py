"""The features of this service: the only list of them. The routes that they add to the API are in
`controlplane.api.router`, and their commands in `controlplane.management.commands`."""

from controlplane.features import Feature
from controlplane.fleet.feature import FLEET
from controlplane.history.feature import HISTORY
from controlplane.usage.feature import USAGE
from controlplane.webhooks.feature import WEBHOOKS

FEATURES: tuple[Feature, ...] = (HISTORY, FLEET, USAGE, WEBHOOKS)
