"""Build a SquashFS image from a Containerfile, as a plain user, on the node that this runs on.

The image and the files beside it are written in a hidden directory, and moved to their final paths when all
of them are complete. The same inputs give the same bytes: entries are sorted, times are 0, and files that
only record how the build went (logs, caches, package lists) are left out.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import field_validator

from gipfel_cluster.edf.draft import edf_toml
from gipfel_cluster.environment import parse_environment
from gipfel_cluster.image_digest import DIGESTS
from gipfel_cluster.model import Frozen, GipfelError, OneLine, check_variables
from gipfel_cluster.runs import user_cache

from ..data.options import find_packer
from ..data.pack import utc_now, work_directory
from ..gate.packages.inventory import Inventory
from ..telemetry.files import open_regular, read_regular, sync_directory
from . import sbom
from .containerfile import Containerfile, Input, hash_file, load_base, read_containerfile
from .podman import Podman, open_podman
from .provenance import SUFFIX as PROVENANCE
from .provenance import Record, beside, find_key, sign, statement

#: Memory that mksquashfs may use; its default is a quarter of the machine's, which may exceed the job's.
_MEMORY = "1G"
#: Most bytes of the file into which podman writes the image's ID.
_ID_BYTES = 200
#: Patterns of files that differ between two runs of the same commands, and that no program in an image needs.
LEFT_OUT = (
    *("var/log/apt/*", "var/log/dpkg.log", "var/log/alternatives.log", "var/log/bootstrap.log"),
    *("var/cache/ldconfig/aux-cache", "var/cache/apt/*", "var/lib/apt/lists/*", "var/cache/debconf/*-old"),
    *("var/lib/dpkg/*-old", "run/*", "root/.cache/*"),
)
_SQUASH = """\
image=$(podman --log-level=error image mount "$1")
mksquashfs "$image" "$2" -noappend -quiet -no-progress -exit-on-error -no-recovery -no-xattrs -comp "$4" \
  -mem %s -mkfs-time 0 -all-time 0 -wildcards -ef "$3"
