"""Runs, their filters, failures, events, cancel and retry, in a real browser."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import copied
from tests.browser.test_journey import assert_not_reloaded, mark, sign_in
from tests.support.project import Project
from tests.support.stack import Stack


@pytest.fixture
def project(page: Page, stack: Stack) -> Project:
    made = Project.create(stack, stack.client(), name="shop")
    sign_in(page, made.client.key)
    return made


def test_choosing_filters_narrows_the_list(page: Page, project: Project) -> None:
    made = project.client.post(f"{project.path}/branches", {"branch": {"name": "dev"}})
    project.client.finish(made)
    page.goto(f"/projects/{project.id}/operations")
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(2)
    mark(page)
    page.locator(".filters summary").click()
    page.get_by_label("Action").select_option("start_compute")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Create the project with branch main")
    # The address has the choice, so that it can be kept and shared. Nothing else was reset.
    expect(page).to_have_url(re.compile("action=start_compute"))
    page.get_by_label("Status", exact=True).select_option("failed,cancelled")
    expect(page.locator("#live")).to_contain_text("No operation matches.")
    expect(page.get_by_label("Action")).to_have_value("start_compute")
    assert_not_reloaded(page)
    page.reload()
    expect(page.locator("#live")).to_contain_text("No operation matches.")
    page.locator("#clear-filters a").click()
    expect(rows).to_have_count(2)


@pytest.mark.thorough
def test_a_failure_is_shown_until_its_endpoint_is_deleted(
    page: Page, stack: Stack, project: Project
) -> None:
    project.client.finish(project.client.post(project.endpoint_path(rest="/suspend")))
    control = stack.data_dir(project.branch_id) / "global" / "pg_control"
    control.rename(control.with_name("pg_control.away"))
    try:
        (start,) = project.client.post(project.endpoint_path(rest="/start"))["operations"]
        # The page shows the operation's end while it is open.
        page.goto(f"/projects/{project.id}/runs/{start['chain_id']}")
        reason = page.locator(".reason.wrong")
        expect(reason).to_contain_text("Why it failed", timeout=60_000)
        expect(reason).to_contain_text("pg_control")
        expect(reason).to_contain_text("The endpoint is idle, and a retry")
        expect(page.locator(".waterfall")).to_contain_text("failed with the same error")
        expect(page.get_by_role("button", name="Retry")).to_be_visible()
        assert str(stack.state_dir) not in page.content()
    finally:
        control.with_name("pg_control.away").rename(control)

    # The log can be copied to be sent to somebody.
    page.locator(".log summary").click()
    page.get_by_label("Copy log").click()
    assert f"start_compute {start['id']}  failed: " in copied(page)

    # The success of another operation does not hide the failure.
    made = project.client.post(f"{project.path}/branches", {"branch": {"name": "dev"}})
    project.client.finish(made)
    for path in ("", "/branches", "/operations"):
        page.goto(f"/projects/{project.id}{path}")
        expect(page.locator("#poll")).to_contain_text(f"Start endpoint of {project.endpoint_id}")
    row = page.locator(".runs tbody tr").filter(has_text=f"Start endpoint {project.endpoint_id}")
    expect(row).to_contain_text("Error")
    # The timeline marks the failure, by a shape too.
    expect(page.locator(".timeline .bad circle")).to_have_count(1)

    project.client.finish(project.client.call("DELETE", project.endpoint_path()).json())
    page.goto(f"/projects/{project.id}/operations")
    expect(page.locator("#poll")).to_contain_text("No operation in progress")
    expect(page.locator("#poll")).not_to_contain_text("failed")


@pytest.mark.thorough
def test_events_link_to_what_still_exists(page: Page, project: Project) -> None:
    made = project.client.post(f"{project.path}/branches", {"branch": {"name": "brief"}})
    project.client.finish(made)
    brief = made["branch"]["id"]
    project.client.finish(project.client.call("DELETE", project.branch_path(brief)).json())
    page.goto(f"/projects/{project.id}/events")
    created = page.locator(".activity > li").filter(has_text="The branch “brief” was created")
    expect(created).to_contain_text("deleted")
    expect(created.get_by_role("link", name=brief)).to_have_count(0)
    # The events of the request that created everything are one line.
    of_project = page.locator(".activity > li").filter(has_text="The project “").last
    of_project.locator("summary").click()
    expect(of_project).to_contain_text(f"The endpoint {project.endpoint_id} was created")
    of_project.get_by_role("link", name="View run of").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Create the project with branch main")
    page.goto(f"/projects/{project.id}/events")
    mark(page)
    page.locator(".filters summary").click()
    page.get_by_label("Endpoint").select_option(project.endpoint_id)
    expect(created).to_have_count(0)
    assert_not_reloaded(page)


@pytest.mark.thorough
def test_on_a_phone_no_words_overlap(page: Page, project: Project) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    # The endpoint is deleted; this is shown beside the button that copies its id.
    made = project.new_branch_id(name="dev")
    gone = project.done(project.client.delete(project.branch_path(made)))["operations"][-1]
    page.goto(f"/projects/{project.id}/timeline")
    cells = page.locator(".spans td:has(time)")
    assert cells.count()
    for cell in cells.all():
        assert cell.evaluate("it => it.scrollWidth <= it.clientWidth"), cell.inner_text()
    page.goto(f"/projects/{project.id}/runs/{gone['chain_id']}")
    word = page.locator(".facts small", has_text="deleted").bounding_box()
    button = page.locator(".facts dd:has(> small) button.copy").bounding_box()
    assert word
    assert button
    assert button["x"] >= word["x"] + word["width"]


@pytest.mark.thorough
def test_an_operation_is_cancelled_and_retried(page: Page, stack: Stack) -> None:
    project = Project.create(stack, stack.client(), name="shop")
    sign_in(page, project.client.key)
    dialog = page.locator("dialog[open]")
    status = page.locator("#live > .head .state")

    with project.locked():
        suspend, start = project.client.post(project.endpoint_path(rest="/restart"))["operations"]
        # The operation's own address redirects to its run.
        page.goto(f"/projects/{project.id}/operations/{start['id']}")
        expect(page).to_have_url(re.compile(f"/runs/{start['chain_id']}#operation-{start['id']}$"))
        mark(page)
        expect(page.locator(".waterfall")).to_contain_text("Waiting for “Suspend endpoint”")
        expect(page.locator("#poll")).to_contain_text("in progress")

        # The page asks for confirmation; declining changes nothing.
        own = page.locator(f"[id='operation-{start['id']}'] tr.operation .word")
        cancel = page.locator(f"[id='cancel-{start['id']}']")
        cancel.click()
        dialog.get_by_role("button", name="Go back").click()
        expect(dialog).to_have_count(0)
        expect(own).to_have_text("Waiting")
        cancel.click()
        dialog.get_by_role("button", name="Cancel operation").dblclick()
        expect(own).to_have_text("Cancelled")
        expect(page.locator(".notice.success")).to_have_text(re.compile("is cancelled"))
        expect(page.locator(".notice.failure")).to_have_count(0)
        assert_not_reloaded(page)

    # The rest of its run continues, and the page shows it.
    other = page.locator(f"[id='operation-{suspend['id']}'] tr.operation")
    expect(other).to_contain_text("OK")
    expect(page.locator("#live")).to_have_attribute("data-mark", re.compile("."))
    assert project.client.ended(project.id, suspend["id"])["status"] == "finished"

    # A second press of the button before the first answer has no further effect.
    cancelled = page.url
    page.locator("#retry-run").dblclick()
    expect(page).not_to_have_url(re.compile(start["chain_id"]))
    expect(status).to_have_text("OK")
    anew = page.url.rpartition("/")[2]
    page.get_by_role("link", name=f"operation {start['id']}").click()
    expect(page).to_have_url(re.compile(re.escape(cancelled.partition("#")[0])))
    expect(page.locator(".facts")).to_contain_text(anew)
    retries = [one for one in project.operations() if one.get("retry_of")]
    assert [one["chain_id"] for one in retries] == [anew]
    assert project.sql("SELECT 1") == [(1,)]
