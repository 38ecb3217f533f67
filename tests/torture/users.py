"""Users of the API. They create, change and delete at random, and ignore refusals."""

from tests.support.client import ENDED
from tests.torture.actor import Actor
from tests.torture.checked_api import Answer, CheckedApi
from tests.torture.past_requests import PAST_WEIGHTS, RESTORED
from tests.torture.user_requests import REQUEST_WEIGHTS, ProjectClient
from tests.torture.world import World

# Seconds. The checks at the end of the run find operations that take longer.
WAITS_AT_MOST = 20.0


class User(Actor):
    """One of an account's users, who share its projects."""

    def __init__(self, world: World, name: str, key: str) -> None:
        super().__init__(world, name)
        self.key = key
        self.api = CheckedApi(self, key)

    def act(self) -> None:
        mine = [one for one, key in self.world.known_projects().items() if key == self.key]
        if len(mine) < self.world.size.projects and (not mine or self.chance.random() < 0.1):
            self._create_project()
            return
        project_id = self.chance.choice(mine)
        project = self._read_project(project_id)
        if project is None:
            self.rest(0.2, 1.0)
            return
        sent = {**REQUEST_WEIGHTS, **PAST_WEIGHTS}
        requests, weights = zip(*sent.items(), strict=True)
        answer = self.chance.choices(requests, weights)[0](project)
        if answer and answer.ok and self.chance.random() < 0.4:
            self._await(project_id, answer)
        self.rest(0.05, 1.5)

    def _create_project(self) -> None:
        name = f"project of {self.name}"
        answer = self.api.call("POST", "/projects", {"project": {"name": name}})
        if answer and answer.ok:
            self.world.projects[answer.body["project"]["id"]] = self.key
            self._await(answer.body["project"]["id"], answer)
            return
        # The project may have been created although its response was lost.
        self._learn_projects()
        self.rest(0.2, 1.0)

    def _learn_projects(self) -> None:
        for project in (self.api.get("/projects?limit=400") or {"projects": ()})["projects"]:
            if project["id"] not in self.world.deletion_requested:
                self.world.projects[project["id"]] = self.key

    def _read_project(self, project_id: str) -> ProjectClient | None:
        """Return the project with its present branches and endpoints; None if these cannot be
        read."""
        branches = self.api.call("GET", f"/projects/{project_id}/branches")
        endpoints = self.api.call("GET", f"/projects/{project_id}/endpoints")
        for answer in (branches, endpoints):
            if answer and answer.status == 404:
                self._forget(project_id)
        if not (branches and branches.ok and endpoints and endpoints.ok):
            return None
        listed = branches.body["branches"]
        project = ProjectClient(
            self.world,
            self.api,
            self.chance,
            project_id,
            [branch for branch in listed if not branch["name"].startswith(RESTORED)],
            endpoints.body["endpoints"],
            [branch for branch in listed if branch["name"].startswith(RESTORED)],
        )
        project.record_listed()
        return project

    def _forget(self, project_id: str) -> None:
        if project_id not in self.world.deletion_requested:
            self.world.journal.broken(
                "what no user has deleted still exists", f"project {project_id}"
            )
        self.world.projects.pop(project_id, None)

    def _await(self, project_id: str, answer: Answer) -> None:
        """Poll the response's operations until they have ended, but not longer than
        WAITS_AT_MOST."""
        waited = 0.0
        for operation in answer.body.get("operations", ()):
            path = f"/projects/{project_id}/operations/{operation['id']}"
            while waited < WAITS_AT_MOST and not self.world.over.is_set():
                told = self.api.get(path)
                if told and told["operation"]["status"] in ENDED:
                    break
                self.world.over.wait(0.25)
                waited += 0.25
