"""Which Postgres settings an endpoint may have. They are checked before anything is scheduled, by
what the Postgres in use reports and by the endpoint's size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.compute.settings import configuration
from controlplane.compute.settings.configuration import (
    ComputeSpec,
    ExtensionPaths,
    default_settings,
    max_connections,
    render_configuration,
)
from controlplane.compute.settings.offered_settings import offered
from controlplane.compute.settings.postgres_settings import (
    ALLOWED,
    SIZED,
    Known,
    KnownSettings,
    complaint,
    exceeds_size,
    from_json,
)
from tests.controlplane.settings_extremes import Case, cases, culprits, host
from tests.selection import first_of
from tests.support.project import Project, refusal
from tests.support.stack import Stack

SIZES = (0.25, 0.5, 1, 2, 7, 8, 16, 56)


@pytest.fixture(scope="module")
def known(stack: Stack) -> KnownSettings:
    """What the running service's Postgres reports, as the worker has published it."""
    with stack.database() as database:
        row = database.execute("SELECT known FROM controlplane_postgressettings").fetchone()
    assert row is not None
    return from_json(row[0])


def test_postgres_knows_every_allowed_setting(known: KnownSettings) -> None:
    assert ALLOWED.keys() - known.keys() == set()


@pytest.mark.parametrize("size", SIZES)
def test_every_value_that_a_size_allows_is_accepted(known: KnownSettings, size: float) -> None:
    for name, bounds in SIZED.items():
        assert complaint(name, bounds.most(size), max_cu=size, known=known) is None, name


@pytest.mark.parametrize("size", SIZES)
def test_an_endpoints_own_defaults_are_within_its_bounds(
    known: KnownSettings, size: float, tmp_path: Any
) -> None:
    spec = ComputeSpec("ep-a-b-123456", "br-a-b-123456", min_cu=size, max_cu=size)
    text = render_configuration(
        spec, 18, socket_dir=tmp_path, access={}, extensions=ExtensionPaths()
    )
    given = dict(line.replace("'", "").split(" = ") for line in text.splitlines()[1:])
    for name in given.keys() & SIZED.keys():
        assert complaint(name, given[name], max_cu=size, known=known) is None, (name, given[name])
    assert given["max_connections"] == str(max_connections(size))


@pytest.mark.parametrize(("is_little", "method"), [(True, "syncfs"), (False, "fsync")])
def test_recovery_waits_for_no_other_programs_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_little: bool, method: str
) -> None:
    monkeypatch.setattr(configuration, "is_little_dirty", lambda: is_little)
    spec = ComputeSpec("ep-a-b-123456", "br-a-b-123456", min_cu=1, max_cu=1)
    text = render_configuration(
        spec, 18, socket_dir=tmp_path, access={}, extensions=ExtensionPaths()
    )
    assert f"recovery_init_sync_method = '{method}'" in text


REFUSED = {
    ("shared_buffers", "6GB", 0.25): "must be from 128kB to 410MB on an endpoint of at most 0.25 "
    'compute units, got "6GB"',
    ("work_mem", "257MB", 0.25): "to 256MB on an endpoint",
    ("WORK_MEM", "1kB", 4): "must be from 64kB to 4GB on an endpoint of at most 4 compute units, "
    'got "1kB"',
    ("work_mem", "plenty", 1): "must be a number with one of the units B, kB, MB, GB, TB",
    ("work_mem", "1mb", 1): "must be a number with one of the units",
    ("work_mem", "1s", 1): "must be a number with one of the units",
    ("work_mem", "", 1): "must be a number",
    ("max_connections", "113", 0.25): "must be from 8 to 112 on an endpoint",
    ("max_connections", "1kB", 0.25): "must be a whole number",
    ("max_wal_size", "31MB", 1): "must be from 32MB to 4GB",
    ("max_locks_per_transaction", "2000", 1): "must be from 10 to 1024",
    ("statement_timeout", "25d", 1): "must be from 0 to 2147483647ms",
    ("statement_timeout", "-1", 1): "must be from 0",
    ("random_page_cost", "-1", 1): "must be from 0 to",
    ("random_page_cost", "cheap", 1): "must be a number",
    ("temp_file_limit", "-1", 1): "must be from 0 to 16GB on an endpoint",
    ("temp_file_limit", "17GB", 1): "must be from 0 to 16GB on an endpoint",
    ("enable_seqscan", "maybe", 1): "must be on or off",
    ("enable_seqscan", "o", 1): "must be on or off",
    ("bytea_output", "base64", 1): "must be one of escape, hex",
    ("synchronous_commit", "perhaps", 1): "must be one of local, remote_write, remote_apply, on",
    ("timezone", "Nowhere/City", 1): "must be the name of a time zone",
    ("timezone", "-167:59:59", 1): "must be the name of a time zone",
    ("TimeZone", "", 1): "must be the name of a time zone",
    ("datestyle", "ISO, upwards", 1): "must be a style and an order",
    ("client_encoding", "UTF9", 1): "must be the name of an encoding",
    ("lc_messages", "tlh_QO", 1): "must be a locale that the server has, one of C",
    ("lc_messages", "", 1): "must be a locale that the server has",
    ("lc_time", "nowhere", 1): "must be a locale that the server has",
    ("timezone_abbreviations", "Mars", 1): "must be one of Default, Australia, India",
    ("createrole_self_grant", "get", 1): "must be some of set, inherit",
    ("default_text_search_config", "nosuch", 1): "must be one of arabic, armenian",
    ("default_text_search_config", "pg_catalog.nosuch", 1): "must be one of arabic, armenian",
    ("output_plugin_libraries", "pgoutput, /tmp/x", 1): "must be some of pgoutput, test_decoding",
    ("search_path", 'a, "b', 1): "must be names of schemas",
    ("log_connections", "sometimes", 1): "must be on, off, or some of receipt",
    ("no_such_setting", "1", 1): "Postgres has no such setting",
    ("synchronous_standby_names", "nobody", 1): "belongs to the platform",
    ("PORT", "1", 1): "belongs to the platform",
    ("Config_File", "x", 1): "belongs to the platform",
    ("hba_file", "x", 1): "belongs to the platform",
    ("fsync", "off", 1): "belongs to the platform",
    ("shared_preload_libraries", "x", 1): "belongs to the platform",
    ("extension_control_path", "x", 1): "belongs to the platform",
    ("pg_stat_statements.max", "1000000000", 1): "is set by the platform",
    ("Pg_Stat_Statements.Track_Utility", "on", 1): "is set by the platform",
    ("track_activities", "off", 1): "belongs to the platform",
    ("allow_alter_system", "on", 1): "belongs to the platform",
    ("ssl_passphrase_command", "id", 1): "belongs to the platform",
    ("plperl.on_init", "x", 1): "can be set only for these extensions: auto_ex",
    ("postgis.gdal_enabled_drivers", "ENABLE_ALL", 1): "can be set only for",
}


