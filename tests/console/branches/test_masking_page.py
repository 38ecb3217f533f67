"""The page on which columns get their masks, and the proof."""

import json
import re
from html import unescape

from tests.console.conftest import Person, Shop
from tests.console.pages import Page


def masks_in(html: str) -> dict[str, str]:
    """The mask of each column, by its place as the page sends it."""
    found = re.findall(
        r'name="column" value="([^"]*)"><input name="mask" list="masks" value="([^"]*)"', html
    )
    return {unescape(column): unescape(mask) for column, mask in found}


def test_it_works(alice: Person, shop: Shop) -> None:
    shop.start()
    shop.sql(
        "SET ROLE neondb_owner; CREATE TABLE person (id int PRIMARY KEY, email text, first_name"
        " text, motto text, seen timestamptz);"
        "INSERT INTO person VALUES (1, 'ann@corp.com', 'Ann', 'Go on', now())"
    )
    url = f"{shop.url}/branches/{shop.main_id}/mask"
    page = Page(alice.get(url))
    place = ["neondb", "public", "person"]
    email, name, motto = (json.dumps([*place, one]) for one in ("email", "first_name", "motto"))
    assert masks_in(page.html) == {
        email: "anon.fake_email()",
        name: "anon.fake_first_name()",
        motto: "",
        json.dumps([*place, "id"]): "",
        json.dumps([*place, "seen"]): "",
    }
    for rubbish in ("", "5", "[1]", "{}", '"neondb"', "[[[["):
        answer = alice.post(url, {"column": [rubbish], "mask": ["anon.null()"]})
        assert answer.status_code == 400, rubbish
    # What is refused keeps what was typed.
    chosen = {"name": "masked", "column": [email, motto], "mask": ["anon.fake_email()", "nope()"]}
    refused = alice.post(url, chosen)
    assert refused.status_code == 422
    page = Page(refused)
    assert "anon.nope is not offered by this server" in page.text
    assert masks_in(page.html)[motto] == "nope()"

    chosen |= {"column": [email, name, motto], "mask": ["anon.fake_email()", "anon.null()", "= no"]}
    answer = alice.post(url, chosen)
    assert answer.status_code == 302
    branch_id = answer.headers["Location"].rpartition("/")[2]
    made = alice.api.get(shop.branch_path(branch_id))["branch"]
    assert made["name"] == "masked"
    operations = alice.api.get(f"{shop.path}/operations?branch_id={branch_id}")
    shop.done({"operations": operations["operations"]})
    page = Page(alice.get(answer.headers["Location"]))
    assert "Masked · Proof · Rules" in page.text
    proof = alice.get(f"{answer.headers['Location']}/attestation")
    assert proof.headers["Content-Disposition"].startswith("attachment")
    assert json.loads(proof.content)["branch_id"] == branch_id

    # Its rules are shown and replaced, which masks the data anew.
    url = f"{shop.url}/branches/{branch_id}/mask"
    found = masks_in(Page(alice.get(url)).html)
    assert (found[name], found[motto]) == ("anon.null()", "= no")
    answer = alice.post(url, {"column": [email, name, motto], "mask": ["anon.keep()"] * 3})
    assert answer.status_code == 302
    rules = alice.api.get(shop.branch_path(branch_id, "/masking_rules"))["masking_rules"]
    assert {rule["masking_function"] for rule in rules} == {"anon.keep()"}
    operations = alice.api.get(f"{shop.path}/operations?branch_id={branch_id}&limit=1")
    shop.done({"operations": operations["operations"]})
