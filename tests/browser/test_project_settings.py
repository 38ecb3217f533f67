"""A project's settings and first steps in a browser: forms in dialogs, and their requests."""

import re

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import expect_accessible
from tests.browser.test_journey import sign_in
from tests.support.project import Project
from tests.support.stack import Stack
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def shop(stack: Stack) -> Project:
    return Project.create(stack, stack.client(), name="shop")


@pytest.fixture
def page_of(page: Page, shop: Project) -> Page:
    sign_in(page, shop.client.key)
    return page


def test_addresses_are_changed_in_a_dialog_that_warns_of_locking_oneself_out(
    page_of: Page, shop: Project
) -> None:
    page = page_of
    page.goto(f"/projects/{shop.id}/settings")
    page.locator("#change-addresses").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Addresses", exact=True).fill("192.0.2.0/24\n\n 2001:db8::1 ")
    dialog.get_by_label("Only for protected branches").check()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_text("is not in the list")).to_be_visible()
    expect_accessible(page)
    dialog.get_by_label("Save the list without my address").check()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Allowed addresses changed.")).to_be_visible()
    facts = page.locator("section", has=page.get_by_role("heading", name="Allowed addresses"))
    expect(facts).to_contain_text("192.0.2.0/24, 2001:db8::1. Only protected branches are limited")


def test_quotas_are_typed_in_hours_and_shown_with_what_is_used(
    page_of: Page, shop: Project
) -> None:
    page = page_of
    page.goto(f"/projects/{shop.id}/settings")
    page.locator("#change-quotas").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Compute time (hours)").fill("1.5")
    dialog.get_by_label("Written data (GB)").fill("0.25")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Quotas changed.")).to_be_visible()
    expect(page.get_by_text(re.compile("of 1.5 h"))).to_be_visible()
    expect_accessible(page)


def test_the_first_steps_lead_on(page: Page, stack: Stack) -> None:
    fresh = Project.create(stack, stack.client(), name="fresh")
    sign_in(page, fresh.client.key)
    page.goto(f"/projects/{fresh.id}")
    steps = page.locator(".steps")
    expect(steps.locator("li")).to_have_count(4)
    expect(steps.locator(".done")).to_have_count(1)
    page.locator("#step-branch_create").click()
    page.locator("#dialog").get_by_label("Name").fill("dev")
    page.locator("#dialog").get_by_role("button", name="Create branch").click()
    branches = fresh.path + "/branches"
    wait_for(lambda: len(fresh.client.get(branches)["branches"]) == 2, "the branch")
    page.wait_for_url("**/branches/br-*")
    page.goto(f"/projects/{fresh.id}")
    expect(steps.locator(".done")).to_have_count(2)
    expect_accessible(page)
    # The page sees by itself that a client has connected.
    with psycopg.connect(fresh.created["connection_uris"][0]["connection_uri"]) as client:
        client.execute("SELECT 1")
    expect(steps.locator(".done")).to_have_count(3, timeout=90_000)
