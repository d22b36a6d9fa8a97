"""The provenance of an image: an in-toto statement in SLSA's format, signed with an SSH key.

The statement has the SHA-256 of image, EDF and bill of materials, so that one signature covers all three.
Sources: in-toto.io/Statement/v1, slsa.dev/provenance/v1, ssh-keygen(1) on ``-Y``.
"""

import getpass
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine, one_line

from ..telemetry.files import read_regular
from .containerfile import Input, hash_file

SUFFIX = ".provenance.json"
NAMESPACE = "gipfel-image"
KEY_VARIABLE, SIGNERS_VARIABLE = "GIPFEL_IMAGE_KEY", "GIPFEL_IMAGE_SIGNERS"
_BUILD_TYPE = "urn:gipfel:image-build:1"
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_MAX_BYTES = 16 << 20
_MOST_URLS = 10_000
_TIMEOUT_S = 30.0
_KEY_BYTES = 64 << 10

Verdict = Literal["verified", "changed", "refused", "unsigned", "unknown"]


class Subject(Frozen):
    """The image or a file beside it, with its digest."""

    name: OneLine = Field(pattern=r"^[^/]{1,255}$")
    digest: dict[str, str]


class Record(Frozen):
    """Request, inputs and tools of a build, for the statement.

    ``containerfile`` is the digest of the Containerfile, ``source`` the path that it had.
    ``configuration`` is the part of the OCI configuration that the image's ``/etc/environment`` and
    ``/etc/rc`` replace; ``tools`` maps programs to their versions; ``packages`` is the number of packages in
    the image, of which ``package_urls`` names at most 10 000 with their versions; ``started`` and
    ``finished`` are UTC times in ISO 8601.
    """

    containerfile: str
    instructions: tuple[str, ...]
    source: str = ""
    inputs: tuple[Input, ...] = ()
    arguments: Mapping[str, str] = {}
    network: bool = True
    configuration: Mapping[str, Any] = {}
    layers: tuple[str, ...] = ()
    tools: Mapping[str, str] = {}
    packages: int = 0
    package_urls: tuple[str, ...] = ()
    started: str = ""
    finished: str = ""

    def finish(self, urls: Sequence[str], finished: str) -> "Record":
        """Return the record with the time of its end and the URLs of all packages in the image."""
        named = tuple(sorted(set(urls))[:_MOST_URLS])
        return self.model_copy(update={"packages": len(urls), "package_urls": named, "finished": finished})

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the image; empty if the statement does not list any."""
        found = self.configuration.get("env")
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


class Verification(Frozen):
    """The result of `verify`; ``signer`` is the signer's name in the file of allowed signers."""

    verdict: Verdict
    reason: str = ""
    signer: str = ""

    @property
    def exit_status(self) -> int:
        """Return 0 for a verified image, 1 if it was changed or refused, 2 if unsigned or not judged."""
        return {"verified": 0, "changed": 1, "refused": 1}.get(self.verdict, 2)


def statement(record: Record, files: list[Path]) -> dict[str, Any]:
    """Return the statement on a build and its files, which are all in one directory."""
    outside = {
        "containerfile": record.containerfile,
        "source": record.source,
        "arguments": record.arguments,
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": hash_file(each)}} for each in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": outside | {"network": record.network},
                "internalParameters": {
                    "instructions": list(record.instructions),
                    "configuration": record.configuration,
                    "layers": list(record.layers),
                    "packages": record.packages,
                    "package_urls": list(record.package_urls),
                },
                "resolvedDependencies": [
                    {"name": each.name, "digest": {"sha256": each.sha256}} for each in record.inputs
                ],
            },
            "runDetails": {
                "builder": {"id": _BUILD_TYPE, "version": record.tools},
                "metadata": {"startedOn": record.started, "finishedOn": record.finished},
            },
        },
    }