@pytest.mark.parametrize(("name", "value", "size"), REFUSED)
def test_refused(known: KnownSettings, name: str, value: str, size: float) -> None:
    words = complaint(name, value, max_cu=size, known=known)
    assert words is not None
    assert REFUSED[name, value, size] in words


@pytest.mark.parametrize(
    "value",
    ["1e400", "-1e400", "1e400TB", f"0x{'f' * 1900}", f"{'9' * 305}TB", f"0{'7' * 900}"],
)
def test_a_number_beyond_all_bounds_is_refused(value: str) -> None:
    known = {
        "work_mem": Known("integer", "kB", 64, 2147483647),
        "random_page_cost": Known("real", None, 0, 1e308),
    }
    for name in known:
        assert complaint(name, value, max_cu=1, known=known)


# Ways to write values, valid and invalid. Postgres decides which are valid.
WRITTEN = {
    "work_mem": "64 64kB 63 1MB 1.5MB .5MB 1e3kB 0x100 0100 +99 '64 kB' 1GB 1gb 1KB 66000B 64kB.",
    "statement_timeout": "0 1 1ms 1us 1s 1min 1h 1d 24d 25d 1.5s 1e3 -1 1m 7e-1s 0x7fffffff",
    "random_page_cost": "0 1 1.1 .5 1e2 -1 1kB 0x10 NaN inf 1,5",
    "vacuum_cost_delay": "0 1 1.5ms 100us 1s 101ms 0.1s",
    "geqo_seed": "0 1 0.5 1.0001",
    "enable_seqscan": "on off of o t f tr TRUE no ye yes n 1 0 2 00 true1",
    "bytea_output": "hex HEX escape he on",
    "synchronous_commit": "on off true no local LOCAL 1 remote_write maybe",
    "backslash_quote": "safe_encoding on off true 0 safe",
    "extra_float_digits": "-15 3 -16 4 1.4 1.6",
    "temp_buffers": "100 99 800kB 799kB 8MB",
    "default_statistics_target": "1 10000 10001 0",
    "timezone": "UTC utc Europe/Berlin europe/berlin Nowhere/City -7 5.5 UTC+3 EST5EDT <+03>-3 XY",
    "datestyle": "iso ISO,DMY sql,european Postgres,US german us nonEuropean ymd iso,up default x",
    "client_encoding": "utf8 UTF-8 unicode LATIN1 iso-8859-1 iso_8859_15 win1252 UTF9 sjis koi8r",
    "timezone_abbreviations": "Default Australia India Mars default",
    "createrole_self_grant": "set inherit SET,inherit get set,",
    "default_text_search_config": "simple Simple pg_catalog.english nosuch pg_catalog.nosuch",
    "search_path": 'public a,b "$user",public "a""b" a,,b "a a,"b',
}


@pytest.mark.parametrize("name", first_of(WRITTEN, count=2))
def test_a_value_is_parsed_as_postgres_parses_it(
    standing: Project, known: KnownSettings, name: str
) -> None:
    differ = []
    with standing.compute() as connection:
        for value in WRITTEN[name].split():
            value = value.replace("'", "")
            try:
                # As in a configuration file: SET takes quoted text for one element of a list.
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
                taken = True
            except Exception:
                taken = False
            words = complaint(name, value, max_cu=56, known=known)
            if taken != (words is None):
                differ.append((value, taken, words))
    assert differ == []


