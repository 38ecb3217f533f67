"""The query page: SQL on a branch as one of its roles, and the tree of its tables.

Nothing is stored on the server: what is typed is sent with the form, and results are shown once."""

import time
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from console.api.errors import APIError, NotOffered
from console.pages.problems import words_beside
from console.pages.responses import READ_ONLY
from console.query import sql_over_http
from console.query.csv_text import write_csv
from console.query.place import (
    DEFAULT_TIMEOUT,
    PLACE,
    TIMEOUTS,
    UNKNOWN,
    PlaceForm,
    Refused,
    connection_uri,
    context_without_choices,
    failure_words,
    offer_places,
    run,
)
from console.query.results import ANALYZE, EXPLAIN, mark_of, shown_results
from console.query.sql_over_http import Query, SqlFailed
from console.query.statements import MAX_STATEMENTS, split
from console.query.table_description import TABLES, listed_tables
from console.request import ConsoleRequest
from console.sign_in import sessions

REPEATED = (*PLACE, "seconds", "sql")
PREFIXES = {"explain": EXPLAIN, "analyze": ANALYZE}


class QueryForm(PlaceForm):
    # Names this run, so that it can be cancelled; scripts fill it in.
    marker = forms.RegexField(r"\A[0-9a-f]{16,64}\Z", required=False, widget=forms.HiddenInput)
    seconds = forms.TypedChoiceField(
        label="Timeout",
        choices=[(seconds, f"{seconds} s") for seconds in TIMEOUTS],
        coerce=int,
        required=False,
        empty_value=None,
        initial=DEFAULT_TIMEOUT,
    )
    read_only = forms.BooleanField(label="Read only", required=False, initial=True)
    sql = forms.CharField(
        label="SQL",
        strip=False,
        required=False,
        widget=forms.Textarea(
            attrs={
                "rows": 9,
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
                "data-run": "",
                "placeholder": "Type SQL here, such as SELECT version();",
            }
        ),
    )


def require_perch(request: ConsoleRequest) -> bool:
    """Return True if the key is read-only, and so gets no passwords. Raises NotOffered if the
    server is not Perch."""
    sign_in = sessions.present(request)
    if sign_in is not None and not sign_in.account.is_perch:
        raise NotOffered("Queries need a Perch server.")
    return sign_in is not None and sign_in.account.read_only


def show(request: ConsoleRequest, project_id: str) -> HttpResponse:
    is_read_only = require_perch(request)
    form = QueryForm(request.POST or None)
    act = request.POST.get("act", "")
    answer: dict[str, Any] = {"shows_tables": act == "tables", "project_id": project_id}
    if is_read_only:
        answer["refused"] = READ_ONLY
    elif request.method == "POST" and act != "choose":
        answer |= _answer(request, project_id, form, act)
    if "csv" in answer:
        return HttpResponse(
            answer["csv"],
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="result.csv"'},
        )
    if request.htmx and request.method == "POST" and act != "choose":
        # For htmx, answer only with the part that was asked for.
        template = "_query_tables.html" if act == "tables" else "_query_answer.html"
        return render(request, template, answer | {"form": form})
    context = _place(request, project_id, form) | answer | {"form": form}
    template = "_query_place.html" if request.htmx and act == "choose" else "query.html"
    return render(request, template, context)


@require_POST
def cancel(request: ConsoleRequest, project_id: str) -> HttpResponse:
    """Cancel the run of the form's marker in Postgres. The answer says whether it was running."""
    form = QueryForm(request.POST)
    if require_perch(request) or not form.is_valid() or not form.cleaned_data["marker"]:
        return JsonResponse({"problem": UNKNOWN}, status=422)
    chosen = form.cleaned_data | {"branch": request.POST.get("other") or request.POST["branch"]}
    try:
        uri = connection_uri(request, project_id, chosen)
        server, account = request.api.server, request.memory.account
        is_cancelled = sql_over_http.cancel(server, uri, chosen["marker"], account=account)
    except Refused as refused:
        return JsonResponse({"problem": str(refused)}, status=422)
    except SqlFailed as failure:
        return JsonResponse({"problem": failure_words(failure)}, status=422)
    return JsonResponse({"cancelled": is_cancelled})


