"""Mounts, paths and image names of an EDF: their parts, parsed from expanded values."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..model import Frozen, GipfelError
from .model import MAX_MOUNT_FLAGS, MAX_PATH_BYTES, SPECIAL_SOURCES, Dialect, Mount, shortened

_PLACEHOLDER = (
    r"<[A-Za-z][A-Za-z0-9 _./-]*>|\b(?:CHANGE[-_ ]?(?:THIS|ME)|REPLACE[-_ ]?(?:THIS|ME)|FIXME|TODO)\b"
    r"|\byour[-_](?:account|group|image|name|path|project|user(?:name)?)\b|/path/to/|^\.\.\.$"
    # Templates of Jinja, of Autoconf and of Windows.
    r"|\{\{ ?[A-Za-z_][A-Za-z0-9_. ]*\}\}|@[A-Z][A-Z0-9_]+@|%[A-Z][A-Z0-9_]+%"
)
_ANYWHERE = re.compile(_PLACEHOLDER, re.MULTILINE)
#: More forms for paths and names of images; in environment variables they are often intended.
_IN_PATHS = re.compile(
    _PLACEHOLDER + r"|(?<![$\{])\{[A-Za-z_][A-Za-z0-9_]*\}"
    r"|(?<![${A-Za-z0-9_])(?:USERNAME|YOUR_?[A-Z_]+)\b|(?:^|/)your/",
    re.MULTILINE,
)
_FLAG_SEPARATOR = {"ce": re.compile(r"\+"), "pyxis": re.compile(r"\+"), "sarus": re.compile(r"[,+]")}
#: Begins a path that is known only inside the job.
_JOB_VARIABLE = "${SLURM_"
#: Called with the code, message and fix of an error.
ReportError = Callable[[str, str, str], None]
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REGISTRY_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}")
_NAME = re.compile(rf"(?:{_REGISTRY_HOST}/)?{_PART}(?:/{_PART})*")
_REGISTRY = re.compile(_REGISTRY_HOST)
_ANY_SCHEME = re.compile(r"[a-z]+://")
_MAX_NAME_LENGTH = 255
_SCHEME = re.compile(r"(docker|dockerd|podman)://")
#: Location of an image: a registry, or the local storage of Docker or podman. Source: Enroot, `import`.
Store = Literal["registry", "dockerd", "podman"]
_STORES: Mapping[str, Store] = {"dockerd": "dockerd", "podman": "podman"}
#: A first path component of this form is a host. Source: distribution/reference, `splitDockerDomain`.
_HOST = re.compile(r"localhost|.*[.:].*")
_DEFAULT_REGISTRY = "docker.io"


def make_mount(fields: Sequence[str], report_error: ReportError, dialect: Dialect = "ce") -> Mount | None:
    """Return the mount of source, destination and flags; report why and return None if they are not valid."""
    source, *rest = fields
    destination = rest[0] if rest else source
    flags = tuple(dict.fromkeys(_FLAG_SEPARATOR[dialect].split(rest[1]))) if len(rest) > 1 else ()
    is_plain = source.startswith("/") and destination.startswith("/")
    if is_plain and len(rest) < 2 and len(source) + len(destination) < MAX_PATH_BYTES:
        return Mount(source=_normal(source), destination=_normal(destination))
    errors = [*_path_errors(source, destination, dialect), *_flag_errors(flags)]
    if len(rest) > 2:
        errors.append(("mount", "a mount has at most three fields.", "Write SOURCE:DESTINATION[:FLAG+FLAG]."))
    for error in errors:
        report_error(*error)
    if errors:
        return None
    source = source if source in SPECIAL_SOURCES else _normal(source)
    return Mount(source=source, destination=_normal(destination), flags=flags)


def not_absolute(name: str, path: str) -> tuple[str, str]:
    """Return the message and fix about a path that is not absolute; ``name`` says which path it is."""
    if path == "~" or path.startswith("~/"):
        fix = "Write ${HOME}" + shortened(path[1:]) + "."
    elif path.startswith("$"):
        fix = "Write variables in braces: ${NAME}."
    elif placeholder(path, is_path=True):
        fix = "Replace it with your own path."
    else:
        fix = "Begin it with '/' or './'."
    return f"{name} {shortened(path)!r} is not an absolute path.", fix


def placeholder(text: str, *, is_path: bool) -> str:
    """Return the first placeholder in a text, or an empty string.

    Parameters
    ----------
    is_path
        Whether the text is a path or the name of an image, in which braces and capitals are placeholders too.
    """
    match = (_IN_PATHS if is_path else _ANYWHERE).search(text)
    return match[0] if match else ""


def _normal(path: str) -> str:
    if path.startswith("/") and not path.endswith("/") and "//" not in path and "/." not in path:
        # Nearly every path is normalized already.
        return path
    # POSIX lets two slashes at the beginning mean something else; Linux doesn't.
    return posixpath.normpath(path).replace("//", "/", 1)


def _flag_errors(flags: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return code, message and fix of each error."""
    if "sqsh" in flags and len(flags) > 1:
        return [("mount-flags", "'sqsh' can't be combined with other flags.", "Remove the others.")]
    if "" in flags:
        return [("mount-flags", "a flag is empty.", "Join flags with '+': ro+private.")]
    too_many = ("mount-flags", f"there are more than {MAX_MOUNT_FLAGS} flags.", "Remove some.")
    return [too_many] if len(flags) > MAX_MOUNT_FLAGS else []