def test_allowed_settings_are_listed_with_bounds_and_defaults(standing: Project) -> None:
    listed = standing.client.get(standing.endpoint_path(rest="/pg_settings"))["pg_settings"]
    settings = {one["name"]: one for one in listed}
    assert list(settings) == sorted(ALLOWED)
    assert settings["work_mem"] == {
        "name": "work_mem",
        "type": "integer",
        "description": "Sets the maximum memory to be used for query workspaces.",
        "default": "4MB",
        "unit": "kB",
        "min": "64kB",
        "max": "1GB",
    }
    # Limited by the endpoint's size, not only by Postgres.
    assert settings["shared_buffers"]["default"] == "128MB"
    assert settings["max_connections"]["max"] == "450"
    assert settings["bytea_output"]["values"] == ["escape", "hex"]
    assert settings["timezone"]["default"] == "UTC"
    assert settings["enable_seqscan"]["default"] == "on"
    assert settings["statement_timeout"]["default"] == "0"


@pytest.mark.parametrize("size", SIZES)
def test_the_default_and_both_ends_of_the_listed_range_are_accepted(
    known: KnownSettings, size: float
) -> None:
    defaults = default_settings(min_cu=size, max_cu=size)
    for one in offered(max_cu=size, known=known, defaults=defaults):
        for value in {one.default, one.min, one.max, *(one.values or ())} - {None, ""}:
            assert complaint(one.name, str(value), max_cu=size, known=known) is None, (one, value)


def test_temporary_files_and_retained_log_are_limited_by_the_plan(
    known: KnownSettings, tmp_path: Path
) -> None:
    limit = 512 << 20
    spec = ComputeSpec("ep-a-b-123456", "br-a-b-123456", 1, 1, storage_limit=limit)
    text = render_configuration(
        spec, 18, socket_dir=tmp_path, access={}, extensions=ExtensionPaths()
    )
    assert "temp_file_limit = '512MB'" in text
    assert "max_slot_wal_keep_size = '512MB'" in text
    words = complaint("temp_file_limit", "513MB", max_cu=1, storage=limit, known=known)
    assert words is not None
    assert "must be from 0 to 512MB" in words
    assert complaint("temp_file_limit", "512MB", max_cu=1, storage=limit, known=known) is None
    listed = {one.name: one for one in offered(max_cu=1, storage=limit, known=known, defaults={})}
    assert (listed["temp_file_limit"].min, listed["temp_file_limit"].max) == ("0", "512MB")


def test_without_reports_of_postgres_only_names_are_checked() -> None:
    assert complaint("work_mem", "plenty", max_cu=1, known={}) is None
    assert complaint("fsync", "off", max_cu=1, known={}) is not None


def test_a_new_size_is_refused_only_for_settings_that_depend_on_it(known: KnownSettings) -> None:
    assert exceeds_size("shared_buffers", "1GB", max_cu=0.25, known=known) is not None
    assert exceeds_size("fsync", "off", max_cu=0.25, known=known) is None


def test_a_size_that_does_not_fit_the_settings_is_refused(project: Project) -> None:
    project.change(settings={"pg_settings": {"work_mem": "600MB"}})
    body = {"endpoint": {"autoscaling_limit_min_cu": 0.25, "autoscaling_limit_max_cu": 0.5}}
    response = project.client.call("PATCH", project.endpoint_path(), json=body)
    assert refusal(response) == (
        422,
        "settings.pg_settings.work_mem: must be from 64kB to 512MB on an endpoint of at most 0.5 "
        'compute units, got "600MB"',
    )


@pytest.mark.thorough
def test_a_stored_setting_that_is_forbidden_now_does_not_prevent_a_start(project: Project) -> None:
    project.suspend()
    with project.stack.database() as database:
        database.execute(
            "UPDATE controlplane_endpoint SET settings = %s WHERE id = %s",
            [
                '{"pg_settings": {"fsync": "off", "shared_buffers": "7TB", "gone": "1",'
                ' "work_mem": "9MB", "synchronous_standby_names": "nobody"}}',
                project.endpoint_id,
            ],
        )
    project.start()
    asked = "SELECT current_setting('fsync'), current_setting('work_mem')"
    assert project.sql(asked) == [("on", "9MB")]


SIZE = 0.25


@pytest.fixture(scope="module")
def every_case() -> Iterator[list[Case]]:
    with host():
        yield list(cases(SIZE))


@pytest.mark.thorough
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_compute_serves_the_platform_with_every_setting_at_an_extreme(
    every_case: list[Case], last: bool
) -> None:
    """First the least or first value of each, then the greatest or last."""
    in_order = every_case if last else reversed(every_case)
    assert culprits({case.name: case.value for case in in_order}, SIZE) == []
