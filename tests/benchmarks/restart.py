"""`python -m tests.benchmarks.restart [RESTARTS] [COMMIT]`: what clients notice while the proxy is
restarted so many times, and while the service is then upgraded by `up --replace`, from the commit
before COMMIT (by default the newest one) to COMMIT.

Clients come all the time, and others stay through the pooler and directly. Each error of one of
them counts.
"""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.place import Place
from tests.support.replacing import replaced, restart_proxy
from tests.support.stack import new_state_dir, running_stack
from tests.support.traffic import Traffic
from tests.support.versions import exported

RESTARTS = 20
PLACES = 2
PROCESSES = 2


def report(what: str, traffic: Traffic, before: dict[str, int]) -> None:
    print(f"{what}:")
    for kind, seen in traffic.seen.items():
        print(
            f"  {kind:9} {seen.count - before[kind]:6}, longest {seen.longest * 1000:6.0f} ms, "
            f"errors {len(seen.errors)}"
        )
        seen.longest = 0.0
        before[kind] = seen.count
    sys.stdout.flush()


def main() -> None:
    restarts = int(sys.argv[1]) if len(sys.argv) > 1 else RESTARTS
    commit = sys.argv[2] if len(sys.argv) > 2 else "HEAD"
    with ExitStack() as opened:
        state_dir = opened.enter_context(new_state_dir())
        trees = [
            exported(version, Path(opened.enter_context(tempfile.TemporaryDirectory())))
            for version in (f"{commit}~1", commit)
        ]
        program = (sys.executable, trees[0] / "manage.py")
        stack = opened.enter_context(
            running_stack(state_dir, program, cwd=trees[0], PERCH_PROXY_PROCESSES=str(PROCESSES))
        )
        client = stack.client()
        places = [Place.create(stack, client) for _ in range(PLACES)]
        for place in places:
            place.query("SELECT 1", pooled=True)
        traffic = opened.enter_context(Traffic(places))
        before = dict.fromkeys(traffic.seen, 0)
        took = [restart_proxy(stack) for _ in range(restarts)]
        if took:
            report(f"{restarts} restarts, each {sum(took) / len(took):.1f} s", traffic, before)
        began = time.monotonic()
        with replaced(stack, trees[1]):
            report(f"an upgrade in {time.monotonic() - began:.1f} s", traffic, before)
            traffic.stop()
    for error in traffic.errors:
        print(f"  {error}")


if __name__ == "__main__":
    main()
