"""The JDBC driver of this machine, and a program that connects with it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# From Debian's libpostgresql-jdbc-java, and those that Maven has downloaded.
DEBIAN = Path("/usr/share/java/postgresql.jar")
MAVEN = ".m2/repository/org/postgresql/postgresql/*/postgresql-*.jar"
PROGRAM = Path(__file__).with_name("Ask.java")


def driver() -> Path | None:
    """Return JDBC_JAR if it is set, otherwise the newest driver that is found."""
    if named := os.environ.get("JDBC_JAR"):
        return Path(named)
    fetched = sorted(Path.home().glob(MAVEN), key=_version)
    if fetched:
        return fetched[-1]
    return DEBIAN if DEBIAN.exists() else None


def ask_by_jdbc(url: str) -> str:
    """Return the answer to `SELECT 'reached ' || current_user`, or the driver's error. Skips the
    test if there is no JDBC driver."""
    jar = driver()
    if jar is None or shutil.which("java") is None:
        pytest.skip("no JDBC driver is installed (libpostgresql-jdbc-java, or JDBC_JAR)")
    ran = subprocess.run(
        ["java", "-cp", jar, PROGRAM, url], capture_output=True, text=True, timeout=120
    )
    return ran.stdout.strip() or ran.stderr


def _version(jar: Path) -> list[int]:
    return [int(part) for part in jar.parent.name.split(".") if part.isdigit()]
