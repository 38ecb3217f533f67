"""The Postgres settings that an endpoint's owner may give it, and their bounds.

An allow-list: settings that are not named here stay the platform's, whatever a new Postgres adds.
The bounds are Postgres's own, as in its `pg_settings` (`known_settings`). They are narrower if a
value takes memory, disk or processes that depend on the endpoint's size.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.compute.settings.configuration import (
    MEGABYTES_PER_CU,
    RESERVED_CONNECTIONS,
    bounded,
    max_connections,
    max_temporary,
)
from controlplane.compute.settings.text_settings import complaint_of_text

# Two families of units, each unit with its size in the family's smallest. Case matters.
UNITS: tuple[Mapping[str, float], ...] = (
    {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40},
    {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60e6, "h": 3600e6, "d": 86400e6},
)
NUMBER = re.compile(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+))\s*(\w*)\s*")
BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")
# Extensions that have settings of their own, none of which names a program, a file or a library.
EXTENSIONS = frozenset(
    "auto_explain hnsw ivfflat pg_hint_plan pg_stat_statements pg_trgm plpgsql".split()
)
# Settings of these extensions that the platform sets (`configuration`).
FIXED = frozenset({"pg_stat_statements.max", "pg_stat_statements.track_utility"})


@dataclass(frozen=True)
class Known:
    """What Postgres says of a setting: its type, the unit of a bare number, its range."""

    vartype: str  # bool, integer, real, enum or string
    unit: str | None = None  # for example "8kB"
    min: float | None = None
    max: float | None = None
    # Of an enum; of a string, if its possible values can be listed.
    values: tuple[str, ...] = ()
    # Postgres's own default, in the setting's own unit; and its description.
    default: str = ""
    about: str = ""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Known":
        low, high = stored.get("min"), stored.get("max")
        return cls(
            stored["vartype"],
            stored.get("unit"),
            None if low is None else float(low),
            None if high is None else float(high),
            tuple(stored.get("values") or ()),
            stored.get("default") or "",
            stored.get("about") or "",
        )


KnownSettings = Mapping[str, Known]


def from_json(stored: Mapping[str, Any]) -> KnownSettings:
    """The settings in the row where the worker publishes `known_settings`."""
    return {name: Known.from_json(one) for name, one in stored.items()}


@dataclass(frozen=True)
class Bounds:
    """The values allowed on an endpoint of that many compute units, as an owner would write
    them."""

    most: Callable[[float], str]
    least: str | None = None


def _memory(share: float, *, at_most: float = float("inf")) -> Bounds:
    """A share of an endpoint's memory; `at_most` is in megabytes."""
    return Bounds(lambda cu: f"{round(min(at_most, cu * MEGABYTES_PER_CU * share))}MB")


def _count(per_cu: float, *, at_least: int, at_most: int) -> Bounds:
    return Bounds(lambda cu: str(max(at_least, min(at_most, round(cu * per_cu)))))


def _log_size(least: str) -> Bounds:
    """Up to 4 GB of write-ahead log per compute unit, and up to 1 GB, the default, on any."""
    return Bounds(lambda cu: f"{max(1, round(4 * cu))}GB", least=least)


CONNECTIONS = Bounds(lambda cu: str(max_connections(cu)))
# Postgres starts only with more connections than are reserved for the platform.
OPEN_TO_USERS = Bounds(CONNECTIONS.most, least=str(RESERVED_CONNECTIONS + 1))
WORKERS = _count(8, at_least=8, at_most=64)

