"""A client's connection is traced by its id, to the operation that it has scheduled."""

from tests.support.log_lines import await_line, read_log
from tests.support.place import Place
from tests.support.stack import Stack


def test_a_clients_id_leads_to_the_start_that_it_caused(stack: Stack, place: Place) -> None:
    place.suspend()
    before = len(read_log(stack.state_dir, "proxy"))
    assert place.query("SELECT 1") == (1,)
    started = place.endpoint_operations("start_compute")[0]
    line = await_line(stack, "worker", operation=started["id"], message="operation finished")
    joined = [
        line
        for line in read_log(stack.state_dir, "proxy")[before:]
        if line.get("endpoint") == place.endpoint_id and line["message"] == "connected"
    ]
    assert [one["request"] for one in joined] == [line["request"]]
    assert (joined[0]["role"], joined[0]["client"]) == (place.role, "127.0.0.1")


def test_the_name_of_a_role_cannot_forge_a_line(stack: Stack, shop: Place) -> None:
    forged = "x\n2026-11-21T16:20:01.123Z level=INFO process=proxy message=connected"
    shop.refusal(user=forged, password="wrong")
    # The whole name is one value of one line.
    error = f'password authentication failed for user "{forged}"'
    await_line(stack, "proxy", message="connection refused", sqlstate="28P01", error=error)
