"""Inputs of a build: a Containerfile, the files that it adds, and the base image of its first FROM.

``gipfel image save-environment`` writes comments like these, so that a build needs no further options:

.. code-block:: docker

    # gipfel: base /images/pytorch.sqsh
    # gipfel: edf /home/me/.edf/pytorch.toml
    # gipfel: mount /srv/packages

The base is a tar file, a SquashFS image, a directory, an OCI archive, or Debian packages. It is imported into
podman's store under a name that identifies its content, so that later builds use it again.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.edf.image import image_environment
from gipfel_cluster.installs import logical_lines
from gipfel_cluster.model import Frozen, GipfelError

from ..gate.contents.entries import is_archive
from ..gate.packages.images import is_squashfs
from ..gate.scan.cache import Digest
from ..telemetry.files import open_regular, read_regular
from .podman import Podman

NAMES = ("Containerfile", "Dockerfile")
_MAX_BYTES = 1 << 20
_MAX_FILES = 200_000
_DIRECTIVE = re.compile(r"#\s*gipfel:\s*(base|edf|mount)\s+(\S.*?)\s*")
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)


class Input(Frozen):
    """An input of a build (file, directory or image) with the SHA-256 of its content."""

    name: str
    sha256: str


class Containerfile(Frozen):
    """A Containerfile; ``base``, ``edf`` and ``mounts`` are from its ``# gipfel:`` comments.

    ``edf`` is the EDF that the EDF written by a build is based on.
    """

    path: Path
    context: Path
    sha256: str
    instructions: tuple[str, ...]
    base: str = ""
    edf: str = ""
    mounts: tuple[str, ...] = ()

    def images(self) -> tuple[str, ...]:
        """Return the images that FROM instructions name, without the file's own stages and ``scratch``."""
        found: dict[str, None] = {}
        stages = {"scratch"}
        for line in self.instructions:
            if match := _FROM.match(line):
                if match[1] not in stages:
                    found[match[1]] = None
                stages.add(match[2] or "scratch")
        return tuple(found)

    def inputs(self) -> tuple[Input, ...]:
        """Return the files and directories that ADD and COPY read from the context, with their hashes.

        Raises
        ------
        GipfelError
            One is missing, is outside of the context, or can't be read.
        """
        sources = sorted({source for line in self.instructions for source in _added(line)})
        return tuple(Input(name=name, sha256=_hash(self.context, name)) for name in sources)


