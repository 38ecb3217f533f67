"""What the check of a restored copy finds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.compute import branch_data
from controlplane.compute.integrity import DataDamaged, check_structures
from controlplane.compute.session import socket_dir
from tests.controlplane.test_copies import PARENT, running, state_dir
from tests.support.stack import new_state_dir

__all__ = ["state_dir"]


@pytest.mark.thorough
def test_an_index_that_does_not_have_its_order_is_found(
    state_dir: Callable[[Path], None],
) -> None:
    with new_state_dir() as place:
        state_dir(place)
        branch_data.create_from_template(PARENT)
        sockets = socket_dir(PARENT.replace("br-", "ep-"))
        with running(PARENT) as connection:
            connection.execute("CREATE TABLE things AS SELECT generate_series(1, 5000) AS number")
            connection.execute("CREATE INDEX of_things ON things (number)")
            # An extension of the owner's, with another function of the same name.
            connection.execute("CREATE SCHEMA own")
            connection.execute("CREATE ROLE perch_superuser")
            connection.execute("CREATE EXTENSION amcheck SCHEMA own")
            connection.execute(
                "CREATE FUNCTION public.bt_index_check(oid) RETURNS void LANGUAGE sql AS ''"
            )
            check_structures(sockets)
            # The catalog now says that the order is descending.
            connection.execute(
                "UPDATE pg_index SET indoption = '3' WHERE indexrelid = 'of_things'::regclass"
            )
            with pytest.raises(DataDamaged, match=r'database "postgres": the index \d+ is damaged'):
                check_structures(sockets)
