"""The feature of usage: projects' quotas, endpoints' metrics, and how long usage is kept."""

from controlplane.features import LONG_REST_INTERVAL, REST_INTERVAL, Feature, Round
from controlplane.usage.rounds import QUOTA_INTERVAL, forget_usage, hold_to_quotas
from controlplane.usage.sampling import forget_samples, merge_samples

USAGE = Feature(
    rounds=(
        Round(QUOTA_INTERVAL, hold_to_quotas, at_rest=REST_INTERVAL),
        Round(600, forget_usage),
        Round(60, merge_samples, at_rest=LONG_REST_INTERVAL),
        Round(600, forget_samples),
    ),
)