def read_containerfile(path: Path, context: Path | None = None) -> Containerfile:
    """Read a Containerfile, or the one in a directory.

    Raises
    ------
    GipfelError
        There is none, it can't be read, or it has no FROM.
    """
    if path.is_dir():
        context = context or path
        found = next((path / name for name in NAMES if (path / name).exists()), None)
        if found is None:
            raise GipfelError(f"{path} has no Containerfile.", "Write one, or give the path of one.")
        path = found
    context = (context or path.parent).absolute()
    if not context.is_dir():
        raise GipfelError(f"The directory {context} does not exist.", "Give another --context.")
    try:
        content = read_regular(path, _MAX_BYTES, follow=True)
        text = content.decode()
    except OSError as error:
        raise GipfelError(f"{path} can't be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError:
        raise GipfelError(f"{path} is not a text file.", "Give the path of a Containerfile.") from None
    lines = tuple(line.strip() for _, line in logical_lines(text) if line.strip())
    if not any(_FROM.match(line) for line in lines):
        raise GipfelError(f"{path} has no FROM.", "Begin it with FROM IMAGE, or FROM scratch and --base.")
    named = [match for line in text.splitlines() if (match := _DIRECTIVE.fullmatch(line))]
    return Containerfile(
        path=path.absolute(),
        context=context,
        sha256=hashlib.sha256(content).hexdigest(),
        instructions=lines,
        base=next((match[2] for match in named if match[1] == "base"), ""),
        edf=next((match[2] for match in named if match[1] == "edf"), ""),
        mounts=tuple(match[2] for match in named if match[1] == "mount"),
    )


def _added(line: str) -> Iterator[str]:
    """Yield the sources that an ADD or COPY instruction reads from the context."""
    word, _, rest = line.partition(" ")
    if word.upper() not in {"ADD", "COPY"}:
        return
    words = rest.split()
    while words and words[0].startswith("--"):
        if words.pop(0).startswith("--from="):
            return
    rest = " ".join(words)
    try:
        names = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return
    for name in names[:-1]:
        if isinstance(name, str) and "://" not in name and "$" not in name and not name.startswith("<<"):
            yield name


def _hash(context: Path, name: str) -> str:
    """Return the SHA-256 of a file, or of a listing of the files in a directory or matching a pattern."""
    pattern = os.path.normpath(name.lstrip("/"))
    if pattern.startswith(".."):
        raise GipfelError(f"{name} is outside of {context}.", "Copy it there.")
    found = sorted(context.glob(pattern)) if any(mark in pattern for mark in "*?[") else [context / pattern]
    if not found or not all(each.exists() for each in found):
        raise GipfelError(f"{name} does not exist in {context}.", "Correct the Containerfile.")
    try:
        if len(found) == 1 and found[0].is_file():
            return hash_file(found[0])
        lines = []
        for path in (each for place in found for each in _walk(place)):
            lines.append(_line(path, context))
            if len(lines) > _MAX_FILES:
                raise GipfelError(f"{name} has more than {_MAX_FILES} files.", "Pack them into a tar file.")
    except OSError as error:
        raise GipfelError(f"{error.filename} can't be read: {error.strerror}.", "Leave it out.") from error
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _walk(place: Path) -> Iterator[Path]:
    yield place
    if place.is_dir() and not place.is_symlink():
        for each in sorted(place.iterdir()):
            yield from _walk(each)


def _line(path: Path, context: Path) -> str:
    mode = path.lstat().st_mode
    content = str(path.readlink()) if stat.S_ISLNK(mode) else hash_file(path) if stat.S_ISREG(mode) else ""
    return f"{stat.S_IFMT(mode):o} {stat.S_IMODE(mode):o} {path.relative_to(context)} {content}"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


#: The repository of Debian packages, for sites without the internet.
MIRROR_VARIABLE = "GIPFEL_DEBIAN_MIRROR"
_DEBIAN = re.compile(r"debian:([a-z][a-z0-9.-]{1,40})((?:,[a-z0-9][a-z0-9+.-]{0,80})*)")
_LOADED = re.compile(r"Loaded images?:\s*(\S+)")
_NAME = "localhost/gipfel/base"
_TAR = 'tar --sort=name --mtime=@0 --numeric-owner -C "$1" -cf "$2" .'


def load_base(
    base: str, podman: Podman, work: Path, digests: Path | None, report: Callable[[str], None]
) -> tuple[str, Input]:
    """Make a base image available in podman's store; return its name there, and its name and digest as input.

    Parameters
    ----------
    base
        A path, or ``debian:SUITE``, optionally followed by packages, separated by commas.
    work
        Directory for temporary files; they need as much space as the base.
    digests
        The user's cache of digests.

    Raises
    ------
    GipfelError
        The base does not exist, or is none of these kinds.
    """
    if match := _DEBIAN.fullmatch(base):
        return _debian(match, podman, work, report)
    path = Path(base).expanduser().absolute()
    if not path.exists():
        raise GipfelError(
            f"The base {base} does not exist.",
            "Give a tar file, a .sqsh, a directory, an OCI archive, or debian:bookworm,python3.",
        )
    if path.is_dir():
        return _import_tree(path, str(path), podman, work, report)
    sha256 = Digest(path, digests).value().removeprefix("sha256:")
    if not sha256:
        raise GipfelError(f"The base {base} can't be read.", "Check its permissions.")
    found = Input(name=str(path), sha256=sha256)
    name = f"{_NAME}:{sha256[:32]}"
    if _exists(name, podman):
        return name, found
    report(f"Loading {path.name}")
    if is_squashfs(path):
        _import_squashfs(path, name, podman, work)
    elif is_archive(path):
        output = podman.podman("load", "--quiet", "--input", str(path))
        loaded = _LOADED.search(output)
        podman.podman("tag", loaded[1] if loaded else output.split()[-1], name)
    else:
        podman.podman("import", "--quiet", str(path), name)
    return name, found


def _exists(name: str, podman: Podman) -> bool:
    with suppress(GipfelError):
        podman.podman("image", "exists", name)
        return True
    return False


def _import_squashfs(path: Path, name: str, podman: Podman, work: Path) -> None:
    """Import a SquashFS image, and set the variables that its files declare in the OCI configuration."""
    tar, root = work / "base.tar", work / "base"
    # Status 2 means that devices were not created, which only root can. Containers get them from the host.
    unpack = 'unsquashfs -quiet -no-progress -no-xattrs -d "$1" "$3" || [ $? -eq 2 ]'
    script = f'{unpack}; {_TAR}; rm -rf "$1"'
    podman.in_namespace(script, str(root), str(tar), str(path))
    podman.podman("import", "--quiet", *_changes(image_environment(path)), str(tar), name)
    tar.unlink()


def _changes(variables: Mapping[str, str]) -> list[str]:
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in variables.items()}
    return [word for key, value in escaped.items() for word in ("--change", f'ENV {key}="{value}"')]


