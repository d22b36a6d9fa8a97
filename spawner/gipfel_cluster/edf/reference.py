"""Names of images in a registry: ``[USER@][REGISTRY#]IMAGE[:TAG]``, with a slash for ``#``, or a digest.

`reference_problem` validates a name; `read_reference` parses it, so that each engine can write its own form.
"""

import re
from collections.abc import Mapping
from typing import Literal

from ..model import Frozen, GipfelError

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REGISTRY_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}")
_NAME = re.compile(rf"(?:{_REGISTRY_HOST}/)?{_PART}(?:/{_PART})*")
_REGISTRY = re.compile(_REGISTRY_HOST)
_ANY_SCHEME = re.compile(r"[a-z]+://")
_MAX_LENGTHS = 255
_SCHEME = re.compile(r"(docker|dockerd|podman)://")
#: Location of an image: a registry, or the local storage of Docker or podman. Source: Enroot, `import`.
Store = Literal["registry", "dockerd", "podman"]
_STORES: Mapping[str, Store] = {"dockerd": "dockerd", "podman": "podman"}
#: A first path component of this form is a host. Source: distribution/reference, `splitDockerDomain`.
_HOST = re.compile(r"localhost|.*[.:].*")
_DEFAULT_REGISTRY = "docker.io"


class Reference(Frozen):
    """The parts of ``[USER@][REGISTRY#]IMAGE[:TAG]``; ``version`` is ``:TAG``, ``@DIGEST``, both or empty."""

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
    if len(name) > _MAX_LENGTHS or not _NAME.fullmatch(name):
        return f"{name!r} can't be an image" + (
            ": a name is in small letters" if name.lower() != name else ""
        )
    return ""
