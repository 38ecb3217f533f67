"""The features of this service: the only list of them. The routes that they add to the API are in
`controlplane.api.router`, and their commands in `controlplane.management.commands`."""

from controlplane.features import Feature
from controlplane.history_store.feature import HISTORY
from controlplane.management.fleet_feature import FLEET
from controlplane.operations.usage_feature import USAGE
from controlplane.webhooks.feature import WEBHOOKS

FEATURES: tuple[Feature, ...] = (HISTORY, FLEET, USAGE, WEBHOOKS)
