"""A resolved EDF, diagnostics about it, its keys, and the limits and dialects of EDFs.

Real EDFs have a few dozen values and a few kilobytes; the limits are far above these. They bound the cost
of a hostile EDF: checking, showing or rendering one takes seconds at most and writes less than a megabyte.

The nine keys are declared once, in `EdfFile`. The keys and their TOML types for the parser (`KEYS`), other
tools' names for the hint about an unknown key (`SYNONYMS`), the order of keys in an EDF that the form
writes (`draft`), and the JSON Schema for editors, forms and documentation (`schema_text`) are derived from
it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field, JsonValue, RootModel, ValidationInfo, field_validator

from ..model import Frozen, GipfelError, one_line, printable

#: Bytes of one file.
MAX_FILE_BYTES = 1 << 20
#: Bytes of all files of one EDF.
MAX_TOTAL_BYTES = 2 << 20
#: Entries of ``base_environment`` in all files of one EDF, and levels of inheritance.
MAX_FILES = 200
MAX_BASE_LEVELS = 10
#: Values of one file, and of all files of one EDF.
MAX_VALUES = 2000
#: Parts of one dotted key.
MAX_KEY_PARTS = 50
#: Characters of one value as written and as expanded; the kernel has a similar limit for a variable.
MAX_VALUE_CHARACTERS = 1 << 16
#: Characters of all names and expanded values of one EDF. A character that JSON escapes counts as six.
MAX_TOTAL_CHARACTERS = 1 << 17
#: Bytes of a path. Source: Linux, PATH_MAX.
MAX_PATH_BYTES = 4096
#: Flags of one mount.
MAX_MOUNT_FLAGS = 32
#: Bytes of all set-up steps of one EDF.
MAX_SETUP_BYTES = 1 << 16
#: Diagnostics that are reported about one EDF.
MAX_DIAGNOSTICS = 100
#: Severity of a diagnostic; a note explains a consequence of an EDF that is correct.
Severity = Literal["error", "warning", "note"]
#: Maximum lengths of a diagnostic's texts, and of a value that a message quotes, in characters.
_MAX_LENGTHS = {"key": 200, "message": 2000, "fix": 400}
_MAX_QUOTED = 120
#: Mount sources that name no file: the Container Engine and Pyxis mount a tmpfs, or unmount the destination.
SPECIAL_SOURCES = frozenset(("tmpfs", "umount"))
Dialect = Literal["ce", "sarus", "pyxis"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
#: Whether the image's entrypoint runs by default; Pyxis leaves it to the site, and most sites follow the CE.
ENTRYPOINT: dict[Dialect, bool] = {"ce": False, "sarus": True, "pyxis": False}


class Mount(Frozen):
    """A ``source`` path of the host, or a special source, mounted at ``destination`` in the container."""

    source: str
    destination: str
    flags: tuple[str, ...] = ()

    @property
    def is_special(self) -> bool:
        """Return whether the source is ``tmpfs`` or ``umount`` and not a path to bind."""
        return self.source in SPECIAL_SOURCES

    def __str__(self) -> str:
        flags = f":{'+'.join(self.flags)}" if self.flags else ""
        return f"{self.source}:{self.destination}{flags}"


class Edf(Frozen):
    """An EDF with its bases merged in and every ``${…}`` expanded.

    ``path`` is its file, None for a text that is not on disk. An empty ``image`` means no container, and an
    empty ``workdir`` the image's. Names of annotations are dotted.
    """

    name: str
    path: str | None
    image: str = ""
    workdir: str = ""
    entrypoint: bool = False
    writable: bool = True
    mounts: tuple[Mount, ...] = ()
    #: An empty value unsets the variable.
    env: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    devices: tuple[str, ...] = ()
    #: The files that the EDF was read from, the base first.
    sources: tuple[str, ...] = ()
    #: The files of set-up steps, as absolute paths on this machine, the base's first.
    setup: tuple[str, ...] = ()
    #: ``sha256:…`` of each file in ``setup`` at the time it was read.
    setup_digests: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """Return the EDF's settings, without its name and source files.

        ``setup`` lists the digests of the set-up steps; it is absent if there are none.
        """
        content = self.model_dump(mode="json", exclude={"name", "path", "sources", "setup", "setup_digests"})
        return content | ({"setup": list(self.setup_digests)} if self.setup_digests else {})

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` over the canonical JSON of `content`."""
        canonical = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def image_path(self) -> Path | None:
        """Return the path of the image on this machine; None without an image or for one in a registry."""
        return Path(self.image) if self.image.startswith("/") else None


