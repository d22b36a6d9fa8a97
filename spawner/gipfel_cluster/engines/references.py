"""One image of a registry as each engine writes it."""

import re
from collections.abc import Mapping
from typing import Literal

from ..edf.reference import reference_problem
from ..model import Frozen, GipfelError

_SCHEME = re.compile(r"(docker|dockerd|podman)://")
#: Where an image is: in a registry, or in what a program keeps on the machine. Source: Enroot, `import`.
Store = Literal["registry", "dockerd", "podman"]
_STORES: Mapping[str, Store] = {"dockerd": "dockerd", "podman": "podman"}
#: What looks like a host before the first slash is one. Source: distribution/reference, `splitDockerDomain`.
_HOST = re.compile(r"localhost|.*[.:].*")
_HUB = "docker.io"


class Reference(Frozen):
    """``[USER@][REGISTRY#]IMAGE[:TAG]`` in its parts; ``version`` is ``:TAG``, ``@DIGEST``, both or empty."""

    store: Store
    user: str
    registry: str
    name: str
    version: str

    @property
    def oci(self) -> str:
        """As podman, Apptainer and skopeo write it, the registry always named."""
        registry = self.registry or _HUB
        official = registry == _HUB and "/" not in self.name
        return f"{registry}/{'library/' if official else ''}{self.name}{self.version}"

    @property
    def enroot(self) -> str:
        """As Enroot and Pyxis write it: a ``#`` behind the registry."""
        user = f"{self.user}@" if self.user else ""
        registry = f"{self.registry}#" if self.registry else ""
        return f"{user}{registry}{self.name}{self.version}"


def read_reference(image: str) -> Reference:
    """Take the name of an image apart, whether a ``#`` or a slash stands behind its registry.

    Raises
    ------
    GipfelError
        No registry could have it.
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


def foreign_store(engine: str, image: str, reference: Reference) -> GipfelError:
    """Return the refusal of an image of a store that an engine can't read.

    A registry must not be asked instead: it may have a foreign image of the same name.
    """
    whose = "docker's" if reference.store == "dockerd" else "podman's"
    return GipfelError(
        f"The engine {engine} can't take the image {image!r} from {whose} own store.",
        f"Import it: enroot import -o IMAGE.sqsh {reference.store}://{reference.name}{reference.version}",
    )
