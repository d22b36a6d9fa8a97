"""Redaction of secrets in displayed command lines, variables and options, recognized by the names of values.

Reports and screenshots are shared. Secrets belong in files or variables; where a command line nevertheless
contains one, the record keeps the command line unchanged and displays hide the secret.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "HIDDEN"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: Words that make a name that of a secret if they are its last word, as in ``HF_TOKEN``.
_SECRET_WORDS = frozenset(
    (
        "apikey", "auth", "authorization", "cookie", "credential", "credentials", "key", "passphrase",
        "passwd", "password", "pat", "pwd", "secret", "secrets", "token",
    )
)  # fmt: skip

#: Words before such a last word that make the name harmless: ``eos_token`` of a tokenizer, ``sort_key``.
_HARMLESS_PREFIXES = frozenset(
    ("bos", "cls", "eos", "mask", "pad", "sep", "unk", "special", "group", "index", "join", "sort", "target")
)

_SECRET_PATTERN = re.compile(
    r"access_key|api_key|secret|password|passwd|passphrase|private_key", re.IGNORECASE
)
#: Last words of names that describe a secret and are not secret themselves, as in ``TOKEN_FILE``.
_PROPERTY_WORDS = frozenset(
    ("file", "path", "dir", "folder", "name", "names", "env", "variable", "length", "type")
)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"(?P<name>(?:--?)?[A-Za-z_][\w.-]*)=(?P<value>.*)", re.DOTALL)
#: Options that are followed by a name and a value.
_NAME_VALUE_OPTIONS = frozenset(("-p", "-r", "--parameters", "--parameters_raw", "-e", "--env", "--param"))
# The repetitions are bounded because each pattern is tried at every position of a text.
_IN_URL = re.compile(r"(?P<before>[A-Za-z][\w+.-]{0,20}://[^/\s:@]{0,200}:)[^/\s@]{1,1000}(?=@)")
_IN_QUERY = re.compile(r"(?P<before>[?&](?P<name>[\w.-]{1,100})=)[^&#\s]+")
_HEADER = re.compile(
    r"(?P<before>\b[\w-]{0,40}(?:authorization|-token|-key|cookie)\s{0,9}:\s{0,9})\S.*", re.I | re.S
)

#: White space, or a word including its quoted parts.
_PART = re.compile(r"""\s+|(?:'[^']*'|"[^"]*"|[^\s'"])+|['"]""")


def is_secret(name: str) -> bool:
    """Return whether a variable or option of this name is likely to hold a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PROPERTY_WORDS:
        return False
    joined = "_".join(words)
    if _SECRET_PATTERN.search(joined):
        return True
    return words[-1] in _SECRET_WORDS and not (len(words) > 1 and words[-2] in _HARMLESS_PREFIXES)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line with secrets replaced by :data:`HIDDEN`."""
    return list(_redacted(list(words)))


def redact_value(name: str, value: str) -> str:
    """Return a variable's or parameter's value, :data:`HIDDEN` where its name is that of a secret."""
    return HIDDEN if value and is_secret(name) else _redact_urls(value)


def redact_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's record with secrets hidden in its command, options and variables."""
    found: dict[str, Any] = {name: _redact_nested(name, value) for name, value in record.items()}
    command = record.get("command")
    if isinstance(command, list):
        found["command"] = redact_words(str(word) for word in command)
    return found


def _redacted(words: list[str], *, nested: bool = False) -> Iterator[str]:
    """Yield the words of a command with secrets hidden; `nested` where the command is one word of another."""
    value_follows = False
    for index, word in enumerate(words):
        assignment = _ASSIGNMENT.fullmatch(word)
        if value_follows and not word.startswith("--"):
            yield HIDDEN
            value_follows = False
        elif assignment and is_secret(assignment["name"]):
            yield f"{assignment['name']}={HIDDEN}"
            value_follows = False
        else:
            is_name = _OPTION.fullmatch(word) or (index and words[index - 1] in _NAME_VALUE_OPTIONS)
            value_follows = bool(is_name) and is_secret(word)
            yield word if nested else _redact_word(word)


def _redact_word(text: str) -> str:
    """Return a word with secrets hidden; the word may be a header, a URL or a nested command line."""
    text = _HEADER.sub(rf"\g<before>{HIDDEN}", _redact_urls(text))
    parts = _PART.findall(text)
    if len(parts) < 2:
        return text
    words = _redacted([part for part in parts if not part.isspace()], nested=True)
    return "".join(part if part.isspace() else next(words) for part in parts)


def _redact_urls(text: str) -> str:
    text = _IN_URL.sub(rf"\g<before>{HIDDEN}", text)
    return _IN_QUERY.sub(lambda each: each["before"] + HIDDEN if is_secret(each["name"]) else each[0], text)


def _redact_nested(name: str, value: Any) -> Any:
    """Return a value of a record with secrets hidden; a list of pairs holds names and values."""
    if isinstance(value, Mapping):
        return {key: _redact_nested(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        pairs = [each for each in value if isinstance(each, list | tuple) and len(each) == 2]
        if value and len(pairs) == len(value):
            return [[key, _redact_nested(str(key), each)] for key, each in pairs]
        return [_redact_nested(name, each) for each in value]
    return redact_value(name, value) if isinstance(value, str) else value


def redact_command_line(words: Iterable[str]) -> str:
    """Return a command line as shell-quoted text with secrets hidden."""
    return shlex.join(redact_words(words))
