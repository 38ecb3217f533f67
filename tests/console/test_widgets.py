"""Selects look as Django would render them."""

from django import forms
from django.forms.renderers import DjangoTemplates
from django.test.html import parse_html

from console.forms.widgets import WidgetRenderer

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