class Diagnostic(Frozen):
    """An error, warning or note about an EDF, printed as one line.

    ``code`` identifies the kind of problem, ``key`` is the EDF's key such as ``mounts[0]``. The message says
    what is wrong and what that causes, the fix what to do. An EDF with an error is not used. Long texts are
    shortened.
    """

    severity: Severity
    code: str
    file: str
    line: int | None
    key: str
    message: str
    fix: str = ""

    @field_validator("file", "key", "message", "fix", mode="before")
    @classmethod
    def _readable(cls, text: str, info: ValidationInfo) -> str:
        """Replace bytes that are not UTF-8, which JSON can't carry, and shorten long texts."""
        return printable(shortened(text, _MAX_LENGTHS.get(info.field_name or "", MAX_PATH_BYTES)))

    @property
    def location(self) -> str:
        """Return file, line and key, as far as they are known."""
        position = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (position, self.key) if part)

    def __str__(self) -> str:
        return one_line(f"{self.location}: {self.severity}: {self.message} {self.fix}")


class EdfError(GipfelError):
    """An EDF that can't be used; the first error is the message, all are in `diagnostics`.

    Parameters
    ----------
    file
        The requested EDF; the message also names it if the error is in one of its bases.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic], file: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        errors = [each for each in self.diagnostics if each.severity == "error"]
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        requested = f"{file} can't be used: " if file and file != first.file else ""
        super().__init__(f"{requested}{first.location}: {first.message}{more}", first.fix)


def limit_diagnostics(diagnostics: Iterable[Diagnostic], file: str) -> tuple[Diagnostic, ...]:
    """Return at most 100 distinct diagnostics, dropping the least severe; a last one counts the rest."""
    unique = tuple(dict.fromkeys(diagnostics))
    if len(unique) <= MAX_DIAGNOSTICS:
        return unique
    rank = {"error": 0, "warning": 1, "note": 2}
    order = sorted(range(len(unique)), key=lambda index: (rank[unique[index].severity], index))
    listed = [unique[index] for index in sorted(order[:MAX_DIAGNOSTICS])]
    dropped = [unique[index] for index in order[MAX_DIAGNOSTICS:]]
    errors = sum(each.severity == "error" for each in dropped)
    noun = "errors" if errors == len(dropped) else f"diagnostics, {errors} of them errors,"
    more = Diagnostic(
        severity=dropped[0].severity,
        code="more",
        file=file,
        line=None,
        key="",
        message=f"{len(dropped)} more {noun} are not listed.",
        fix="Fix the listed ones, and check again.",
    )
    return (*listed, more)


def shortened(text: str, max_characters: int = _MAX_QUOTED) -> str:
    """Return a text with its middle replaced by an ellipsis if it is too long for a message."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters * 2 // 3]}…{text[-max_characters // 3 :]}"


def json_length(text: str) -> int:
    """Return an upper bound of the number of characters that a text takes in JSON."""
    return len(text) if text.isascii() and text.isprintable() else 6 * len(text)


