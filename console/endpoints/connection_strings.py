"""A connection's URI in the forms that users paste into their programs.

Each form works as it is, with nothing to fill in. If the endpoint's own host name may not resolve,
the API's URI has a host name that does, and its `options` name the endpoint."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from console.api.bounded_http import host_in_url

HIDDEN = "********"


@dataclass(frozen=True)
class Target:
    """The parts of a connection URI."""

    role: str
    password: str
    host: str
    port: int | None
    database: str
    # The `options` of the URI, which are `endpoint=ep-…` if the host does not name the endpoint.
    options: str = ""
    # As in the API's URI; "" leaves it to the driver.
    sslmode: str = ""

    @classmethod
    def read(cls, uri: str) -> "Target":
        """Take a URI apart. Raises ValueError if it is no connection URI."""
        parts = urlsplit(uri)
        if not parts.hostname:
            raise ValueError("no host")
        query = dict(parse_qsl(parts.query))
        return cls(
            role=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host=parts.hostname,
            port=parts.port,
            database=unquote(parts.path.lstrip("/")),
            options=query.get("options", ""),
            sslmode=query.get("sslmode", ""),
        )

    @property
    def is_pooled(self) -> bool:
        return self.host.partition(".")[0].endswith("-pooler") or self.options.endswith("-pooler")

    @property
    def names_endpoint_by_option(self) -> bool:
        return self.options.startswith("endpoint=")

    def at(self, host: str) -> "Target":
        """Return the target with the endpoint's own host name. The proxy learns that name only from
        TLS, so TLS is required."""
        return replace(self, host=host, options="", sslmode=self.sslmode or "require")

    @property
    def named(self) -> dict[str, str]:
        """The parameters for libpq, and for all drivers that read its URIs."""
        named = {"sslmode": self.sslmode, "options": self.options}
        return {name: value for name, value in named.items() if value}

    @property
    def libpq_compatible(self) -> dict[str, str]:
        """The parameter that makes node-postgres read `sslmode` as libpq does. Without it,
        node-postgres reads `require` as `verify-full`. libpq itself refuses URIs that have it."""
        return {"uselibpqcompat": "true"} if self.sslmode else {}

    def url(self, scheme: str = "postgresql", **parameters: str) -> str:
        user = f"{quote(self.role, safe='')}:{quote(self.password, safe='*')}"
        query = urlencode(self.named | parameters, quote_via=quote, safe="")
        return f"{scheme}://{user}@{self.place}{'?' if query else ''}{query}"

    @property
    def place(self) -> str:
        """The host, port and database as every URL has them."""
        port = f":{self.port}" if self.port else ""
        return f"{host_in_url(self.host)}{port}/{quote(self.database, safe='')}"


def in_style(style: str, target: Target, *, reveal: bool) -> str:
    """Write the connection in `style`, a key of LABELS; without the password unless `reveal`."""
    shown = target if reveal and target.password else replace(target, password=HIDDEN)
    return STYLES[style][1](shown)


def _psycopg(target: Target) -> str:
    # In transaction mode, the next transaction may get another server connection, which does not
    # know the statement.
    unprepared = ", prepare_threshold=None" if target.is_pooled else ""
    call = f"psycopg.connect({json.dumps(target.url())}{unprepared})"
    return f"import psycopg\n\nconnection = {call}"


def _sqlalchemy(target: Target) -> str:
    unprepared = ', connect_args={"prepare_threshold": None}' if target.is_pooled else ""
    url = json.dumps(target.url("postgresql+psycopg"))
    return f"from sqlalchemy import create_engine\n\nengine = create_engine({url}{unprepared})"


def _django(target: Target) -> str:
    lines = [
        '"ENGINE": "django.db.backends.postgresql",',
        f'"NAME": {json.dumps(target.database)},',
        f'"USER": {json.dumps(target.role)},',
        f'"PASSWORD": {json.dumps(target.password)},',
        f'"HOST": {json.dumps(target.host)},',
        f'"PORT": {target.port or 5432},',
        f'"OPTIONS": {json.dumps(target.named)},',
    ]
    if target.is_pooled:
        # A server-side cursor belongs to one server connection; the next query may get another.
        lines.append('"DISABLE_SERVER_SIDE_CURSORS": True,')
    body = "\n".join(f"        {line}" for line in lines)
    return f'DATABASES = {{\n    "default": {{\n{body}\n    }}\n}}'


def _node(target: Target) -> str:
    url = json.dumps(target.url(**target.libpq_compatible))
    return (
        f'import pg from "pg"\n\nconst client = new pg.Client({{\n  connectionString: {url},\n}})'
    )


def _prisma(target: Target) -> str:
    # Prisma's driver adapter is node-postgres. Its own engine ignores parameters that it does not
    # know.
    pooled = {"pgbouncer": "true"} if target.is_pooled else {}
    return f"DATABASE_URL={json.dumps(target.url(**target.libpq_compatible, **pooled))}"


def _jdbc(target: Target) -> str:
    names = {"user": target.role, "password": target.password, **target.named}
    if target.is_pooled:
        names["prepareThreshold"] = "0"
    return f"jdbc:postgresql://{target.place}?{urlencode(names, safe='*')}"


def _go(target: Target) -> str:
    # Behind the pooler, pgx must not cache prepared statements.
    pooled = {"default_query_exec_mode": "exec"} if target.is_pooled else {}
    url = json.dumps(target.url(**pooled))
    return f"connection, err := pgx.Connect(context.Background(), {url})"


URL = "url"
# Each form's label, and the function that writes it.
STYLES: Mapping[str, tuple[str, Callable[[Target], str]]] = {
    URL: ("URL", lambda target: target.url()),
    "psql": ("psql", lambda target: f"psql {shlex.quote(target.url())}"),
    "env": (".env", lambda target: f"DATABASE_URL={json.dumps(target.url())}"),
    "psycopg": ("psycopg", _psycopg),
    "sqlalchemy": ("SQLAlchemy", _sqlalchemy),
    "django": ("Django", _django),
    "node": ("node-postgres", _node),
    "prisma": ("Prisma (.env)", _prisma),
    "jdbc": ("JDBC", _jdbc),
    "go": ("Go (pgx)", _go),
}
LABELS: Mapping[str, str] = {style: label for style, (label, _) in STYLES.items()}
