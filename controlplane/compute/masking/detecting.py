"""Finds what looks like personal data or a secret in the values of a column.

Each detector is a condition in SQL over a text VALUE. Values that are reserved for examples, and
those that `functions` generates, are not found. Text that merely contains digits looks like some
numbers now and then: such a detector needs a share of the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Detector:
    condition: str
    # The share of a column's values that must look so.
    share: float = 0.0
    # What takes less time, and without which the condition cannot hold.
    hint: str = "true"

    def finds(self, value: str) -> str:
        """The condition that the value, an expression of type text, looks so."""
        return f"CASE WHEN {self.hint} THEN {self.condition} END".replace("VALUE", value)


# The sum of Luhn, over the digits of each group of 13 to 19.
_CARD = r"""EXISTS (SELECT FROM
regexp_matches(VALUE, '(?<!\d)(?<!\d[.-])[3-6](?:[ -]?\d){12,18}(?!\d|[.-]\d)', 'g') AS found,
LATERAL (SELECT reverse(regexp_replace(found[1], '\D', '', 'g')) AS d) AS digits
WHERE 0 = (SELECT sum(CASE WHEN mod(n, 2) = 1 THEN x WHEN x > 4 THEN 2 * x - 9 ELSE 2 * x END) % 10
FROM (SELECT n, CAST(substr(d, n, 1) AS int) AS x FROM generate_series(1, length(d)) AS n) AS each))
"""
# The check digits of ISO 13616: the letters as numbers from 10, the first four characters last.
_IBAN = r"""EXISTS (SELECT FROM
regexp_matches(VALUE, '\m[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}\M', 'g') AS found,
LATERAL (SELECT replace(found[1], ' ', '') AS i) AS code
WHERE i !~ '^XX' AND 1 = mod(CAST((
SELECT string_agg(CASE WHEN c ~ '\d' THEN c ELSE CAST(ascii(c) - 55 AS text) END, '' ORDER BY n)
FROM regexp_split_to_table(substr(i, 5) || left(i, 4), '') WITH ORDINALITY AS each (c, n))
AS numeric), 97))"""
# By what they find.
DETECTORS: Mapping[str, Detector] = {
    "mail addresses": Detector(
        r"VALUE ~* '[[:alnum:]._%+-]+@(?!example\.|(?:[[:alnum:]-]+\.)*(?:example|invalid|test)\M)"
        r"[[:alnum:]-]+(?:\.[[:alnum:]-]+)*\.[a-z]{2,}'",
        hint="strpos(VALUE, '@') > 0",
    ),
    "phone numbers": Detector(
        r"VALUE ~ '(?<![\w+])\+(?!999)[1-9]\d{0,2}[ (./-]{0,2}\d(?:[ ()./-]{0,2}\d){6,12}(?!\w)'",
        0.05,
        hint="strpos(VALUE, '+') > 0",
    ),
    "numbers of payment cards": Detector(_CARD, 0.3, hint=r"VALUE ~ '[3-6](?:[ -]?\d){12}'"),
    "bank account numbers": Detector(_IBAN, 0.05, hint=r"VALUE ~ '[A-Z]{2}\d\d ?[A-Z0-9]'"),
    "network addresses": Detector(
        r"VALUE ~ '(?<![\d.])(?!0\.|10\.|127\.|192\.168\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.)"
        r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])'",
        0.05,
        hint="length(replace(VALUE, '.', '')) <= length(VALUE) - 3",
    ),
    "keys or tokens": Detector(
        r"VALUE ~ '[spr]k_live_\w{10}|gh[pousr]_\w{30}|github_pat_\w{30}|AKIA[0-9A-Z]{16}|"
        r"xox[abpr]-\w{8}|glpat-[\w-]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.|"
        r"-----BEGIN [A-Z ]*PRIVATE KEY'"
    ),
}
