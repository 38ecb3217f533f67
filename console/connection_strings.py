"""A connection's URI in the forms that people paste into their programs."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlencode, urlsplit

HIDDEN = "********"
URL, PSQL, ENV, PSYCOPG, NODE, JDBC, GO, PLAIN = (
    "url",
    "psql",
    "env",
    "psycopg",
    "node",
    "jdbc",
    "go",
    "plain",
)
LABELS: Mapping[str, str] = {
    URL: "URL",
    PSQL: "psql",
    ENV: ".env",
    PSYCOPG: "psycopg",
    NODE: "node-postgres",
    JDBC: "JDBC",
    GO: "Go (pgx)",
}
# Not every resolver knows names below localhost: there the endpoint goes into the options.
LOCAL_LABELS: Mapping[str, str] = {**LABELS, PLAIN: "URL without DNS"}


@dataclass(frozen=True)
class Target:
    """What a connection URI names, taken apart."""

    role: str
    password: str
    host: str
    port: int | None
    database: str

    @classmethod
    def read(cls, uri: str) -> "Target":
        """Raises ValueError where `uri` is no connection URI."""
        parts = urlsplit(uri)
        if not parts.hostname:
            raise ValueError("no host")
        return cls(
            role=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host=parts.hostname,
            port=parts.port,
            database=unquote(parts.path.lstrip("/")),
        )

    @property
    def is_local(self) -> bool:
        """On this machine, where the certificate is of its own making."""
        return self.host.endswith(".localhost")

    @property
    def is_pooled(self) -> bool:
        return self.host.partition(".")[0].endswith("-pooler")


def labels_for(target: Target) -> Mapping[str, str]:
    return LOCAL_LABELS if target.is_local else LABELS


def in_style(style: str, target: Target, *, reveal: bool) -> str:
    """The connection as `style` writes it; without the password unless `reveal`."""
    password = target.password if reveal and target.password else HIDDEN
    port = f":{target.port}" if target.port else ""
    user = f"{quote(target.role, safe='')}:{quote(password, safe='*')}"
    path = quote(target.database, safe="")
    url = f"postgresql://{user}@{target.host}{port}/{path}?sslmode=require"
    match style:
        case "psql":
            return f"psql {shlex.quote(url)}"
        case "env":
            return f"DATABASE_URL={json.dumps(url)}"
        case "psycopg":
            # In transaction mode the next transaction may meet another server connection.
            option = ", prepare_threshold=None" if target.is_pooled else ""
            return f"import psycopg\n\nconnection = psycopg.connect({json.dumps(url)}{option})"
        case "node":
            return _node(target, password)
        case "jdbc":
            names = {"user": target.role, "password": password, "sslmode": "require"}
            query = urlencode(names, safe="*")
            return f"jdbc:postgresql://{target.host}{port}/{path}?{query}"
        case "go":
            return f"connection, err := pgx.Connect(context.Background(), {json.dumps(url)})"
        case "plain":
            endpoint, _, region = target.host.partition(".")
            option = quote(f"endpoint={endpoint}", safe="")
            return f"postgresql://{user}@{region}{port}/{path}?sslmode=require&options={option}"
        case _:
            return url


def _node(target: Target, password: str) -> str:
    # node-postgres checks the certificate whatever sslmode a URL asks for.
    tls = "{ rejectUnauthorized: false }" if target.is_local else "true"
    lines = [
        f"  host: {json.dumps(target.host)},",
        f"  port: {target.port or 5432},",
        f"  user: {json.dumps(target.role)},",
        f"  password: {json.dumps(password)},",
        f"  database: {json.dumps(target.database)},",
        f"  ssl: {tls},",
    ]
    return "\n".join(['import pg from "pg"', "", "const client = new pg.Client({", *lines, "})"])
