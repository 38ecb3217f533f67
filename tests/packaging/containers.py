"""The image of deploy/oci, and its compose file, run by podman in a storage of the tests' own."""

import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import ROOT

OCI = ROOT / "deploy" / "oci"
IMAGE = "localhost/perch-of-the-tests"
DATABASE_IMAGE = "localhost/perch-database-of-the-tests"
TOOLS = ("buildah", "mmdebstrap", "podman", "runc", "netavark")
# The image with Perch also has a Postgres: that of the wheel, which stands here for the one that
# compose.yaml names, because the tests reach no registry of images.
START_POSTGRES = """\
#!/bin/sh
set -eu
data=/var/lib/postgresql/data
if [ ! -e $data/PG_VERSION ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb -D $data -U "$POSTGRES_USER" --auth=scram-sha-256 --pwfile=/tmp/password
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data postgres
  echo "host all all all scram-sha-256" >> $data/pg_hba.conf
fi
exec postgres -D $data -c "listen_addresses=*" -c unix_socket_directories=/tmp
"""
# Debian 12's podman 4.3 refuses to start a container that requires running ones. The tests, and
# podman-compose, start them in the right order anyway.
PODMAN = """\
#!/bin/bash
kept=()
for one in "$@"; do [[ $one = --requires=* ]] || kept+=("$one"); done
exec podman "${kept[@]}"
"""
DATABASE = f"""\
FROM {IMAGE}
USER 0:0
COPY --chmod=755 start-postgres /usr/local/bin/start-postgres
RUN install -d -o perch -g perch -m 700 /var/lib/postgresql \\
    && ln -s "$(dirname "$(find /opt/perch -name pg_isready)")" /opt/postgres
ENV PATH=/opt/postgres:/usr/local/bin:/usr/bin:/bin
USER 10001:10001
ENTRYPOINT ["start-postgres"]
"""


@dataclass(frozen=True)
class Podman:
    """podman and buildah with a storage in `place`, and compose.yaml with these variables."""

    place: Path
    variables: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "DJANGO" not in name}
        return {
            **kept,
            "PYTHON": sys.executable,
            "CONTAINERS_STORAGE_CONF": str(self.place / "storage.conf"),
            # Timers of systemd, which not every host has, would run the health checks.
            "DISABLE_HC_SYSTEMD": "true",
            **self.variables,
        }

    def configure(self) -> None:
        """Write podman's configuration. Its default limits are more than some hosts let it set."""
        files = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        listed = f'"nofile={files}:{files}", "nproc=16384:16384"'
        (self.place / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = [{listed}]\n"
            '[engine]\nruntime = "runc"\n[network]\nnetwork_backend = "netavark"\n'
            f'network_config_dir = "{self.place}/networks"\n'
        )
        (self.place / "podman").write_text(PODMAN)
        (self.place / "podman").chmod(0o755)
        (self.place / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.place}/images"\n'
            f'runroot = "{self.place}/running"\n'
        )

    def run(self, *command: str | Path, check: bool = True, timeout: float = 300) -> str:
        """Run the command and return what it printed, with errors if it is not checked."""
        environment = self.environment
        if "build" not in Path(command[0]).name:
            # buildah would also try to set these limits, which are no lower than its own.
            environment["CONTAINERS_CONF"] = str(self.place / "containers.conf")
        done = subprocess.run(
            command,
            cwd=self.place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout if check else f"{done.stdout}\n{done.stderr}"

    def compose(self, *arguments: str, timeout: float = 600) -> str:
        """Run podman-compose on compose.yaml, of which `place` has a copy."""
        program = (sys.executable, "-m", "podman_compose", "--podman-path", self.place / "podman")
        return self.run(*program, *arguments, timeout=timeout)

    def inspect(self, name: str) -> Any:
        (found,) = json.loads(self.run("podman", "inspect", name))
        return found

    def build_images(self, wheel: Path) -> None:
        """Build Perch's image by deploy/oci/build, and one of a Postgres for its rows."""
        self.run(OCI / "build", wheel, IMAGE, timeout=1500)
        context = self.place / "database"
        context.mkdir()
        (context / "start-postgres").write_text(START_POSTGRES)
        (context / "Containerfile").write_text(DATABASE)
        self.run("buildah", "build", "--isolation", "chroot", "-t", DATABASE_IMAGE, context)


def skip_if_missing() -> None:
    """Skip the test if this host lacks something that builds or runs the image."""
    missing = [tool for tool in TOOLS if not _has(tool)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (apt-get install them)")
    if os.geteuid() != 0:
        pytest.skip("only root can build the image without a registry")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the image's Debian release has Python 3.11, for which this Python gets wheels")


def _has(tool: str) -> bool:
    return shutil.which(tool) is not None or Path("/usr/lib/podman", tool).exists()
