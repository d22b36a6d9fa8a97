"""Limits of one EDF, its bases included, so that reading a hostile one stays cheap.

Real EDFs have a few dozen values and a few kilobytes; the limits are far above these. Together they bound the
answer: checking, showing or rendering an EDF takes seconds at most and writes less than a megabyte.
"""

#: Bytes of one file.
FILE_BYTES = 1 << 20
#: Bytes of all files of one EDF.
ALL_BYTES = 2 << 20
#: Entries of ``base_environment`` in all files of one EDF, and how deep they lead.
FILES = 200
LEVELS = 10
#: Values of one file, and of all files of one EDF.
VALUES = 2000
#: Parts of one key.
PARTS = 50
#: Characters of one value as written and as expanded; the kernel carries no longer variable either.
LONGEST = 1 << 16
#: Characters of all names and expanded values of one EDF. One that JSON escapes counts as six.
ALL_CHARACTERS = 1 << 17
#: Bytes of a path. Source: Linux, PATH_MAX.
PATH_BYTES = 4096
#: Flags of one mount.
FLAGS = 32
#: Bytes of all set-up steps of one EDF.
STEPS_BYTES = 1 << 16
#: Diagnostics of one EDF that are reported.
DIAGNOSTICS = 100


def weight(text: str) -> int:
    """Return how many characters a text takes in JSON, at most."""
    return len(text) if text.isascii() and text.isprintable() else 6 * len(text)
