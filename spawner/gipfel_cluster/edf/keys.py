"""The nine keys of an EDF, declared once, in `EdfFile`.

The keys and their TOML types for the parser (`KEYS`), other tools' names for the hint about an unknown key
(`SYNONYMS`), the order of keys in an EDF that the form writes (`draft`), and the JSON Schema for editors,
forms and documentation (`schema_text`) are derived from it.
"""

import json
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field, JsonValue, RootModel

from ..model import Frozen

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
        "Without one there is no container.",
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
#: From the name of another tool to the key.
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
