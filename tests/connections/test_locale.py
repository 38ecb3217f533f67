"""Letters outside ASCII have cases: new projects have the locale C.UTF-8, and those that earlier
releases made keep theirs."""

from collections.abc import Iterator

import pytest

from tests.support.locales import KNOWN, UNKNOWN, check_databases, projects_as_before
from tests.support.majors import debians_postgres
from tests.support.past import notes, with_history, write
from tests.support.place import Place
from tests.support.stack import Stack, new_state_dir, running_stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A service for this module, in place of the shared one."""
    bins = f"15={debians_postgres()}"
    with new_state_dir() as state_dir, running_stack(state_dir, PERCH_POSTGRES_BINS=bins) as one:
        yield one


@pytest.fixture(scope="module")
def earlier(stack: Stack) -> Place:
    """A project as an earlier release made it, with history whose base is that release's
    template."""
    with projects_as_before(stack):
        return with_history(Place.create(stack, stack.client()))


@pytest.mark.parametrize("version", [18, 15])
def test_a_new_project_knows_the_cases_of_all_letters(stack: Stack, version: int) -> None:
    place = Place.create(stack, stack.client(), pg_version=version)
    assert place.client.get(place.path)["project"]["locale"] == "C.UTF-8"
    check_databases(place, KNOWN)


def test_a_project_of_an_earlier_release_keeps_its_locale_and_its_past(
    stack: Stack, earlier: Place
) -> None:
    """The base of its history is another template than that of the new projects beside it."""
    beside = with_history(Place.create(stack, earlier.client))
    for place, expected in ((earlier, UNKNOWN), (beside, KNOWN)):
        write(place, "first")
        at, _ = write(place, "second")
        write(place, "third")
        made = place.new_branch(parent_timestamp=at)["branch"]["id"]
        assert notes(place, made) == ["first", "second"]
        check_databases(place, expected)
    assert earlier.client.get(earlier.path)["project"]["locale"] == "C"
    (release,) = earlier.query("SHOW server_version")
    templates = stack.state_dir / "templates"
    assert (templates / release).is_dir()
    assert (templates / f"{release}-C.UTF-8").is_dir()
