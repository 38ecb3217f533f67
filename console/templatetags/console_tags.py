"""Template tags and filters for times, durations, sizes, icons and copy buttons."""

import html
import re
from collections.abc import Hashable
from datetime import UTC, datetime
from functools import cache, lru_cache
from urllib.parse import quote, urlencode

from django import template
from django.conf import settings
from django.template.defaulttags import ForNode, URLNode
from django.template.defaulttags import do_for as django_for
from django.template.defaulttags import url as django_url
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import get_current_timezone_name, localtime

from console import bundles, turns
from console.api.resources.operations import Actor

register = template.Library()

# Kinds of values that are short enough to be read out by a screen reader.
NAMED = (" id", "host")
NOTHING = "\N{EN DASH}"
MINUTE, HOUR, DAY = 60, 3600, 86400
OPERATION_ID = re.compile(r"\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")


@register.simple_tag
def icon(name: str) -> SafeString:
    # With DEBUG, an icon that is changed is shown at once.
    return _icon.__wrapped__(name) if settings.DEBUG else _icon(name)


@cache
def _icon(name: str) -> SafeString:
    return render_to_string(f"icons/{name}.svg")


@register.simple_tag
def memoized(template_name: str, **values: Hashable) -> SafeString:
    """Include a template that shows nothing but these values, with dates in the reader's zone, and
    keep the result: most rows of a list are the same as in the answer before, and rendering them
    takes most of its time."""
    render = _memoized.__wrapped__ if settings.DEBUG else _memoized
    around = (get_script_prefix(), get_current_timezone_name())
    return render(around, template_name, *values.items())


@lru_cache(maxsize=1024)
def _memoized(
    around: tuple[str, str], template_name: str, *values: tuple[str, Hashable]
) -> SafeString:
    return render_to_string(template_name, dict(values))


@register.simple_tag
def bundle(name: str) -> str:
    """The address of the stylesheet ("css"), the script ("js") or the icon ("svg")."""
    return bundles.address(name)


class TurnNode(template.Node):
    def render(self, context: template.Context) -> str:
        turns.let_others()
        return ""


@register.tag("for")
def do_for(parser: template.base.Parser, token: template.base.Token) -> ForNode:
    """The tag `for`, in which others have their turn: so the longest list holds up nobody else."""
    found = django_for(parser, token)
    found.nodelist_loop.insert(0, TurnNode())  # type: ignore[arg-type] # its items are nodes
    return found


class AddressNode(URLNode):
    """The tag `url`, which keeps addresses. Pages have hundreds, of which most are the same again;
    Django makes each anew, from all patterns of that name."""

    def render(self, context: template.Context) -> str:
        if self.kwargs:
            return super().render(context)
        name, ids = self.view_name.resolve(context), [arg.resolve(context) for arg in self.args]
        if self.asvar is None:
            return html.escape(address(name, *ids))
        try:
            context[self.asvar] = address(name, *ids)
        except NoReverseMatch:
            context[self.asvar] = ""
        return ""


def address(name: str, *ids: str) -> str:
    """Return what Django's `reverse` does. Raises NoReverseMatch."""
    return _address(get_script_prefix(), name, *ids)


@lru_cache(maxsize=8192)
def _address(prefix: str, name: str, *ids: str) -> str:
    return reverse(name, args=ids)


@register.tag("url")
def url(parser: template.base.Parser, token: template.base.Token) -> AddressNode:
    found = django_url(parser, token)
    return AddressNode(found.view_name, found.args, found.kwargs, found.asvar)


@register.simple_tag
def in_dialog(name: str, *ids: str, **query: str) -> SafeString:
    """Return the attributes of a link to a form. The form opens in the page's dialog or, without
    scripts, as a page of its own."""
    url = address(name, *ids)
    if query:
        url = f"{url}?{urlencode(query, safe='/', quote_via=quote)}"
    url = html.escape(url)
    return mark_safe(f'href="{url}" hx-get="{url}" hx-target="#dialog"')  # noqa: S308 # escaped


COPY = (
    '<button type="button" class="bare copy needs-script" data-copy="{}" aria-label="Copy {}{}"'
    ' title="Copy {}">{}{}</button>'
)


@register.simple_tag
def copy(value: str, what: str) -> SafeString:
    """Render a button that copies `value`. `what` names the value to screen readers; the value
    itself is added for kinds of which a page may have several."""
    copied, named = html.escape(value), html.escape(what)
    which = f" {copied}" if what.endswith(NAMED) else ""
    button = COPY.format(copied, named, which, named, icon("copy"), icon("check"))
    return mark_safe(button)  # noqa: S308 # escaped, each


@register.simple_tag
def branch_url(project_id: str, branch_id: str) -> str:
    """Return the address of a branch's page or, if the id cannot be part of it, of the list."""
    try:
        return address("branch", project_id, branch_id)
    except NoReverseMatch:
        return address("branches", project_id)


@register.filter
def sentence(words: str) -> str:
    """Begin with a capital letter, unless the first word is an address, a name or code."""
    first = words.split(maxsplit=1)[0] if words.strip() else ""
    return words[:1].upper() + words[1:] if first.rstrip(",.:;").isalpha() else words


@register.filter
def endpoint_type(value: str) -> str:
    """ "read_write" as “Read-write”."""
    return value.replace("_", "-").capitalize()


@register.filter
def operation_links(words: str, project_id: str) -> SafeString:
    """Make each operation id in the words a link to the operation."""
    parts = OPERATION_ID.split(words)
    linked = [
        format_html('<a href="{}">{}</a>', reverse("operation", args=[project_id, part]), part)
        if place % 2
        else escape(part)
        for place, part in enumerate(parts)
    ]
    return mark_safe("".join(linked))  # noqa: S308 # escaped, each