def _place(request: ConsoleRequest, project_id: str, form: QueryForm) -> dict[str, Any]:
    """Fill the form's choices. If they cannot be read, the page keeps what was typed, and the
    answer."""
    is_choosing = request.POST.get("act") == "choose"
    try:
        return offer_places(request, project_id, form)
    except APIError as problem:
        # An open page shows the problem, and keeps the choices that it has.
        if request.method != "POST" or (request.htmx and is_choosing):
            raise
        refused = {"refused": words_beside(problem)} if is_choosing else {}
        return context_without_choices(project_id, form) | refused


def _answer(request: ConsoleRequest, project_id: str, form: QueryForm, act: str) -> dict[str, Any]:
    if not form.is_valid():
        return {"refused": UNKNOWN}
    chosen = form.cleaned_data
    if act == "tables":
        answer = _run(request, project_id, chosen, [TABLES])
        if "results" in answer:
            place = urlencode({name: chosen[name] for name in PLACE if chosen[name]})
            rows_url = f"{reverse('tables', args=[project_id])}?{place}"
            return listed_tables(answer["results"][0]) | {"rows_url": rows_url}
        return answer
    typed: str = chosen["sql"].replace("\r\n", "\n")
    statements = split(typed)
    if not statements:
        return {"refused": "Enter a statement."}
    if len(statements) > MAX_STATEMENTS:
        return {"refused": f"At most {MAX_STATEMENTS} statements can be run at once."}
    act, chosen = _apply_button(request, form, act)
    csv = request.POST.get("csv", "")
    if csv:
        # The statements run once more, and must not have an effect twice.
        chosen = chosen | {"read_only": True}
    prefix = PREFIXES.get(act, "")
    queries = [Query(prefix + statement.text) for statement in statements]
    answer = _run(request, project_id, chosen, queries)
    if failure := answer.get("failure"):
        answer["mark"] = mark_of(failure, typed, statements, prefix=prefix)
        # What the button sends that runs the statements again and lets them write.
        answer["write"] = f"{act or 'run'} {chosen['branch']}"
        answer["is_other"] = chosen["branch"] != form.cleaned_data["branch"]
        return answer
    if "results" not in answer:
        return answer
    if csv:
        at = int(csv) if csv.isdecimal() and len(csv) < 4 else 0
        result = answer["results"][min(at, len(statements) - 1)]
        return {"csv": write_csv([[column.name for column in result.columns], *result.rows])}
    texts = [one.text for one in statements] if len(statements) > 1 else []
    # What a download sends, whatever is typed since.
    repeated = {"act": act, **{name: chosen[name] or "" for name in REPEATED}}
    return answer | {"results": shown_results(answer["results"], texts), "repeated": repeated}


def _apply_button(request: ConsoleRequest, form: QueryForm, act: str) -> tuple[str, dict[str, Any]]:
    """Return the act and what the form has chosen, as changed by the buttons of an answer."""
    chosen = form.cleaned_data
    if confirmed := request.POST.get("write", ""):
        act, _, branch = confirmed.partition(" ")
        if branch == chosen["branch"]:
            form.data = {**request.POST.dict(), "read_only": ""}
        return act, chosen | {"branch": branch, "read_only": False}
    if other := request.POST.get("other", ""):
        # The statements were written for the chosen branch. On another one, they change nothing
        # until that is confirmed.
        return act, chosen | {"branch": other, "read_only": True}
    return act, chosen


def _run(
    request: ConsoleRequest, project_id: str, chosen: dict[str, Any], queries: list[Query]
) -> dict[str, Any]:
    """Run the queries. Returns their results, or why there are none."""
    began = time.perf_counter()

    def took() -> int:
        return round((time.perf_counter() - began) * 1000)

    try:
        results = run(request, project_id, chosen, queries, read_only=chosen["read_only"])
    except Refused as refused:
        return {"refused": str(refused)}
    except SqlFailed as failure:
        is_read_only = chosen["read_only"]
        if failure.is_cancel and request.POST.get("act") != "tables":
            return {"cancelled": failure, "ms": took(), "is_read_only": is_read_only}
        is_download = "csv" in request.POST
        return {"failure": failure, "is_read_only": is_read_only, "is_download": is_download}
    return {"results": results, "ms": took()}