# Settings whose bounds depend on the endpoint's size.
SIZED: Mapping[str, Bounds] = {
    "shared_buffers": _memory(2 / 5),
    "temp_buffers": _memory(1 / 8),
    "work_mem": _memory(1 / 4),
    "maintenance_work_mem": _memory(1 / 4),
    "autovacuum_work_mem": _memory(1 / 4),
    "logical_decoding_work_mem": _memory(1 / 8),
    "effective_cache_size": _memory(1),
    "wal_buffers": _memory(1 / 64, at_most=1024),
    "max_connections": OPEN_TO_USERS,
    "max_prepared_transactions": CONNECTIONS,
    "max_locks_per_transaction": _count(1024, at_least=64, at_most=4096),
    "max_pred_locks_per_transaction": _count(1024, at_least=64, at_most=4096),
    "max_worker_processes": WORKERS,
    "max_parallel_workers": WORKERS,
    "max_parallel_workers_per_gather": WORKERS,
    "max_parallel_maintenance_workers": WORKERS,
    "autovacuum_max_workers": _count(3, at_least=3, at_most=16),
    # With less than two segments of 16 MB, Postgres does not start.
    "max_wal_size": _log_size("32MB"),
    "min_wal_size": _log_size("32MB"),
    "track_activity_query_size": Bounds(lambda cu: "16kB"),
    "hash_mem_multiplier": Bounds(lambda cu: "8"),
    # Without a limit (-1), a single session's sort could fill the disk.
    "temp_file_limit": Bounds(lambda cu: f"{max_temporary(cu) >> 10}kB", least="0"),
}
# Settings with Postgres's bounds alone.
PLANNER = """
    constraint_exclusion cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost
    cursor_tuple_fraction default_statistics_target effective_io_concurrency
    enable_async_append enable_bitmapscan enable_distinct_reordering enable_gathermerge
    enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort
    enable_indexonlyscan enable_indexscan enable_material enable_memoize enable_mergejoin
    enable_nestloop enable_parallel_append enable_parallel_hash enable_partition_pruning
    enable_partitionwise_aggregate enable_partitionwise_join enable_presorted_aggregate
    enable_self_join_elimination enable_seqscan enable_sort enable_tidscan
    from_collapse_limit geqo geqo_effort geqo_generations geqo_pool_size geqo_seed
    geqo_selection_bias geqo_threshold io_combine_limit jit jit_above_cost
    jit_inline_above_cost jit_optimize_above_cost join_collapse_limit
    maintenance_io_concurrency min_parallel_index_scan_size min_parallel_table_scan_size
    parallel_leader_participation parallel_setup_cost parallel_tuple_cost plan_cache_mode
    random_page_cost recursive_worktable_factor seq_page_cost
"""
TIMEOUTS = """
    client_connection_check_interval deadlock_timeout idle_in_transaction_session_timeout
    idle_session_timeout lock_timeout statement_timeout transaction_timeout
"""
VACUUM = """
    autovacuum autovacuum_analyze_scale_factor autovacuum_analyze_threshold
    autovacuum_freeze_max_age autovacuum_multixact_freeze_max_age autovacuum_naptime
    autovacuum_vacuum_cost_delay autovacuum_vacuum_cost_limit
    autovacuum_vacuum_insert_scale_factor autovacuum_vacuum_insert_threshold
    autovacuum_vacuum_max_threshold autovacuum_vacuum_scale_factor autovacuum_vacuum_threshold
    vacuum_buffer_usage_limit vacuum_cost_delay vacuum_cost_limit vacuum_cost_page_dirty
    vacuum_cost_page_hit vacuum_cost_page_miss vacuum_failsafe_age vacuum_freeze_min_age
    vacuum_freeze_table_age vacuum_max_eager_freeze_failure_rate vacuum_multixact_failsafe_age
    vacuum_multixact_freeze_min_age vacuum_multixact_freeze_table_age vacuum_truncate
"""
LOGGING = """
    log_autovacuum_min_duration log_checkpoints log_connections log_disconnections
    log_duration log_error_verbosity log_lock_failures log_lock_waits
    log_min_duration_sample log_min_duration_statement log_min_error_statement
    log_min_messages log_parameter_max_length log_parameter_max_length_on_error
    log_statement log_statement_sample_rate log_temp_files log_transaction_sample_rate
"""
CLIENTS = """
    array_nulls backslash_quote bytea_output check_function_bodies client_encoding
    client_min_messages createrole_self_grant datestyle default_text_search_config
    default_toast_compression default_transaction_deferrable default_transaction_isolation
    default_transaction_read_only escape_string_warning extra_float_digits
    gin_fuzzy_search_limit gin_pending_list_limit icu_validation_level intervalstyle
    lc_messages lc_monetary lc_numeric lc_time output_plugin_libraries quote_all_identifiers
    row_security search_path
    standard_conforming_strings synchronize_seqscans timezone
    timezone_abbreviations transform_null_equals xmlbinary xmloption
"""
WRITING = """
    backend_flush_after bgwriter_delay bgwriter_flush_after bgwriter_lru_maxpages
    bgwriter_lru_multiplier checkpoint_completion_target checkpoint_flush_after
    checkpoint_timeout checkpoint_warning commit_delay commit_siblings synchronous_commit
    track_commit_timestamp wal_compression wal_skip_threshold wal_writer_delay
    wal_writer_flush_after
"""
STATISTICS = """
    compute_query_id stats_fetch_consistency track_cost_delay_timing track_counts
    track_functions track_io_timing track_wal_io_timing
"""
ALLOWED: Mapping[str, Bounds | None] = {
    **dict.fromkeys(
        " ".join((PLANNER, TIMEOUTS, VACUUM, LOGGING, CLIENTS, WRITING, STATISTICS)).split()
    ),
    **SIZED,
}


