"""The JDBC driver that this machine has, and a program that connects by it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Of Debian's libpostgresql-jdbc-java, and those that Maven has fetched.
DEBIAN = Path("/usr/share/java/postgresql.jar")
MAVEN = ".m2/repository/org/postgresql/postgresql/*/postgresql-*.jar"
PROGRAM = Path(__file__).with_name("Ask.java")


def driver() -> Path | None:
    """JDBC_JAR where it is set, else the newest that is found."""
    if named := os.environ.get("JDBC_JAR"):
        return Path(named)
    fetched = sorted(Path.home().glob(MAVEN), key=_version)
    if fetched:
        return fetched[-1]
    return DEBIAN if DEBIAN.exists() else None


def ask_by_jdbc(url: str) -> str:
    """What `SELECT 'reached ' || current_user` answers there, or the driver's error. Skips the test
    where there is no JDBC."""
    jar = driver()
    if jar is None or shutil.which("java") is None:
        pytest.skip("no JDBC driver is installed (libpostgresql-jdbc-java, or JDBC_JAR)")
    ran = subprocess.run(
        ["java", "-cp", jar, PROGRAM, url], capture_output=True, text=True, timeout=120
    )
    return ran.stdout.strip() or ran.stderr


def _version(jar: Path) -> list[int]:
    return [int(part) for part in jar.parent.name.split(".") if part.isdigit()]