podman --log-level=error image unmount "$1" > /dev/null
"""
_RC = """\
mkdir -p {workdir} 2> /dev/null
cd {workdir} || exit 1
if [ $# -gt 0 ]; then
  exec {entrypoint} "$@"
fi
exec {entrypoint} {command}
"""


class BuildJob(Frozen):
    """Resources of a separate job for a build; an empty text or 0 stands for the scheduler's default."""

    scheduler: OneLine = ""
    partition: OneLine = ""
    account: OneLine = ""
    qos: OneLine = ""
    reservation: OneLine = ""
    time: OneLine = ""
    memory: OneLine = ""
    cpus: int = 0


class BuildSpec(Frozen):
    """Source, options and result of a build; paths are absolute.

    ``base`` replaces the image of the first FROM. ``key`` is the path of the key to sign with; if it is
    empty, one is searched for, and ``signed`` False builds without a signature. ``job`` is None for a build
    on the machine where the command runs.
    """

    containerfile: OneLine
    target: OneLine
    context: OneLine = ""
    base: OneLine = ""
    #: Values of ARG; they are recorded in the provenance, so none may be secret.
    arguments: Mapping[str, OneLine] = {}
    #: Directories on this machine that the Containerfile may mount. It may be somebody else's, so it mounts
    #: no others.
    mounts: tuple[OneLine, ...] = ()
    network: bool = True
    key: OneLine = ""
    signed: bool = True
    keep_layers: bool = True
    replace: bool = False
    job: BuildJob | None = None

    @field_validator("arguments")
    @classmethod
    def _are_names(cls, arguments: Mapping[str, str]) -> Mapping[str, str]:
        # podman reads the values from its environment; they must not change its other variables.
        check_variables(arguments, "CONTAINERS_")
        return arguments


@dataclass(frozen=True)
class BuildContext:
    """Environment of a build: where its output goes, and how it is stopped.

    ``report`` gets a line for each step. ``is_stopping`` is polled; the build stops when it returns True.
    """

    log: BinaryIO
    environment: Mapping[str, str]
    report: Callable[[str], None] = lambda _: None
    is_stopping: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class BuiltImage:
    """The files of a finished build; ``signature`` is None for an unsigned image, and ``note`` says why."""

    image: Path
    edf: Path
    sha256: str
    packages: int
    signature: Path | None
    note: str = ""
    files: tuple[Path, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``gipfel image build --json``."""
        return {
            "image": str(self.image),
            "edf": str(self.edf),
            "sha256": self.sha256,
            "packages": self.packages,
            "signature": str(self.signature) if self.signature else None,
            "files": [str(each) for each in self.files],
            "note": self.note,
        }


def build(spec: BuildSpec, context: BuildContext) -> BuiltImage:
    """Build an image with the files beside it; after a failure, no partial files are left.

    Raises
    ------
    GipfelError
        A program or file is missing, a command in the Containerfile failed, or a disk is full.
    Stopped
        ``context.is_stopping`` returned True.
    """
    started = utc_now()
    target, file = check_build(spec)
    key = find_key(spec.key, context.environment) if spec.signed else None
    compressor = "zstd" if "zstd" in find_packer().compressors else "gzip"
    if shutil.which("podman") is None:
        raise GipfelError("Images can't be built without podman.", "Install the packages podman and uidmap.")
    inputs = file.inputs()
    with (
        work_directory(target) as work,
        open_podman(
            context.log,
            context.environment,
            context.is_stopping,
            keep_layers=spec.keep_layers,
            report=context.report,
        ) as podman,
    ):
        image, taken = _build_layers(spec, file, podman, work, context)
        about = json.loads(podman.podman("image", "inspect", image))[0]
        configuration = _configuration(about)
        image = _with_configuration(image, configuration, podman, work)
        context.report("Packing the image")
        squashed = work / target.name
        left_out = work / "left-out"
        left_out.write_text("\n".join(LEFT_OUT) + "\n")
        podman.in_namespace(_SQUASH % _MEMORY, image, str(squashed), str(left_out), compressor)
        record = Record(
            containerfile=file.sha256,
            instructions=file.instructions,
            source=str(file.path),
            inputs=(*inputs, *taken),
            arguments=spec.arguments,
            network=spec.network,
            configuration=configuration,
            layers=tuple(about.get("RootFS", {}).get("Layers", ())),
            tools=_tools(podman),
            started=started,
        )
        context.report("Listing packages")
        return _finish(squashed, target, record, Signing(key, spec.key != "", context.environment), file.edf)


def check_build(spec: BuildSpec) -> tuple[Path, Containerfile]:
    """Check whether a build can start; return its target and its Containerfile.

    Raises
    ------
    GipfelError
        The target exists or can't be written, or the Containerfile can't be read.
    """
    target = Path(spec.target).absolute()
    if target.suffix != ".sqsh":
        raise GipfelError(f"{target.name} does not end with .sqsh.", "Give a name such as my-image.sqsh.")
    if not target.parent.is_dir():
        raise GipfelError(f"The directory {target.parent} does not exist.", "Create it first.")
    for path in (target, target.with_suffix(".toml")):
        if path.exists() and not (spec.replace and path.is_file()):
            raise GipfelError(f"{path} exists already.", "Use --replace, or give another name.")
    file = read_containerfile(Path(spec.containerfile), Path(spec.context) if spec.context else None)
    return target.parent.resolve() / target.name, file


def _build_layers(
    spec: BuildSpec, file: Containerfile, podman: Podman, work: Path, context: BuildContext
) -> tuple[str, list[Input]]:
    """Run the Containerfile; return the image's ID, and the images that it started from."""
    base, taken, options = spec.base or file.base, [], []
    if base:
        digests = user_cache(DIGESTS, context.environment)
        with podman.unpacking() as folder:
            name, found = load_base(base, podman, folder, digests, context.report)
        options, taken = ["--from", name, "--pull-never"], [found]
    for mount in file.mounts:
        if mount not in spec.mounts:
            raise GipfelError(
                f"The Containerfile mounts {mount} of this machine, so that its commands can read it.",
                f"If that is right: --mount {shlex.quote(mount)}",
            )
        if not Path(mount).is_absolute() or ":" in mount or not Path(mount).is_dir():
            raise GipfelError(f"{mount}, which the Containerfile mounts, is not a directory here.", "")
        options += ["--volume", f"{mount}:{mount}:ro"]
    identifier = work / "id"
    # Pass values in the environment: every user of the node can see the values in an argv.
    options += [word for name in spec.arguments for word in ("--build-arg", name)]
    network = ["--isolation", "chroot", "--network", "host"] if spec.network else ["--network", "none"]
    podman.podman(
        "build",
        *network,
        *("--timestamp", "0", "--env", "SOURCE_DATE_EPOCH=0", "--layers", "--force-rm"),
        *("--iidfile", str(identifier), *options),
        *("--file", str(file.path), str(file.context)),
        on_line=lambda line: context.report(line) if line.startswith("STEP ") else None,
        variables=spec.arguments,
    )
    image = _read_image_id(identifier)
    skipped = 1 if base else 0
    return image, taken + [_pulled(name, podman) for name in file.images()[skipped:]]


def _read_image_id(path: Path) -> str:
    """Return the image ID that podman has written into a file."""
    return read_regular(path, _ID_BYTES).decode().strip().removeprefix("sha256:")


def _pulled(name: str, podman: Podman) -> Input:
    digest = podman.podman("image", "inspect", "--format", "{{.Digest}}", name).strip()
    return Input(name=name, sha256=digest.removeprefix("sha256:"))


def _configuration(about: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an OCI configuration that a SquashFS image can't hold, without empty values."""
    found = about.get("Config") or {}
    pairs = (text.partition("=") for text in found.get("Env") or ())
    variables = {name: value for name, _, value in pairs if name != "SOURCE_DATE_EPOCH"}
    values = {
        "env": variables,
        "entrypoint": found.get("Entrypoint"),
        "command": found.get("Cmd"),
        "workdir": found.get("WorkingDir", "").removesuffix("/"),
    }
    return {name: value for name, value in values.items() if value}


def _with_configuration(image: str, configuration: dict[str, Any], podman: Podman, work: Path) -> str:
    """Add ``/etc/environment`` and ``/etc/rc``, which replace the OCI configuration; return the new ID."""
    folder = work / "configuration"
    folder.mkdir()
    (folder / "environment").write_text(environment_file(configuration.get("env", {})))
    if any(name in configuration for name in ("entrypoint", "command", "workdir")):
        (folder / "rc").write_text(entry_script(configuration))
    (folder / "Containerfile").write_text(f"FROM {image}\nCOPY --chmod=644 [er]* /etc/\n")
    identifier = work / "id"
    podman.podman(
        "build", "--isolation", "chroot", "--network", "host", "--timestamp", "0", "--layers",
        "--iidfile", str(identifier), str(folder),
    )  # fmt: skip
    return _read_image_id(identifier)


def environment_file(variables: Mapping[str, str]) -> str:
    """Return the text of ``/etc/environment``, from which `parse_environment` reads the same variables.

    Raises
    ------
    GipfelError
        A value has a line break, which the file can't hold.
    """
    lines = []
    for name, value in variables.items():
        quoted = value.strip() != value or (value[:1] in "\"'" and value[-1:] == value[:1] and value)
        lines.append(f'{name}="{value}"' if quoted else f"{name}={value}")
    text = "".join(f"{line}\n" for line in lines)
    if parse_environment(text) != dict(variables):
        raise GipfelError(
            "A variable of the image has a line break or another name than programs can have.",
            "Correct the ENV instructions.",
        )
    return text


def entry_script(configuration: Mapping[str, Any]) -> str:
    """Return the text of ``/etc/rc``, which changes to the working directory and runs the entry point."""
    text = _RC.format(
        workdir=shlex.quote(configuration.get("workdir") or "/"),
        entrypoint=shlex.join(configuration.get("entrypoint") or ()),
        command=shlex.join(configuration.get("command") or ("/bin/sh",)),
    )
    return text.replace("exec  ", "exec ")


def _tools(podman: Podman) -> dict[str, str]:
    said = podman.podman("--version").split()
    return {"gipfel": sbom.gipfel_version(), "podman": said[-1], "mksquashfs": find_packer().version}


class Signing(NamedTuple):
    """The key to sign with, or None; if `required`, a build without a signature fails."""

    key: Path | None
    required: bool
    environment: Mapping[str, str]


def _finish(squashed: Path, target: Path, record: Record, signing: Signing, base_edf: str) -> BuiltImage:
    """Write EDF, bill of materials, provenance and signature, and move all files to their final paths."""
    os.chmod(squashed, 0o666 & ~_umask())  # noqa: PTH101 - mksquashfs makes it for the namespace's root
    found = Inventory(squashed)
    sha256 = hash_file(squashed)
    bill = beside(squashed, sbom.SUFFIX)
    sbom.write_json(
        bill,
        sbom.bill_of_materials(found.packages, name=target.name, sha256=sha256, os_release=found.os_release),
    )
    edf = squashed.with_suffix(".toml")
    values: dict[str, object] = {"base_environment": base_edf} if base_edf else {}
    values["image"] = str(target)
    if workdir := record.configuration.get("workdir"):
        values["workdir"] = workdir
    if record.configuration.get("entrypoint"):
        values["entrypoint"] = True
    edf.write_text(edf_toml(values))
    files = [squashed, edf, bill]
    urls = [sbom.package_url(each) for each in found.packages]
    record = record.finish(urls, utc_now())
    about = beside(squashed, PROVENANCE)
    sbom.write_json(about, statement(record, files))
    signature, note = _signed(about, signing)
    moved = _install([*files, about, *([signature] if signature else [])], target)
    return BuiltImage(
        image=target,
        edf=target.with_suffix(".toml"),
        sha256=sha256,
        packages=len(found.packages),
        signature=moved[-1] if signature else None,
        note=" ".join([note, *found.not_judged]).strip(),
        files=tuple(moved),
    )


def _signed(path: Path, signing: Signing) -> tuple[Path | None, str]:
    if signing.key is None:
        return None, "The image is not signed. `ssh-keygen -t ed25519` makes a key in ~/.ssh."
    try:
        return sign(path, signing.key, signing.environment), ""
    except GipfelError as error:
        if signing.required:
            raise
        return None, f"The image is not signed. {error}"


def _install(files: list[Path], target: Path) -> list[Path]:
    """Move the files of a build beside the target, the image last, so that it never lacks the others."""
    moved = [target.parent / each.name for each in files]
    (target.parent / f"{target.name}{PROVENANCE}.sig").unlink(missing_ok=True)
    for each in files:
        with open_regular(each) as written:
            os.fsync(written.fileno())
    for source, place in list(zip(files, moved, strict=True))[::-1]:
        source.replace(place)
    sync_directory(target.parent)
    return moved


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
