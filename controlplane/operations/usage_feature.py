"""The feature of usage: projects' quotas, endpoints' metrics, and how long usage is kept."""

from controlplane.features import LONG_REST_INTERVAL, REST_INTERVAL, Feature, Round
from controlplane.operations.quota_rounds import QUOTA_INTERVAL, hold_to_quotas
from controlplane.operations.sampling import forget_samples, merge_samples
from controlplane.operations.usage_retention import forget_usage

USAGE = Feature(
    rounds=(
        Round(QUOTA_INTERVAL, hold_to_quotas, at_rest=REST_INTERVAL),
        Round(600, forget_usage),
        Round(60, merge_samples, at_rest=LONG_REST_INTERVAL),
        Round(600, forget_samples),
    ),
)
