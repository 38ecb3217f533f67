"""Readable identifiers: `ep-quiet-heron-123456`, `brown-condor-12345678`."""

import re
import secrets

import coolname

# Clients distinguish an id from a name by its format: exactly two words, then digits.
WORD = re.compile(r"[a-z]{2,12}")
# Words of the library that somebody could take for a remark about people.
UNFIT = frozenset(
    "aboriginal ape atheism bald belligerent blond booby chubby cocky demonic ecstasy fanatic "
    "fat feminism gay girlish greedy grumpy hell heretic hysterical illegal kickass killer "
    "leech liberal loose loutish loud macho manipulative married mongrel monkey mutant mute "
    "naked native naughty orthodox pig pompous primitive provocative psychedelic radical rat "
    "sexy skinny slim sloppy sly snobbish sperm stereotyped swine tacky unnatural uppish "
    "uptight vengeful witchcraft".split()
)


def new_branch_id() -> str:
    return f"br-{_two_words()}-{_digits(6)}"


def new_endpoint_id() -> str:
    return f"ep-{_two_words()}-{_digits(6)}"


def new_project_id() -> str:
    return f"{_two_words()}-{_digits(8)}"


def new_snapshot_id() -> str:
    return f"snap-{_two_words()}-{_digits(6)}"


def new_webhook_id() -> str:
    return f"wh-{_two_words()}-{_digits(6)}"


def _two_words() -> str:
    while True:
        words = coolname.generate(2)
        if len(words) == 2 and all(WORD.fullmatch(word) for word in words) and not UNFIT & {*words}:
            return "-".join(words)


def _digits(count: int) -> str:
    return str(secrets.randbelow(9 * 10 ** (count - 1)) + 10 ** (count - 1))
