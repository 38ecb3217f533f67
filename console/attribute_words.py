"""What the API's attributes are called on pages, where no label of a form says it."""

WORDS_OF_ATTRIBUTES = {
    "autoscaling_limit_max_cu": "largest size",
    "autoscaling_limit_min_cu": "smallest size",
    "expires_at": "time of expiry",
    "pooler_enabled": "pooling",
    "suspend_timeout_seconds": "suspend timeout",
}