def _path_errors(source: str, destination: str, dialect: Dialect) -> list[tuple[str, str, str]]:
    """Return code, message and fix of each error."""
    if source in SPECIAL_SOURCES and dialect == "sarus":
        fix = "Remove it, or check with --dialect ce."
        return [("mount-path", f"Sarus binds files and directories only, not {source!r}.", fix)]
    if source in SPECIAL_SOURCES and destination == source:
        return [("mount-path", f"{source!r} needs a destination.", f"Write {source}:/DESTINATION.")]
    errors = []
    for side, path in (("source", source), ("destination", destination)):
        if side == "source" and path in SPECIAL_SOURCES:
            continue
        if not path.startswith(("/", _JOB_VARIABLE)):
            message, fix = not_absolute(f"the mount's {side}", path)
            errors.append(("mount-path", message, fix))
        elif len(path) > MAX_PATH_BYTES:
            message = f"the mount's {side} is longer than {MAX_PATH_BYTES} characters."
            errors.append(("mount-path", message, "Shorten it: no system has such a path."))
    # In a mount of one field source and destination are the same path: report it once.
    return errors[:1] if source == destination else errors


class Reference(Frozen):
    """The parts of ``[USER@][REGISTRY#]IMAGE[:TAG]``, without a scheme, which ``store`` stands for.

    ``name`` is IMAGE; ``version`` is ``:TAG``, ``@DIGEST``, both or empty.
    """

    store: Store
    user: str
    registry: str
    name: str
    version: str

    @property
    def oci(self) -> str:
        """Return the name for podman, Apptainer and skopeo, always with the registry."""
        registry = self.registry or _DEFAULT_REGISTRY
        official = registry == _DEFAULT_REGISTRY and "/" not in self.name
        return f"{registry}/{'library/' if official else ''}{self.name}{self.version}"

    @property
    def enroot(self) -> str:
        """Return the name for Enroot and Pyxis, with a ``#`` behind the registry."""
        user = f"{self.user}@" if self.user else ""
        registry = f"{self.registry}#" if self.registry else ""
        return f"{user}{registry}{self.name}{self.version}"


def reference_problem(reference: str) -> str:
    """Return what is wrong with the name of an image, or an empty string for a valid one.

    Source: OCI distribution specification 1.1 (names, tags, digests), Enroot's import for ``@`` and ``#``.
    """
    if scheme := _ANY_SCHEME.match(reference):
        return f"{scheme[0]!r} is not part of an image's name"
    rest, at, digest = reference.rpartition("@")
    if not at or ":" not in digest.partition("/")[0] or "#" in digest or not digest.startswith("sha"):
        rest, digest = reference, ""
    user, at, rest = rest.rpartition("@")
    if at and (not user or not user.isprintable() or " " in user):
        return f"{user!r} can't be a user's name"
    registry, hash_, name = rest.rpartition("#")
    if hash_ and not _REGISTRY.fullmatch(registry):
        return f"{registry!r} can't be a registry"
    return _name_problem(name, digest)


def read_reference(image: str) -> Reference:
    """Parse the name of an image, with a ``#`` or a slash behind its registry.

    Raises
    ------
    GipfelError
        The name is not valid.
    """
    store: Store = "registry"
    if scheme := _SCHEME.match(image):
        store = _STORES.get(scheme[1], "registry")
        image = image[scheme.end() :]
    if problem := reference_problem(image):
        raise GipfelError(
            f"No registry has the image {image!r}: {problem}.", "Write [USER@][REGISTRY#]IMAGE[:TAG]."
        )
    rest, digest = image, ""
    before, at, after = image.rpartition("@")
    if at and re.match(r"sha\d+:[0-9a-fA-F]+$", after):
        rest, digest = before, f"@{after}"
    user, _, rest = rest.rpartition("@")
    registry, hash_, name = rest.rpartition("#")
    if not hash_ and "/" in name and _HOST.fullmatch(name.split("/")[0]):
        registry, _, name = name.partition("/")
    last = name.rpartition("/")[2]
    tag = ""
    if ":" in last:
        name, _, tag = name.rpartition(":")
        tag = f":{tag}"
    return Reference(store=store, user=user, registry=registry, name=name, version=tag + digest)


def unsupported_store_error(engine: str, image: str, reference: Reference) -> GipfelError:
    """Return the error about an image in a local storage that the engine can't read.

    Pulling it from a registry instead is not safe: a registry may have another image of the same name.
    """
    program = "docker" if reference.store == "dockerd" else "podman"
    return GipfelError(
        f"The engine {engine} can't read the image {image!r} from {program}'s local storage.",
        f"Import it: enroot import -o IMAGE.sqsh {reference.store}://{reference.name}{reference.version}",
    )


def _name_problem(name: str, digest: str) -> str:
    last = name.rpartition("/")[2]
    if ":" in last:
        name, _, tag = name.rpartition(":")
        if not _TAG.fullmatch(tag):
            return f"{tag!r} can't be a tag"
    if digest and not _DIGEST.fullmatch(digest):
        return f"{digest!r} is not a valid digest"
    if len(name) > _MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return f"{name!r} can't be an image" + (
            ": a name is in small letters" if name.lower() != name else ""
        )
    return ""
