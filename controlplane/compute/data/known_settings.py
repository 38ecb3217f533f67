"""Asks this host's Postgres for the settings that it knows; the worker publishes the answer."""

import json
import re
import subprocess
from typing import Any

from django.conf import settings

from controlplane.compute.data.branch_data import template
from controlplane.compute.host.accounts import running_as, service_account
from controlplane.compute.host.binaries import postgres_bin
from controlplane.compute.host.cloning import clone_tree
from controlplane.compute.host.filesystem import remove_tree

# A single line, as Postgres in single-user mode reads it.
QUERY = (
    "SELECT jsonb_object_agg(lower(name), jsonb_strip_nulls(jsonb_build_object('vartype', vartype,"
    " 'unit', unit, 'min', min_val, 'max', max_val, 'default', boot_val, 'about', short_desc,"
    " 'values', CASE WHEN name = 'TimeZone'"
    " THEN (SELECT array_agg(z.name ORDER BY z.name) FROM pg_timezone_names z)"
    " WHEN name LIKE 'lc\\_%' THEN (SELECT array_agg(DISTINCT c.collctype) FROM pg_collation c"
    " WHERE c.collprovider = 'c')"
    " WHEN name = 'default_text_search_config' THEN (SELECT array_agg(t.cfgname)"
    " FROM pg_ts_config t) ELSE enumvals END))) AS known"
    " FROM pg_settings\n"
)
POSTGRES_TIMEOUT = 60.0  # seconds


def ask_postgres(major: int) -> dict[str, Any]:
    """Return {name: {vartype, unit, min, max, values, default, about}} of every setting, with names
    in lower case.

    The answer comes from the programs of the major version, which run computes, on a copy of the
    template that nothing else uses. Raises RuntimeError, PostgresUnusable, AccountUnusable,
    OSError, subprocess.SubprocessError.
    """
    directory = settings.STATE_DIR / "templates" / ".asked"
    remove_tree(directory)
    clone_tree(template(major), directory, owner=service_account())
    try:
        done = subprocess.run(
            [postgres_bin(major) / "postgres", "--single", "-F", "-D", directory, "postgres"],
            input=QUERY,
            capture_output=True,
            text=True,
            timeout=POSTGRES_TIMEOUT,
            **running_as(service_account()),
        )
    finally:
        remove_tree(directory)
    found = re.search(r'known = "(\{.*\})"\t', done.stdout)
    if found is None:
        raise RuntimeError(f"Postgres did not report its settings: {done.stderr.strip()[-400:]}")
    known: dict[str, Any] = json.loads(found[1])
    return known
