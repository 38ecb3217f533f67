"""The tags that the console has in the place of Django's do the same."""

import pytest
from django.template import Context, Engine
from django.test.utils import override_script_prefix
from django.urls import NoReverseMatch

IDS = {"project": "p-1", "endpoint": "ep-2", "slash": "a/b"}
TAGS = [
    "{% url 'dashboard' %}",
    "{% url 'project' project %}",
    "{% url 'endpoint' project endpoint %}",
    "{% url 'project' project_id=project %}",
    "{% url 'project' project as here %}[{{ here }}]",
    "{% url 'project' slash as here %}[{{ here }}]",
    "{% url 'nowhere' as here %}[{{ here }}]",
]


@pytest.mark.parametrize("prefix", ["/", "/perch/"])
def test_addresses_are_the_same_as_djangos(prefix: str) -> None:
    ours, djangos = Engine(builtins=["console.templatetags.console_tags"]), Engine()
    with override_script_prefix(prefix):
        for tag in TAGS * 2:
            made, expected = (
                engine.from_string(tag).render(Context(IDS)) for engine in (ours, djangos)
            )
            assert made == expected, tag
        with pytest.raises(NoReverseMatch):
            ours.from_string("{% url 'project' slash %}").render(Context(IDS))
