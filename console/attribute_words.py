"""The API's names of attributes, in words: for errors that belong to no field, and for events."""

WORDS_OF_ATTRIBUTES = {
    "autoscaling_limit_max_cu": "largest size",
    "autoscaling_limit_min_cu": "smallest size",
    "branch_id": "branch",
    "expires_at": "time of expiry",
    "owner_name": "owner",
    "parent_id": "parent",
    "pg_version": "Postgres version",
    "pooler_enabled": "pooling",
    "region_id": "region",
    "suspend_timeout_seconds": "suspend timeout",
}