def complaint(
    name: str, value: str, *, max_cu: float, storage: int | None = None, known: KnownSettings
) -> str | None:
    """Why the setting is refused on an endpoint of up to `max_cu` compute units; None if it is not.
    `storage` is how many bytes its account's plan allows for a branch, None for no limit.

    `known` is what the Postgres in use knows. A string is checked as far as that is possible here
    (`text_settings`). If nothing is known, all values are left for Postgres to check.
    """
    if "." in name:
        return _complaint_of_extension(name)
    lowered = name.lower()
    found = known.get(lowered)
    if known and found is None:
        return "Postgres has no such setting"
    if lowered not in ALLOWED:
        return f'the setting "{name}" belongs to the platform'
    if found is None:
        return None
    if found.vartype == "string":
        return complaint_of_text(lowered, value, found.values)
    if found.vartype == "bool":
        return None if _is_boolean(value) else f'must be on or off, got "{value}"'
    if found.vartype == "enum":
        return _complaint_of_enum(value, found)
    return _complaint_of_number(value, found, _bounds_of(lowered, storage), max_cu)


def exceeds_size(
    name: str, value: str, *, max_cu: float, storage: int | None = None, known: KnownSettings
) -> str | None:
    """Why a setting that was accepted before is refused on an endpoint of another size, or None."""
    if name.lower() not in SIZED:
        return None
    return complaint(name, value, max_cu=max_cu, storage=storage, known=known)


def _bounds_of(name: str, storage: int | None) -> Bounds | None:
    bounds = ALLOWED[name]
    if name == "temp_file_limit" and storage is not None:
        return Bounds(lambda cu: f"{bounded(max_temporary(cu), storage) >> 10}kB", least="0")
    return bounds


def _complaint_of_extension(name: str) -> str | None:
    if name.lower() in FIXED:
        return (
            "is set by the platform: it limits memory, or keeps passwords out of logs and "
            "statistics"
        )
    if name.lower().partition(".")[0] in EXTENSIONS:
        return None
    return f"can be set only for these extensions: {', '.join(sorted(EXTENSIONS))}"


def _complaint_of_enum(value: str, known: Known) -> str | None:
    if value.lower() in known.values or ("on" in known.values and _is_boolean(value)):
        return None
    return f'must be one of {", ".join(known.values)}, got "{value}"'


