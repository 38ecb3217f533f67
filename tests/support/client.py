"""A client of the API."""

from typing import Any

import requests

from tests.support.waiting import wait_for

# The statuses that are final.
ENDED = ("finished", "failed", "cancelled")


class Client:
    """Calls the API as any HTTP client would."""

    def __init__(self, api_url: str, key: str) -> None:
        self.api_url = api_url
        self.key = key
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {key}"

    def another(self) -> "Client":
        """Return a client of the same account with a connection of its own, for another thread."""
        return Client(self.api_url, self.key)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.session.request(method, self.api_url + path, timeout=60, **options)

    def get(self, path: str, **query: Any) -> Any:
        return self._good(self.call("GET", path, params=query))

    def post(self, path: str, body: Any = None) -> Any:
        return self._good(self.call("POST", path, json=body))

    def patch(self, path: str, body: Any) -> Any:
        return self._good(self.call("PATCH", path, json=body))

    def delete(self, path: str) -> Any:
        return self._good(self.call("DELETE", path))

    def new_project(self, *, wait: bool = True, **attributes: Any) -> Any:
        """Create a project and return the response, by default once its operations have ended."""
        created = self.post("/projects", {"project": attributes})
        if wait:
            self.finish(created)
        return created

    def delete_projects(self) -> None:
        """Delete the account's projects, of which each has some 100 MB on disk. Does nothing if the
        key was revoked."""
        found = self.call("GET", "/projects", params={"limit": 400}).json()
        for project in found.get("projects", ()):
            self.call("DELETE", f"/projects/{project['id']}")

    def finish(self, answer: Any, *, timeout: float = 60.0) -> list[Any]:
        """Wait until all operations of a response have ended, and return them."""
        return [
            self.ended(operation["project_id"], operation["id"], timeout=timeout)
            for operation in answer["operations"]
        ]

    def ended(self, project_id: str, operation_id: str, *, timeout: float = 60.0) -> Any:
        found: list[Any] = []

        def has_ended() -> bool:
            found[:] = [self.get(f"/projects/{project_id}/operations/{operation_id}")["operation"]]
            return found[0]["status"] in ENDED

        wait_for(has_ended, f"operation {operation_id}", timeout=timeout)
        return found[0]

    @staticmethod
    def _good(response: requests.Response) -> Any:
        assert response.ok, f"{response.status_code} {response.text}"
        return response.json()
