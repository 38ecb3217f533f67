"""Shows a request to the API as a command for curl."""

import json
import shlex

from console.api.errors import RequestShown

KEY = "$NEON_API_KEY"


def curl(request: RequestShown, server_url: str) -> str:
    """Return the command for a POSIX shell. It does not contain the API key."""
    lines = [
        f"curl -X {request.method} {shlex.quote(server_url + request.address)}",
        f'-H "Authorization: Bearer {KEY}"',
    ]
    if request.body:
        data = json.dumps(request.body, ensure_ascii=False)
        lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(data)}"]
    return " \\\n  ".join(lines)
