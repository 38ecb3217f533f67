"""The feature of usage: projects' quotas, endpoints' metrics, and how long usage is kept."""

from controlplane.features import REST, SELDOM, Feature, Round
from controlplane.operations.quota_rounds import QUOTA_ROUND, hold_to_quotas
from controlplane.operations.sampling import forget_samples, merge_samples
from controlplane.operations.usage_retention import forget_usage

USAGE = Feature(
    rounds=(
        Round(QUOTA_ROUND, hold_to_quotas, at_rest=REST),
        Round(600, forget_usage),
        Round(60, merge_samples, at_rest=SELDOM),
        Round(600, forget_samples),
    ),
)
