"""The console's tags and selects make what Django's make, and escape what they are given."""

from html import escape

import pytest
from django import forms
from django.forms.renderers import DjangoTemplates
from django.template import Context, Engine
from django.test.html import parse_html
from django.test.utils import override_script_prefix
from django.urls import NoReverseMatch

from console.api.resources.branches import Branch
from console.branches.rows import BranchRow
from console.forms.widgets import WidgetRenderer

HOSTILE = "\"><b>'&"
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


def render(tag: str) -> str:
    engine = Engine(builtins=["console.templatetags.console_tags"])
    return str(engine.from_string(tag).render(Context({**IDS, "hostile": HOSTILE})))


def test_a_link_opens_its_form_in_the_dialog() -> None:
    query = "?parent=br-1&amp;next=/a%3Fb"
    url = f"/projects/p-1/new-branch{query}"
    tag = "{% in_dialog 'branch_create' project parent='br-1' next='/a?b' %}"
    assert render(tag) == f'href="{url}" hx-get="{url}" hx-target="#dialog"'
    assert "<" not in render("{% in_dialog 'project' project next=hostile %}")


def test_a_copy_button_escapes_what_it_copies() -> None:
    html = render("{% copy hostile 'host' %}")
    assert "<b>" not in html
    assert f'data-copy="{escape(HOSTILE)}" aria-label="Copy host {escape(HOSTILE)}"' in html


def test_a_memoized_template_shows_the_values_of_this_time() -> None:
    tag = "{% memoized '_branch_row.html' cells=cells project_id='p-1' here='/' is_tree=False %}"
    rows = [
        BranchRow(Branch.read({"id": "br-3", "name": name}), "", None, None, 0, 0)
        for name in ("dev", HOSTILE, "dev")
    ]
    template = Engine.get_default().from_string(tag)
    shown = [template.render(Context({"cells": row.cells})) for row in rows]
    assert ">dev</a>" in shown[0]
    assert f">{escape(HOSTILE)}</a>" in shown[1]
    assert shown[2] == shown[0]


CHOICES = [
    ("", "Any"),
    ("a<b>", 'A "quoted" & <b>bold</b> one'),
    ("Group's", [(1, "one"), ("2", "two")]),
]


class Form(forms.Form):
    plain = forms.ChoiceField(choices=CHOICES)
    described = forms.ChoiceField(
        choices=CHOICES,
        required=False,
        help_text="Help.",
        widget=forms.Select(attrs={"data-x": "<'>", "autofocus": True, "hidden": False}),
    )


def test_selects_are_the_same_as_djangos() -> None:
    for data in (None, {"plain": "2", "described": "a<b>"}, {"plain": "elsewhere"}):
        ours, djangos = Form(data), Form(data, renderer=DjangoTemplates())
        for name in Form.base_fields:
            assert isinstance(ours.renderer, WidgetRenderer)
            assert parse_html(str(ours[name])) == parse_html(str(djangos[name])), name