def _complaint_of_number(
    value: str, known: Known, bounds: Bounds | None, max_cu: float
) -> str | None:
    number = _number(value, known)
    if number is None:
        return f'must be {_kind_of(known)}, got "{value}"'
    low, high = _range(known, bounds, max_cu)
    if (low is None or low <= number) and (high is None or number <= high):
        return None
    size = "" if high == known.max else f" on an endpoint of at most {max_cu:g} compute units"
    return f'must be from {_written(low, known)} to {_written(high, known)}{size}, got "{value}"'


def _range(known: Known, bounds: Bounds | None, max_cu: float) -> tuple[float | None, float | None]:
    """The lower and upper bound, in the setting's own unit; None for no bound."""
    low, high = known.min, known.max
    if bounds is not None:
        most = _number(bounds.most(max_cu), known)
        if most is not None and (high is None or most < high):
            high = most
        least = _number(bounds.least, known) if bounds.least else None
        low = max((one for one in (low, least) if one is not None), default=None)
    return low, high


def written_range(
    name: str, known: Known, *, max_cu: float, storage: int | None = None
) -> tuple[str, str]:
    """The bounds of a numeric setting, as an owner would write them; "" for no bound."""
    low, high = _range(known, _bounds_of(name, storage), max_cu)
    return (
        "" if low is None else _written(low, known),
        "" if high is None else _written(high, known),
    )


def written_value(value: str, known: Known) -> str:
    """A value as an owner would write it: a bare number gets its unit."""
    is_number = known.vartype in ("integer", "real")
    number = _number(value, known) if is_number else None
    return value if number is None else _written(number, known)


def _number(text: str, known: Known) -> float | None:
    """The number in the setting's own unit, as Postgres reads it; None if it cannot be read, or is
    beyond what a double holds, as no setting's bound is."""
    found = NUMBER.fullmatch(text)
    if found is None:
        return None
    digits, unit = found.groups()
    factor = _factor(unit, known) if unit else 1.0
    if factor is None:
        return None
    try:
        number = float(int(digits, 16)) if "x" in digits.lower() else float(digits)
        if known.vartype == "integer" and re.fullmatch(r"[+-]?0[0-7]+", digits):
            number = float(int(digits, 8))
    except OverflowError:
        return None
    number *= factor
    if not math.isfinite(number):
        return None
    return float(round(number)) if known.vartype == "integer" else number


def _factor(unit: str, known: Known) -> float | None:
    """The unit's size in the setting's own unit; None if they cannot be converted."""
    times, own = _own_unit(known)
    for family in UNITS:
        if own in family and unit in family:
            return family[unit] / (family[own] * times)
    return None


def _own_unit(known: Known) -> tuple[int, str]:
    """The setting's own unit as a factor and a unit: "8kB" is (8, "kB")."""
    found = re.fullmatch(r"(\d*)(\w*)", known.unit or "")
    assert found is not None
    return int(found[1] or 1), found[2]


def _kind_of(known: Known) -> str:
    _, own = _own_unit(known)
    kind = "a whole number" if known.vartype == "integer" else "a number"
    for family in UNITS:
        if own in family:
            return f"a number with one of the units {', '.join(family)}"
    return kind


def _written(number: float | None, known: Known) -> str:
    """The number with the largest unit that makes it whole."""
    if number is None:
        return "any"
    times, own = _own_unit(known)
    family = next((family for family in UNITS if own in family), None)
    if family is None or number <= 0:
        return f"{number:.15g}"
    smallest = number * times * family[own]
    unit = max((one for one in family if smallest % family[one] == 0), key=family.__getitem__)
    return f"{smallest / family[unit]:.15g}{unit}"


def _is_boolean(value: str) -> bool:
    """As Postgres decides: any unambiguous abbreviation counts."""
    word = value.strip().lower()
    return word in BOOLEANS or (
        bool(word) and word != "o" and any(one.startswith(word) for one in BOOLEANS)
    )