@register.filter
def actor_words(actor: Actor, own_key: int | None) -> str:
    """Return the words that follow “by”; “you” if it was done with the reader's own key."""
    return actor.words(own_key)


@register.filter
def actor_label(actor: Actor, own_key: int | None) -> str:
    return actor.label(own_key)


def _time(moment: datetime, title: str, words: str, attributes: str = "") -> SafeString:
    """Render a time. The words and the rest are made here, so that none needs to be escaped."""
    start = f'<time datetime="{moment.isoformat()}" title="{title}"{attributes}>'
    return mark_safe(f"{start}{words}</time>")  # noqa: S308


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """Render a time as how long ago it was, with the exact time as the tooltip."""
    if moment is None:
        return NOTHING
    return _time(moment, _exact(moment), _ago(moment), ' data-moves="ago"')


@register.filter
def elapsed(moment: datetime | None) -> SafeString | str:
    """Render the time since a moment. The browser keeps it up to date."""
    if moment is None:
        return NOTHING
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    words = f"{int(seconds)} s" if seconds < 10 else _long(seconds)
    return _time(moment, f"since {_exact(moment)}", words, ' data-moves="elapsed"')


@register.filter
def exactly(moment: datetime | None) -> SafeString | str:
    """Render a time to the second in the reader's zone; in UTC if that is not known."""
    if moment is None:
        return NOTHING
    local = localtime(moment)
    zone = "" if local.utcoffset() else " <small>UTC</small>"
    return _time(moment, _exact(moment), f"{local:%Y-%m-%d %H:%M:%S}{zone}")


@register.filter
def precisely(moment: datetime | None) -> SafeString | str:
    """Render a time to the millisecond in the reader's zone, with UTC beside it."""
    if moment is None:
        return NOTHING
    local, utc = localtime(moment), moment.astimezone(UTC)
    time = _time(moment, _exact(moment), local.isoformat(" ", "milliseconds")[:23])
    return time + format_html(
        " <small>{}</small>", f"{utc:%H:%M:%S} UTC" if local.utcoffset() else "UTC"
    )


def to_the_millisecond(moment: datetime) -> str:
    """Format a time in the reader's zone, with the zone's name, for where no markup is possible."""
    local = localtime(moment)
    return f"{local.isoformat(' ', 'milliseconds')[:23]} {local:%Z}"


@register.filter
def past_moment(text: str) -> SafeString | str:
    """Render a past moment that an address names: a time as `precisely` does, an LSN as it is."""
    try:
        at = datetime.fromisoformat(text.strip())
        return precisely(at.replace(tzinfo=at.tzinfo or UTC))
    except (ValueError, OverflowError):
        return text


@register.filter
def clock(moment: datetime | None) -> SafeString | str:
    """Render the time of day, in the reader's zone; for use beside the day."""
    if moment is None:
        return NOTHING
    return _time(moment, _exact(moment), f"{localtime(moment):%H:%M:%S}")


@register.filter
def duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return _long(milliseconds / 1000)


@register.filter
def period(seconds: int) -> str:
    """Format a period that somebody has chosen, such as “1 day” or “90 minutes”."""
    for unit, length in (("day", DAY), ("hour", HOUR), ("minute", MINUTE)):
        if seconds and seconds % length == 0:
            return f"{seconds // length} {unit}{'' if seconds == length else 's'}"
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def _long(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"
    if seconds < HOUR:
        return f"{int(seconds // MINUTE)} min {int(seconds % MINUTE)} s"
    if seconds < 2 * DAY:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE)} min"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"


CU = '<abbr{} title="Compute unit: 1 vCPU and 4 GB of memory">CU</abbr>'


@register.filter
def explained_cu(words: str, by_keyboard: str = "") -> SafeString:
    """Explain CU where it stands in the words. Only on a page of one thing is the explanation
    reached by keyboard, because in a list it would be one stop more for each row."""
    before, unit, after = words.partition("CU")
    focus = SafeString(' tabindex="0"') if by_keyboard else ""
    return format_html("{}{}{}", before, format_html(CU, focus) if unit else "", after)


ID = re.compile(r"[\w.]+(?:-[\w.]+)+,?")


@register.filter
def whole_ids(words: str) -> SafeString:
    """Keep names with hyphens from being broken at these, as long as a line has room for them. A
    comma stays with the name before it."""
    return mark_safe(ID.sub(r'<span class="whole">\g<0></span>', escape(words)))  # noqa: S308


@register.filter
def size(count: int | None) -> str:
    """Format a number of bytes in a suitable unit."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _exact(moment: datetime) -> str:
    """Format a time in the reader's zone, with its offset from UTC."""
    local = localtime(moment)
    return f"{local:%Y-%m-%d %H:%M:%S} {f'UTC{local:%z}' if local.utcoffset() else 'UTC'}"


def _ago(moment: datetime) -> str:
    now = datetime.now(UTC)
    seconds = (now - moment).total_seconds()
    # The clocks of two machines differ a little, so a time slightly ahead counts as now.
    if seconds < 10:
        return "just now"
    if seconds < MINUTE:
        return f"{int(seconds // 10) * 10} s ago"
    if seconds < HOUR:
        return f"{int(seconds // MINUTE)} min ago"
    if seconds < DAY:
        return f"{int(seconds // HOUR)} h ago"
    if seconds < 30 * DAY:
        return f"{int(seconds // DAY)} d ago"
    return f"{localtime(moment):%Y-%m-%d}"