def annotation_variables(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return annotations as the variables that Enroot's hooks read: a dot becomes two underscores."""
    return {f"OCI_ANNOTATION_{name.replace('.', '__')}": value for name, value in annotations.items()}


_Text = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Synonyms:
    """Other tools' names for a key, which the hint about an unknown key recognizes."""

    def __init__(self, *names: str) -> None:
        self.names = names


def _schema_extra(*examples: JsonValue, path: str = "") -> dict[str, JsonValue]:
    """Return the examples, and for a path its kind: ``edf``, ``image``, ``container`` or ``mount``."""
    return {"examples": list(examples)} | ({"x-path": path} if path else {})


class Annotations(RootModel[dict[str, "_Text | Annotations"]]):
    """Annotations, nested or dotted; a value is a string."""


class EdfFile(Frozen):
    """An environment definition file (EDF): image, mounts, variables and settings of a container."""

    base_environment: Annotated[
        _Text | list[_Text], Synonyms("base", "extends", "inherits", "from", "parent")
    ] = Field(
        default="",
        title="Inherits from",
        description="EDFs to inherit, by name or path. Later ones override earlier ones, and this file "
        "overrides all; mounts and devices are appended. At most ten levels.",
        json_schema_extra=_schema_extra("site", ["site", "./team.toml"], path="edf"),
    )
    image: Annotated[_Text, Synonyms("container", "container_image", "img")] = Field(
        default="",
        title="Image",
        description="[USER@][REGISTRY#]IMAGE[:TAG], or a SquashFS file that begins with '/', './' or '${'. "
        "Leave it empty to run without a container.",
        json_schema_extra=_schema_extra(
            "nvcr.io#nvidia/pytorch:25.11-py3", "${SCRATCH}/images/pytorch.sqsh", path="image"
        ),
    )
    workdir: Annotated[_Text, Synonyms("working_dir", "working_directory", "cwd", "chdir")] = Field(
        default="",
        title="Working directory",
        description="The working directory in the container, an absolute path. Default: the image's.",
        json_schema_extra=_schema_extra("/workspace", "${SCRATCH}", path="container"),
    )
    entrypoint: bool = Field(
        default=False, title="Entry point", description="Run the entrypoint of the image first."
    )
    writable: bool = Field(
        default=True, title="Writable", description="Whether the root file system can be written to."
    )
    mounts: Annotated[list[_Text], Synonyms("volumes", "volume", "binds", "bind")] = Field(
        default=[],
        title="Mounts",
        description="SOURCE:DESTINATION[:FLAG+FLAG]. The flag 'sqsh' is used alone: a SquashFS file.",
        json_schema_extra=_schema_extra(
            ["${SCRATCH}:${SCRATCH}", "/store/data:/data:ro", "/store/set.sqsh:/set:sqsh"], path="mount"
        ),
    )
    env: Annotated[dict[_Variable, _Text], Synonyms("envs", "variables", "vars")] = Field(
        default={},
        title="Variables",
        json_schema_extra={
            "additionalProperties": False,
            **_schema_extra({"HF_HOME": "${SCRATCH}/hf", "DEBUG": ""}),
        },
        description="Variables of the container. An empty value unsets one. "
        "A variable can't refer to another one.",
    )
    annotations: Annotated[Annotations, Synonyms("labels")] = Field(
        default=Annotations({}),
        title="Annotations",
        description='For hooks, nested or dotted: com.hooks.cxi.enabled = "true". Values are strings.',
        json_schema_extra=_schema_extra({"com.hooks.aws_ofi_nccl.enabled": "true"}),
    )
    devices: Annotated[list[_Text], Synonyms("device")] = Field(
        default=[],
        title="Devices",
        description="Devices as Podman's --device takes them: nvidia.com/gpu=all. Sarus only.",
        json_schema_extra=_schema_extra(["nvidia.com/gpu=all", "/dev/gdrdrv"]),
    )


def _toml_types(annotation: Any) -> frozenset[type]:
    """Return the Python types that `tomllib` returns for the field."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _toml_types(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return frozenset[type]().union(*map(_toml_types, get_args(annotation)))
    return frozenset({dict if annotation is Annotations else origin or annotation})


#: Each key with the types of its value in TOML.
KEYS: Mapping[str, frozenset[type]] = {
    name: _toml_types(field.annotation) for name, field in EdfFile.model_fields.items()
}
#: Other tools' name for a key -> the key.
SYNONYMS: Mapping[str, str] = {
    synonym: name
    for name, field in EdfFile.model_fields.items()
    for metadata in field.metadata
    if isinstance(metadata, Synonyms)
    for synonym in metadata.names
}


def schema_text() -> str:
    """Return the JSON Schema of an EDF, the content of ``schema.json`` beside this file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | EdfFile.model_json_schema()
    for name, field in EdfFile.model_fields.items():
        # Pydantic omits the title of a field that is a reference.
        schema["properties"][name].setdefault("title", field.title)
    return json.dumps(schema | {"title": "EDF"}, indent=2) + "\n"
