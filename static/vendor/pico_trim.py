"""Drops from pico.min.css the selectors of what no page of the console has; see pico.scss."""

import pathlib
import re

css = pathlib.Path(__file__).with_name("pico.min.css")
unused = re.compile(r"\[type=checkbox\]\[role=switch\]|^\[dir=rtl\]|::-ms-")


def used(rule):
    kept = [one for one in re.split(r",(?![^()]*\))", rule[1]) if not unused.search(one)]
    return ",".join(kept) + rule[2] if kept else ""


css.write_text(re.sub(r"((?<=[{}])[^{}@]+)(\{[^{}]*\})", used, css.read_text()))
