"""A connection's URI in the forms that people paste into their programs."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

HIDDEN = "********"
URL, PSQL, ENV, PSYCOPG, NODE, JDBC, GO = "url", "psql", "env", "psycopg", "node", "jdbc", "go"
LABELS: Mapping[str, str] = {
    URL: "URL",
    PSQL: "psql",
    ENV: ".env",
    PSYCOPG: "psycopg",
    NODE: "node-postgres",
    JDBC: "JDBC",
    GO: "Go (pgx)",
}


@dataclass(frozen=True)
class Target:
    """What a connection URI names, taken apart."""

    role: str
    password: str
    host: str
    port: int | None
    database: str
    # What the server's `options` name, as `endpoint=ep-…`, where the host does not name it.
    options: str = ""

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
            options=dict(parse_qsl(parts.query)).get("options", ""),
        )

    @property
    def is_local(self) -> bool:
        """On this machine, where the certificate is of its own making."""
        return f".{self.host}".endswith(".localhost")

    @property
    def is_pooled(self) -> bool:
        return self.host.partition(".")[0].endswith("-pooler") or self.options.endswith("-pooler")


def in_style(style: str, target: Target, *, reveal: bool) -> str:
    """The connection as `style` writes it; without the password unless `reveal`."""
    password = target.password if reveal and target.password else HIDDEN
    port = f":{target.port}" if target.port else ""
    user = f"{quote(target.role, safe='')}:{quote(password, safe='*')}"
    path = quote(target.database, safe="")
    option = f"&options={quote(target.options, safe='')}" if target.options else ""
    url = f"postgresql://{user}@{target.host}{port}/{path}?sslmode=require{option}"
    match style:
        case "psql":
            return f"psql {shlex.quote(url)}"
        case "env":
            return f"DATABASE_URL={json.dumps(url)}"
        case "psycopg":
            # In transaction mode the next transaction may meet another server connection.
            unprepared = ", prepare_threshold=None" if target.is_pooled else ""
            call = f"psycopg.connect({json.dumps(url)}{unprepared})"
            return f"import psycopg\n\nconnection = {call}"
        case "node":
            return _node(target, password)
        case "jdbc":
            names = {"user": target.role, "password": password, "sslmode": "require"}
            if target.options:
                names["options"] = target.options
            query = urlencode(names, safe="*")
            return f"jdbc:postgresql://{target.host}{port}/{path}?{query}"
        case "go":
            return f"connection, err := pgx.Connect(context.Background(), {json.dumps(url)})"
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
    if target.options:
        lines.append(f"  options: {json.dumps(target.options)},")
    return "\n".join(['import pg from "pg"', "", "const client = new pg.Client({", *lines, "})"])
