"""`python -m tests.benchmarks.samples`: what the metrics of 1,000 active endpoints cost.

All runs in this process, as the worker does it, so that nothing else is measured:

- a look with a sample and one without, in turn, at a real compute whose client is busy: the
  processor time of this process, and of all of the compute's processes;
- two days of one sample a minute of busy endpoints, written to a real database: the processor time
  of this process and of the database, and the room that the rows take.

The days are of 50 endpoints, and what they take is multiplied by 20.
"""

import os
from urllib.parse import quote

import django
from django.core.management import call_command

from tests.support.bare_postgres import SUPERUSER, Programs, bare_postgres, private_directory
from tests.support.stack import new_state_dir

ENDPOINTS = 1_000


def main() -> None:
    with (
        new_state_dir() as state_dir,
        private_directory() as scratch,
        bare_postgres(Programs(scratch)) as cluster,
    ):
        cluster.start()
        os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
        os.environ["PERCH_STATE_DIR"] = str(state_dir)
        os.environ["DATABASE_URL"] = (
            f"postgresql://{SUPERUSER}@/postgres?host={quote(str(cluster.directory), safe='')}"
            f"&port={cluster.port}"
        )
        django.setup()
        call_command("migrate", verbosity=0)
        # It imports the models, for which Django must be set up.
        from tests.benchmarks import sample_costs

        looks = sample_costs.of_a_look()
        notes, packing, megabytes, hours = sample_costs.of_a_day(cluster.pid)
        # A minute has one sample of each.
        share = ENDPOINTS * (looks + notes) / 60 + ENDPOINTS * packing / 3600
        print(f"a sample in a look: {looks * 1e6:.0f} µs, storing it: {notes * 1e6:.0f} µs")
        print(f"packing an endpoint's hour: {packing * 1e6:.0f} µs")
        print(f"{ENDPOINTS:,} active endpoints: {share * 100:.2f} % of a core (target: at most 1)")
        print(f"rows of a day: {ENDPOINTS * megabytes:.2f} MB (target: at most 5)")
        print(f"rows of the last hours: {ENDPOINTS * hours:.1f} MB, which do not grow")


if __name__ == "__main__":
    main()
