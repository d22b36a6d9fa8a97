"""Mistakes in the text of a value, whatever its key."""

import re
from collections.abc import Iterator

from ...environment import BINDING, PLACES
from ..expand import unbraced_variables
from ..model import Diagnostic
from ..placeholders import placeholder
from ..written import KEYS
from .rule import Rule, Subject

_KEYS = frozenset(KEYS)
#: Tables in which texts are anything, not paths or names.
_FREE = frozenset(("env", "annotations"))
_MOST_NAMES = 10  # in one value
#: The literal name of the user of NVIDIA's registry.
_NGC_USER = re.compile(r"(?:[a-z]+://)?\$oauthtoken@")
#: Spaces without a width, joiners, marks of direction, the space that doesn't break a line.
INVISIBLE = re.compile("[\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")


class UnbracedVariable(Rule):
    """``$NAME``, which shells and Sarus expand and other EDFs don't."""

    code = "unbraced-variable"
    dialects = ("ce", "pyxis")
    reason = "${name} has no braces"
    consequence = "it stays as it is"
    fix = "Write ${{{name}}}."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.entries if unbraced_variables(subject.text) else ():
            if "$" in entry.text:
                names = unbraced_variables(entry.text)
                if entry.key == "image" and _NGC_USER.match(entry.text):
                    names = tuple(name for name in names if name != "oauthtoken")
                yield from (self.at(entry, name=name) for name in names[:_MOST_NAMES])


class Placeholder(Rule):
    """What a template wanted its reader to fill in."""

    code = "placeholder"
    reason = "{text!r} is a placeholder"
    consequence = "the value is taken as it is"
    fix = "Put your own value there."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not placeholder(subject.text, is_path=True):
            return
        for entry in subject.entries:
            is_path = entry.path[0] not in _FREE or entry.text.startswith("/")
            if text := placeholder(entry.text, is_path=is_path):
                yield self.at(entry, text=text)


class InvisibleCharacter(Rule):
    """A character that came with a copied text and that nobody sees."""

    code = "invisible-character"
    reason = "it holds the character {character}, which can't be seen"
    consequence = "no file and no image has this name"
    fix = "Type the value again."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in () if subject.text.isascii() else subject.entries:
            if entry.text.isascii() or entry.path[0] in _FREE:
                continue
            if match := INVISIBLE.search(entry.text):
                yield self.at(entry, character=f"U+{ord(match[0]):04X}")


class KeyInTable(Rule):
    """A key of the EDF below the header of a table, where it belongs to that table."""

    code = "key-in-table"
    reason = "below [{table}] it is {what}, not the EDF's {key}"
    consequence = "the EDF is used without it"
    fix = "Move it above the first line in brackets."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name in subject.document.env.keys() & _KEYS:
            yield self.at(subject.document.env[name], table="env", what="a variable", key=name)
        for name, entry in subject.document.annotations.items():
            first, last = name.partition(".")[0], name.rpartition(".")[2]
            key = first if first in _KEYS and first != "annotations" else last
            if key in _KEYS:
                table = ".".join(map(str, entry.path[:-1]))
                yield self.at(entry, table=table, what="an annotation", key=key)


class Secret(Rule):
    """A password or token that anybody who may read the file may use."""

    code = "secret"
    beside_errors = True
    reason = "{name} looks like a secret"
    consequence = "everybody who can read the file, and every log that shows the environment, has it"
    fix = 'Write {name} = "${{{name}}}" and set it where you submit, or use a file of mode 600.'
    _name = re.compile(
        r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$"
        r"|(?:^|_)(?:APIKEY|SECRET_ACCESS_KEY)$",
        re.IGNORECASE,
    )
    _value = re.compile(
        r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}"
        r"|xox[abp]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY"
    )

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            named = self._name.search(name) and entry.text and "${" not in entry.text
            if (named and not entry.text.startswith("/")) or self._value.search(entry.text):
                yield self.at(entry, name=name)


class HiddenDevices(Rule):
    """GPUs that the EDF itself takes away."""

    code = "hidden-gpus"
    reason = "{name} is {value!r}"
    consequence = "the container gets neither the GPUs nor the driver's libraries"
    fix = 'Take it out, or write "all".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.env.get("NVIDIA_VISIBLE_DEVICES")
        if entry is not None and entry.text in {"", "void", "none"}:
            yield self.at(entry, name="NVIDIA_VISIBLE_DEVICES", value=entry.text)


class BoundVariable(Rule):
    """A variable that is the job's own."""

    code = "bound-variable"
    reason = "{name} is the job's own"
    consequence = "in a job of Gipfel the hub's or the scheduler's value stays, and this one has no effect"
    fix = "Take it out, or set it in the set-up steps beside the EDF."
    _families = tuple(name[:-1] for name in BINDING if name.endswith("*"))
    _names = frozenset(BINDING)

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            if name in self._names or name.startswith(self._families):
                yield self.at(entry, name=name)


class HostPlaces(Rule):
    """A list of places that extends the host's, since the image's can't be read."""

    code = "host-places"
    dialects = ("ce", "pyxis")
    severity = "note"
    reason = "the image is in a registry, so its {name} can't be read here"
    consequence = "the engines pyxis, podman and apptainer take this host's in its place"
    fix = "For them, write the image's {name} in full, or import the image into a .sqsh file."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not subject.edf.image or subject.edf.image.startswith("/"):
            return
        for name, entry in subject.document.env.items():
            is_places = name in PLACES or name.startswith("LD_")
            if is_places and re.search(rf"(?<!\$)\${{{re.escape(name)}[}}:]", entry.text):
                yield self.at(entry, name=name)


VALUE_RULES: tuple[Rule, ...] = (
    UnbracedVariable(),
    Placeholder(),
    InvisibleCharacter(),
    KeyInTable(),
    Secret(),
    HiddenDevices(),
    BoundVariable(),
    HostPlaces(),
)
