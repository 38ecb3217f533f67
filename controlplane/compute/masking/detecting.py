"""Finds what looks like personal data or a secret in the values of a column.

Each detector is a condition in SQL over a text `v`. Values that are reserved for examples, and
those that `functions` generates, are not found. Text that merely contains digits looks like some
numbers now and then: such a detector needs a share of the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Detector:
    words: str
    condition: str
    # The share of a column's values that must look so.
    share: float = 0.0


# The sum of Luhn, over the digits of each group of 13 to 19.
_CARD = r"""EXISTS (SELECT FROM
regexp_matches(v, '(?<![\d.-])[3-6](?:[ -]?\d){12,18}(?![\d.-])', 'g') AS found,
LATERAL (SELECT reverse(regexp_replace(found[1], '\D', '', 'g')) AS d) AS digits
WHERE 0 = (SELECT sum(CASE WHEN mod(n, 2) = 1 THEN x WHEN x > 4 THEN 2 * x - 9 ELSE 2 * x END) % 10
FROM (SELECT n, CAST(substr(d, n, 1) AS int) AS x FROM generate_series(1, length(d)) AS n) AS each))
"""
# The check digits of ISO 13616: the letters as numbers from 10, the first four characters last.
_IBAN = r"""EXISTS (SELECT FROM
regexp_matches(v, '\m[A-Z]{2}\d\d(?: ?[A-Z0-9]){11,30}\M', 'g') AS found,
LATERAL (SELECT replace(found[1], ' ', '') AS i) AS code
WHERE i !~ '^XX' AND 1 = mod(CAST((
SELECT string_agg(CASE WHEN c ~ '\d' THEN c ELSE CAST(ascii(c) - 55 AS text) END, '' ORDER BY n)
FROM regexp_split_to_table(substr(i, 5) || left(i, 4), '') WITH ORDINALITY AS each (c, n))
AS numeric), 97))"""
DETECTORS: Mapping[str, Detector] = {
    "email": Detector(
        "mail addresses",
        r"v ~* '[[:alnum:]._%+-]+@(?!example\.|(?:[[:alnum:]-]+\.)*(?:example|invalid|test)\M)"
        r"[[:alnum:]-]+(?:\.[[:alnum:]-]+)*\.[a-z]{2,}'",
    ),
    "phone": Detector(
        "phone numbers",
        r"v ~ '(?<![\w+])\+(?!999)[1-9]\d{0,2}[ (./-]{0,2}\d(?:[ ()./-]{0,2}\d){6,12}"
        r"(?!\w)'",
        0.05,
    ),
    "card": Detector("numbers of payment cards", _CARD, 0.3),
    "iban": Detector("bank account numbers (IBAN)", _IBAN, 0.05),
    "ip": Detector(
        "network addresses",
        r"v ~ '(?<![\d.])(?!0\.|10\.|127\.|192\.168\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.)"
        r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])'",
        0.05,
    ),
    "secret": Detector(
        "keys or tokens",
        r"v ~ '\m(?:[spr]k_live_\w{10}|gh[pousr]_\w{30}|github_pat_\w{30}|AKIA[0-9A-Z]{16}|"
        r"xox[abpr]-\w{8}|glpat-[\w-]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.)"
        r"|-----BEGIN [A-Z ]*PRIVATE KEY'",
    ),
}
