"""Gives every test accounts of its own on the one running service."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from django.db import connections
from django.test import Client as DjangoClient
from django.utils import timezone

from controlplane.features import features
from controlplane.models import Account, ApiKey, Host, Plan
from tests.controlplane.rows import make_host
from tests.support.bare_postgres import (
    SUPERUSER,
    BarePostgres,
    Programs,
    bare_postgres,
    private_directory,
)
from tests.support.client import Client
from tests.support.place import Place
from tests.support.project import Project
from tests.support.second_host import SecondHost, placing_on, second_host
from tests.support.service import Service
from tests.support.stack import Stack, deleting_projects, new_state_dir, stack, state_dir

__all__ = ["stack", "state_dir"]


@pytest.fixture
def alice(stack: Stack) -> Iterator[Client]:
    client = stack.client()
    yield client
    client.delete_projects()


@pytest.fixture
def bob(stack: Stack) -> Iterator[Client]:
    client = stack.client()
    yield client
    client.delete_projects()


@pytest.fixture
def free(stack: Stack) -> Iterator[Client]:
    """An account on the free plan."""
    client = stack.client(plan="free")
    yield client
    client.delete_projects()


@pytest.fixture(scope="session", autouse=True)
def _has_features() -> None:
    """As in every process of the service, no test waits for their import."""
    features()


@pytest.fixture(scope="session")
def left_as_new() -> list[Project]:
    """Projects that earlier tests have left as they found them."""
    return []


@pytest.fixture(scope="module", autouse=True)
def _leaves_no_projects(left_as_new: list[Project]) -> Iterator[None]:
    with deleting_projects(lambda: [project.client for project in left_as_new]):
        yield


@pytest.fixture
def project(stack: Stack, left_as_new: list[Project]) -> Iterator[Project]:
    """A project of an account of its own, with an active endpoint and an empty database."""
    made = left_as_new.pop().woken() if left_as_new else new_project(stack)
    yield made
    if made.is_as_new():
        left_as_new.append(made)
    else:
        made.client.call("DELETE", made.path)


@pytest.fixture
def fresh_project(stack: Stack) -> Iterator[Project]:
    """A project that no test has changed."""
    made = new_project(stack)
    yield made
    made.client.call("DELETE", made.path)


@pytest.fixture(scope="module")
def standing(stack: Stack) -> Iterator[Project]:
    """A project that the tests of a module share. They leave it as it was."""
    made = new_project(stack)
    yield made
    made.client.call("DELETE", made.path)


def new_project(stack: Stack) -> Project:
    return Project.create(stack, stack.client())


@pytest.fixture(scope="module")
def spare_branch_id(standing: Project) -> str:
    """A branch of the shared project that has no endpoint."""
    return standing.new_branch_id()


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[BarePostgres]:
    """A Postgres for tests that run the code in this process. Such tests need no service."""
    with private_directory() as scratch, bare_postgres(Programs(scratch)) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(scope="session")
def django_db_modify_db_settings(bare_cluster: BarePostgres) -> None:
    database = connections["default"].settings_dict
    database |= {"HOST": str(bare_cluster.directory), "PORT": bare_cluster.port, "USER": SUPERUSER}
    database["OPTIONS"].pop("pool", None)


@pytest.fixture
def host(db: None) -> Host:
    """The host of a region of the same name, whose worker runs."""
    return make_host("local", default=True)


@pytest.fixture
def account(host: Host) -> Account:
    return Account.objects.create(name="alice", plan=Plan.UNLIMITED)


@pytest.fixture
def api(account: Account, client: DjangoClient) -> DjangoClient:
    """A client of the API in this process. Its database is empty, and nothing runs."""
    row, key = ApiKey.issue(account, "tests")
    ApiKey.objects.filter(id=row.id).update(last_used_at=timezone.now())
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return client


@pytest.fixture
def operator(stack: Stack) -> Client:
    """The account that runs the service."""
    return Client(stack.api_url, (stack.state_dir / "api-key").read_text().strip())


@pytest.fixture
def place(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A project of an account of its own, on the first host also if there is a second one."""
    is_alone = "second" not in request.fixturenames
    with nullcontext() if is_alone else placing_on(stack, "local"):
        made = Place.create(stack, stack.client())
    yield made
    made.client.call("DELETE", made.path)


@pytest.fixture(scope="module")
def second(stack: Stack) -> Iterator[SecondHost]:
    """A second host of the service's region, which the tests of a module share. They leave no
    project on it."""
    with new_state_dir() as state_dir, second_host(stack, state_dir) as host:
        yield host


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A service for a module's tests alone, which kill its processes."""
    with new_state_dir() as state_dir:
        made = Service(state_dir)
        try:
            yield made
        finally:
            made.down()