def read_statement(image: Path) -> tuple[tuple[Subject, ...], Record]:
    """Return the subjects (files with digests) and the record in the statement beside an image.

    Raises
    ------
    GipfelError
        There is no statement, or Gipfel did not write it.
    """
    path = beside(image, SUFFIX)
    try:
        document = json.loads(read_regular(path, _MAX_BYTES))
        # Raise here for escapes of unpaired surrogates, which can't be printed.
        json.dumps(document, ensure_ascii=False).encode()
        subjects = tuple(Subject.model_validate(each) for each in document["subject"])
        if not subjects or {".", ".."} & {each.name for each in subjects}:
            raise ValueError("it names no files")  # noqa: TRY301
        predicate = document["predicate"]
        asked, inside = (
            predicate["buildDefinition"][f"{name}Parameters"] for name in ("external", "internal")
        )
        taken = predicate["buildDefinition"]["resolvedDependencies"]
        times = predicate["runDetails"]["metadata"]
        record = Record(
            containerfile=asked["containerfile"],
            source=asked.get("source", ""),
            arguments=asked["arguments"],
            network=asked["network"],
            inputs=tuple(Input(name=each["name"], sha256=each["digest"]["sha256"]) for each in taken),
            tools=predicate["runDetails"]["builder"]["version"],
            started=times["startedOn"],
            finished=times["finishedOn"],
            **inside,
        )
    except FileNotFoundError:
        raise GipfelError(
            f"{image} has no provenance beside it ({path.name}).", "Only `gipfel image build` writes one."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        reason = getattr(error, "strerror", None) or "it is not a statement of Gipfel's"
        raise GipfelError(f"{path} can't be read: {reason}.", "Build the image again.") from error
    return subjects, record


def beside(image: Path, suffix: str) -> Path:
    """Return the path of a file beside an image, such as ``NAME.sqsh.provenance.json``."""
    return image.with_name(f"{image.name}{suffix}")


def find_key(given: str, environment: Mapping[str, str]) -> Path | None:
    """Return the key to sign with: the given one, else ``$GIPFEL_IMAGE_KEY``, else one in ``~/.ssh``.

    Raises
    ------
    GipfelError
        A named key does not exist.
    """
    named = given or environment.get(KEY_VARIABLE, "")
    if named:
        path = Path(named).expanduser().absolute()
        if not path.is_file():
            raise GipfelError(f"The key {named} does not exist.", "Create one: ssh-keygen -t ed25519")
        return path
    folder = Path(environment.get("HOME") or Path.home()) / ".ssh"
    return next((folder / name for name in _KEYS if (folder / name).is_file()), None)


def sign(path: Path, key: Path, environment: Mapping[str, str], namespace: str = NAMESPACE) -> Path:
    """Sign a file; return the path of the signature, ``NAME.sig`` beside it.

    Raises
    ------
    GipfelError
        The key can't be used, for example because it has a passphrase and is not in an SSH agent.
    """
    signature = path.with_name(f"{path.name}.sig")
    signature.unlink(missing_ok=True)
    status, said = _ssh_keygen(environment, "-Y", "sign", "-q", "-f", str(key), "-n", namespace, str(path))
    if status or not signature.exists():
        raise GipfelError(
            f"{key} can't sign: {said or 'it needs its passphrase'}.",
            f"Load it with ssh-add and give {key}.pub, give another --key, or use --no-sign.",
        )
    return signature


def verify(image: Path, signers: Path | None, environment: Mapping[str, str]) -> Verification:
    """Compare an image and the files beside it with their statement, and check its signature.

    Parameters
    ----------
    signers
        File of accepted signers, as described in ssh-keygen(1), "ALLOWED SIGNERS". By default
        ``$GIPFEL_IMAGE_SIGNERS``, else the user's own public keys are accepted.

    Raises
    ------
    GipfelError
        The image or its statement can't be read.
    """
    subjects, _ = read_statement(image)
    if image.name not in {each.name for each in subjects}:
        return Verification(verdict="changed", reason=f"its provenance is about {subjects[0].name}")
    for each in subjects:
        try:
            found = hash_file(image.with_name(each.name))
        except OSError as error:
            return Verification(verdict="changed", reason=f"{each.name} can't be read: {error.strerror}")
        if found != each.digest.get("sha256"):
            return Verification(verdict="changed", reason=f"{each.name} is not the file that was built")
    path = beside(image, SUFFIX)
    signature = path.with_name(f"{path.name}.sig")
    if not signature.is_file():
        return Verification(verdict="unsigned", reason="the files are those that were built, but not signed")
    with tempfile.TemporaryDirectory(prefix="gipfel-signers-") as folder:
        listed = signers or _signers(environment, Path(folder))
        if listed is None:
            return Verification(verdict="unknown", reason=f"no list of signers; set {SIGNERS_VARIABLE}")
        if not listed.is_file():
            raise GipfelError(f"The list of signers {listed} does not exist.", "Check the path.")
        return _check_signature(path, signature, listed, environment)


def _check_signature(
    path: Path, signature: Path, signers: Path, environment: Mapping[str, str]
) -> Verification:
    files = ("-s", str(signature), "-f", str(signers))
    status, said = _ssh_keygen(environment, "-Y", "find-principals", *files)
    if status:
        return Verification(verdict="refused", reason=f"its signature is by a key that {signers.name} lacks")
    signer = said.splitlines()[0] if said else ""
    status, said = _ssh_keygen(environment, "-Y", "verify", "-n", NAMESPACE, "-I", signer, *files, stdin=path)
    if status:
        return Verification(verdict="refused", reason=f"its signature does not match: {one_line(said)[:200]}")
    return Verification(verdict="verified", signer=signer)


def _signers(environment: Mapping[str, str], folder: Path) -> Path | None:
    if configured := environment.get(SIGNERS_VARIABLE, ""):
        return Path(configured).expanduser()
    home = Path(environment.get("HOME") or Path.home()) / ".ssh"
    keys = []
    for each in sorted(home.glob("id_*.pub")):
        with suppress(OSError):
            keys.append(read_regular(each, _KEY_BYTES, follow=True).decode(errors="replace").split("\n")[0])
    if not keys:
        return None
    path = folder / "your own keys"
    path.write_text("".join(f"{getpass.getuser()} {key}\n" for key in keys))
    return path


def _ssh_keygen(
    environment: Mapping[str, str], *arguments: str, stdin: Path | None = None
) -> tuple[int, str]:
    """Run ssh-keygen without a terminal, so that it never prompts; return its exit status and output."""
    if shutil.which("ssh-keygen") is None:
        raise GipfelError("Images can't be signed or verified without ssh-keygen.", "Install openssh-client.")
    handle = os.open(stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = subprocess.run(
            ("ssh-keygen", *arguments),
            stdin=handle,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GipfelError(
            f"ssh-keygen took longer than {_TIMEOUT_S:.0f} s.", "Is the agent locked?"
        ) from None
    finally:
        os.close(handle)
    return done.returncode, done.stdout.decode(errors="replace").strip()
