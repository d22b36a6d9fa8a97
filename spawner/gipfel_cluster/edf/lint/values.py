"""Mistakes in the text of a value, whatever its key."""

import re
from collections.abc import Iterator

from ...environment import BINDING
from ..expand import unbraced_variables
from ..model import Diagnostic
from .rule import Rule, Subject


class UnbracedVariable(Rule):
    """``$NAME``, which shells expand and EDFs don't."""

    code = "unbraced-variable"
    reason = "${name} has no braces"
    consequence = "it stays as it is"
    fix = "Write ${{{name}}}."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.entries:
            if "$" in entry.text:
                yield from (self.at(entry, name=name) for name in unbraced_variables(entry.text))


class Placeholder(Rule):
    """What a template wanted its reader to fill in."""

    code = "placeholder"
    reason = "{text!r} is a placeholder"
    consequence = "the value is taken as it is"
    fix = "Put your own value there."
    _pattern = re.compile(
        r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
        r"|\byour[-_](?:account|image|name|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    )

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for entry in subject.entries:
            if match := self._pattern.search(entry.text):
                yield self.at(entry, text=match[0])


class Secret(Rule):
    """A password or token that anybody who may read the file may use."""

    code = "secret"
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


VALUE_RULES: tuple[Rule, ...] = (
    UnbracedVariable(),
    Placeholder(),
    Secret(),
    HiddenDevices(),
    BoundVariable(),
)
