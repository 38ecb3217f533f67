"""nginx in front of several APIs, from which an operator takes one out before it is restarted."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import requests

from tests.support.stack import free_port
from tests.support.waiting import wait_for

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
# Without keep-alive, so that no client sends a request on a connection that a reload closes.
CONFIGURATION = """
daemon off; pid {directory}/pid; error_log {directory}/error.log; worker_processes 1;
events {{}}
http {{
    access_log off; keepalive_timeout 0;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    upstream api {{ {servers} }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://api; }} }}
}}
"""


class LoadBalancer:
    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        assert NGINX is not None, "install nginx-light, as .ci/run does"
        self._directory = directory
        self._ports = list(ports)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/api/v2"
        self._write(out=None)
        self._process = subprocess.Popen(
            [NGINX, "-c", directory / "nginx.conf"], stderr=sys.stderr, cwd="/"
        )

    def take_out(self, port: int) -> None:
        """Send no more requests to the API at this port. Returns once it has none."""
        self._reload(out=port)

    def put_back(self, port: int) -> None:
        self._reload(out=None)

    def answers(self) -> bool:
        try:
            return requests.get(self.url.replace("/api/v2", "/readyz"), timeout=5).ok
        except requests.RequestException:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def _write(self, *, out: int | None) -> None:
        servers = " ".join(
            f"server 127.0.0.1:{port}{' down' if port == out else ''};" for port in self._ports
        )
        (self._directory / "nginx.conf").write_text(
            CONFIGURATION.format(directory=self._directory, servers=servers, port=self._port)
        )

    def _reload(self, *, out: int | None) -> None:
        self._write(out=out)
        before = psutil.Process(self._process.pid).children()
        self._process.send_signal(signal.SIGHUP)
        # The processes with the previous configuration end after their last request.
        wait_for(lambda: not any(one.is_running() for one in before), "nginx to reload", timeout=60)


@contextmanager
def load_balancer(directory: Path, ports: Sequence[int]) -> Iterator[LoadBalancer]:
    balancer = LoadBalancer(directory, ports)
    try:
        wait_for(balancer.answers, "nginx")
        yield balancer
    finally:
        balancer.stop()
