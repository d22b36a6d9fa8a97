"""Rules for keys that the Container Engine or Pyxis lacks or reads differently; for Sarus see `sarus`."""

from collections.abc import Iterator

from ..model import Diagnostic, Mount
from .rule import MountRule, Rule, Subject


class SquashfsMount(MountRule):
    """``:sqsh``, which only the CE mounts."""

    code = "ce-only-sqsh"
    dialects = ("sarus", "pyxis")
    severity = "error"
    reason = "only the Container Engine mounts a SquashFS file with ':sqsh'"
    consequence = "Sarus drops the flag and binds the file itself, Pyxis refuses it"
    fix = "Unpack the file and mount the folder."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return "sqsh" in mount.flags


class SarusOnlyDevices(Rule):
    """``devices``, which only Sarus knows."""

    code = "sarus-only-devices"
    dialects = ("ce", "pyxis")
    reason = "only Sarus knows devices"
    consequence = "another engine ignores the key, and the container gets what its site gives"
    fix = "Take it out, or check with --dialect sarus."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.at(entry) for entry in subject.document.devices[:1])


class PyxisAnnotations(Rule):
    """Annotations, for which Pyxis has no option."""

    code = "pyxis-annotations"
    dialects = ("pyxis",)
    reason = "Pyxis has no option for annotations"
    consequence = "hooks see them only as OCI_ANNOTATION_… variables, where the site's hooks look for these"
    fix = "Set what the hook would set in [env]."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        yield from (self.at(entry) for entry in list(subject.document.annotations.values())[:1])


class PyxisUnset(Rule):
    """A variable taken away, which Pyxis can't."""

    code = "pyxis-unset"
    dialects = ("pyxis",)
    reason = "Pyxis can't unset {name}"
    consequence = "the image's value stays"
    fix = "Start the program with 'env -u {name}'."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.env.items():
            if not entry.text:
                yield self.at(entry, name=name)


class PyxisSeparator(MountRule):
    """A comma or colon in the path of a mount."""

    code = "pyxis-separator"
    dialects = ("pyxis",)
    severity = "error"
    reason = "Pyxis can't escape the comma or colon in a mount's path"
    consequence = "the path is torn in two"
    fix = "Mount it through a link without that character."

    def is_mistake(self, mount: Mount) -> bool:  # noqa: D102
        return any(character in mount.source + mount.destination for character in ",:")


class PyxisHostPath(Rule):
    """A search path that is meant to extend the image's."""

    code = "pyxis-host-path"
    dialects = ("pyxis",)
    reason = "the image's {name} can't be read before the image is pulled"
    consequence = "that of the submitting host is put in, and the image's folders are gone"
    fix = "Import the image into a .sqsh file, or write the whole {name}."
    _names = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MANPATH")

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        if not subject.edf.image or subject.edf.image.startswith("/"):
            return
        for name in self._names:
            entry = subject.document.env.get(name)
            if entry and f"${{{name}}}" in entry.text:
                yield self.at(entry, name=name)


DIALECT_RULES: tuple[Rule, ...] = (
    SquashfsMount(),
    SarusOnlyDevices(),
    PyxisAnnotations(),
    PyxisUnset(),
    PyxisSeparator(),
    PyxisHostPath(),
)