def _import_tree(
    root: Path, shown: str, podman: Podman, work: Path, report: Callable[[str], None]
) -> tuple[str, Input]:
    tar = work / "base.tar"
    report(f"Loading {shown}")
    podman.in_namespace(_TAR, str(root), str(tar))
    sha256 = Digest(tar).value().removeprefix("sha256:")
    name = f"{_NAME}:{sha256[:32]}"
    if not _exists(name, podman):
        podman.podman("import", "--quiet", *_changes(image_environment(root)), str(tar), name)
    tar.unlink()
    return name, Input(name=shown, sha256=sha256)


def _debian(
    match: re.Match[str], podman: Podman, work: Path, report: Callable[[str], None]
) -> tuple[str, Input]:
    base, suite, packages = match[0], match[1], match[2].strip(",")
    mirror = _debian_mirror(podman.environment.get(MIRROR_VARIABLE, ""))
    key = hashlib.sha256(" ".join((base, *mirror)).encode()).hexdigest()
    name = f"{_NAME}:debian-{key[:32]}"
    if not _exists(name, podman):
        if shutil.which("mmdebstrap") is None:
            raise GipfelError("A Debian can't be made without mmdebstrap.", "Install the package mmdebstrap.")
        report(f"Making Debian {suite} from packages, which takes minutes")
        tar = work / "base.tar"
        mode = "root" if os.geteuid() == 0 else "unshare"
        # From a repository without priorities of packages, mmdebstrap would leave out apt.
        include = f"--include=apt{',' if packages else ''}{packages}"
        argv = ("mmdebstrap", f"--mode={mode}", "--variant=minbase", include, suite, str(tar), *mirror)
        podman.run(*argv, variables={"SOURCE_DATE_EPOCH": "0"})
        podman.podman("import", "--quiet", str(tar), name)
        tar.unlink()
    identifier = podman.podman("image", "inspect", "--format", "{{.Id}}", name).strip()
    return name, Input(name=f"{base} from {mirror[0]}" if mirror else base, sha256=identifier)


def _debian_mirror(configured: str) -> tuple[str, ...]:
    """Return mmdebstrap's argument for a repository: a URL, or a line of apt's list that begins with ``deb``.

    Raises
    ------
    GipfelError
        It is neither.
    """
    if not configured:
        return ()
    if not re.fullmatch(
        r"(?:deb (?:\[[^\]\n]{1,200}\] )?)?(?:https?://|file:/|copy:/)[^\n]{1,500}", configured
    ):
        raise GipfelError(
            f"{MIRROR_VARIABLE} is not a repository: {configured[:100]}.",
            'Set it to a URL, or to "deb [trusted=yes] file:/srv/debian ./".',
        )
    # Inside the new system, where apt installs, the directory of a file: URL does not exist.
    return (re.sub(r"(^|\s)file:/", r"\1copy:/", configured, count=1),)
