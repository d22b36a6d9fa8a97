"""Placeholders that a template wanted its reader to fill in."""

import re

_TEXT = (
    r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
    r"|\byour[-_](?:account|group|image|name|path|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    # Templates of Jinja, of Autoconf and of Windows.
    r"|\{\{ ?[A-Za-z_][A-Za-z0-9_. ]*\}\}|@[A-Z][A-Z0-9_]+@|%[A-Z][A-Z0-9_]+%"
)
_ANYWHERE = re.compile(_TEXT, re.MULTILINE)
#: In a variable of the environment the others may well be meant.
_IN_PATHS = re.compile(
    _TEXT + r"|(?<![$\{])\{[A-Za-z_][A-Za-z0-9_]*\}"
    r"|(?<![${A-Za-z0-9_])(?:USERNAME|YOUR_?[A-Z_]+)\b|(?:^|/)your/",
    re.MULTILINE,
)


def placeholder(text: str, *, is_path: bool) -> str:
    """Return the first placeholder in a text, or nothing.

    Parameters
    ----------
    is_path
        Whether the text is a path or the name of an image, where braces and capitals have no other meaning.
    """
    match = (_IN_PATHS if is_path else _ANYWHERE).search(text)
    return match[0] if match else ""
