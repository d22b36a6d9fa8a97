"""What a template wanted its reader to fill in."""

import re

_ANYWHERE = re.compile(
    r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
    r"|\byour[-_](?:account|group|image|name|path|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    # Templates of Jinja, of Autoconf and of Windows.
    r"|\{\{ ?[A-Za-z_][A-Za-z0-9_. ]*\}\}|@[A-Z][A-Z0-9_]+@|%[A-Z][A-Z0-9_]+%"
)
#: In a variable of the environment these may well be meant.
_IN_PATHS = re.compile(
    r"(?<![$\{])\{[A-Za-z_][A-Za-z0-9_]*\}|(?<![${A-Za-z0-9_])(?:USERNAME|YOUR_?[A-Z_]+)\b|(?:^|/)your/"
)


def placeholder(text: str, *, is_path: bool) -> str:
    """Return the first placeholder in a text, or nothing.

    Parameters
    ----------
    is_path
        Whether the text is a path or the name of an image, where braces and capitals have no other meaning.
    """
    match = _ANYWHERE.search(text) or (_IN_PATHS.search(text) if is_path else None)
    return match[0] if match else ""
