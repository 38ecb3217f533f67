"""Makes an endpoint's metrics look as if it had been busy for days, for pictures and tests."""

import json
from datetime import datetime, timedelta
from math import sin
from typing import Any

# Seconds: the endpoint wakes every TURN, and is active for AWAKE of these.
TURN, AWAKE = 4 * 3600, 3 * 3600


def busy(body: bytes) -> bytes:
    """Fill an answer with metrics; return any other answer as it is. For `Relay.twists`."""
    if not body.startswith(b'{"metrics":{'):
        return body
    answer = json.loads(body)
    metrics = answer["metrics"]
    at, end = (datetime.fromisoformat(metrics[name]) for name in ("from", "to"))
    step = metrics["step"]
    metrics["points"] = []
    while at < end:
        if at.timestamp() % TURN < AWAKE or step >= TURN:
            metrics["points"].append(_point(at, step))
        at += timedelta(seconds=step)
    return json.dumps(answer).encode()


def _point(at: datetime, step: int) -> dict[str, Any]:
    seconds = at.timestamp()
    # Between 0 and 1: it changes over the day, and within the hour.
    load = (1.2 + sin(seconds / 13_000) + 0.6 * sin(seconds / 700) ** 3) / 3
    return {
        "at": at.isoformat(),
        "samples": step // 60,
        "connections_active": round(7 * load),
        "connections_idle": round(12 - 5 * load),
        "connections_idle_in_transaction": round(2 * load**2),
        "active_queries": round(7 * load),
        "memory_bytes": round(4e8 + 3e8 * load),
        "database_bytes": round(3.1e9 + seconds % 1e6 * 300),
        "cpu_seconds": step * 0.8 * load,
        "cache_hits": round(40_000 * step * load),
        "cache_misses": round(900 * step * load**3),
        "rows_read": round(5_200 * step * load),
        "rows_written": round(900 * step * load**2),
        "deadlocks": int(load > 0.85 and seconds // step % 3 == 0),
        "log_bytes": round(90_000 * step * load),
        "wakes": int(seconds % TURN < step),
    }
