"""Hide values whose names look like those of secrets in what is shown: command lines, variables, options.

Reports and screenshots are shared. A secret belongs into a file or a variable; a command line that holds one
all the same is written down as it was and shown without it.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "HIDDEN"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: The last word of a name, and what before it says that it is none: a tokenizer's tokens, keys to sort by.
_LAST = frozenset(
    (
        "apikey", "auth", "authorization", "cookie", "credential", "credentials", "key", "passphrase",
        "passwd", "password", "pat", "pwd", "secret", "secrets", "token",
    )
)  # fmt: skip

_HARMLESS = frozenset(
    ("bos", "cls", "eos", "mask", "pad", "sep", "unk", "special", "group", "index", "join", "sort", "target")
)

_ANYWHERE = re.compile(r"access_key|api_key|secret|password|passwd|passphrase|private_key", re.IGNORECASE)
#: What is about a secret and none itself.
_ABOUT = frozenset(("file", "path", "dir", "folder", "name", "names", "env", "variable", "length", "type"))
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNED = re.compile(r"(?P<name>(?:--?)?[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
#: Options that a name and a value follow.
_NAMES_FOLLOW = frozenset(("-p", "-r", "--parameters", "--parameters_raw", "-e", "--env", "--param"))
# All of them bounded: each is looked for at every place of a text.
_IN_URL = re.compile(r"(?P<before>[A-Za-z][\w+.-]{0,20}://[^/\s:@]{0,200}:)[^/\s@]{1,1000}(?=@)")
_IN_QUERY = re.compile(r"(?P<before>[?&](?P<name>[\w.-]{1,100})=)[^&#\s]+")
_HEADER = re.compile(
    r"(?P<before>\b[\w-]{0,40}(?:authorization|-token|-key|cookie)\s{0,9}:\s{0,9})\S.*", re.I | re.S
)

#: Blanks, or a word with what is in quotes.
_PART = re.compile(r"""\s+|(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""")


def is_secret(name: str) -> bool:
    """Return whether a variable or option of this name is likely to hold a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    joined = "_".join(words)
    if _ANYWHERE.search(joined):
        return True
    return words[-1] in _LAST and not (len(words) > 1 and words[-2] in _HARMLESS)


def shown_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with the values of secrets hidden."""
    return list(_shown(list(words)))


def shown_value(name: str, value: str) -> str:
    """Return a variable's or parameter's value as it is shown."""
    return HIDDEN if value and is_secret(name) else _without_urls(value)


def shown_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's record with secrets hidden in its command, options and variables."""
    found: dict[str, Any] = {name: _plain(name, value) for name, value in record.items()}
    command = record.get("command")
    if isinstance(command, list):
        found["command"] = shown_words(str(word) for word in command)
    return found


def _shown(words: list[str], *, inside: bool = False) -> Iterator[str]:
    """The words of a command; `inside` one that is a word of another."""
    follows = False
    for place, word in enumerate(words):
        assigned = _ASSIGNED.fullmatch(word)
        if follows and not word.startswith("--"):
            yield HIDDEN
            follows = False
        elif assigned and is_secret(assigned["name"]):
            yield f"{assigned['name']}={HIDDEN}"
            follows = False
        else:
            named = _OPTION.fullmatch(word) or (place and words[place - 1] in _NAMES_FOLLOW)
            follows = bool(named) and is_secret(word)
            yield word if inside else _text(word)


def _text(text: str) -> str:
    """A word as it is shown, which may be a header, an address, or a whole command line of its own."""
    text = _HEADER.sub(rf"\g<before>{HIDDEN}", _without_urls(text))
    parts = _PART.findall(text)
    if len(parts) < 2:
        return text
    shown = _shown([part for part in parts if not part.isspace()], inside=True)
    return "".join(part if part.isspace() else next(shown) for part in parts)


def _without_urls(text: str) -> str:
    text = _IN_URL.sub(rf"\g<before>{HIDDEN}", text)
    return _IN_QUERY.sub(lambda each: each["before"] + HIDDEN if is_secret(each["name"]) else each[0], text)


def _plain(name: str, value: Any) -> Any:
    """A value of a record; a list of pairs is names with values."""
    if isinstance(value, Mapping):
        return {key: _plain(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        pairs = [each for each in value if isinstance(each, list | tuple) and len(each) == 2]
        if value and len(pairs) == len(value):
            return [[key, _plain(str(key), each)] for key, each in pairs]
        return [_plain(name, each) for each in value]
    return shown_value(name, value) if isinstance(value, str) else value


def shown_command_line(words: Iterable[str]) -> str:
    """Return a command line as text, as one would type it, with the values of secrets hidden."""
    return shlex.join(shown_words(words))
