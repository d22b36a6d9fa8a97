"""The nine keys of an EDF as people write them; the JSON Schema for editors and forms is made of this."""

import json
from typing import Annotated

from pydantic import Field, JsonValue, RootModel

from ..model import Frozen

_Text = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _about(*examples: JsonValue, path: str = "") -> dict[str, JsonValue]:
    """Examples, and for a path what it leads to: ``edf``, ``image``, ``container`` or ``mount``."""
    return {"examples": list(examples)} | ({"x-path": path} if path else {})


class Annotations(RootModel[dict[str, "_Text | Annotations"]]):
    """Annotations, nested or dotted; a value is a string."""


class WrittenEdf(Frozen):
    """An environment definition file (EDF): what a container on a cluster is made of."""

    base_environment: _Text | list[_Text] = Field(
        default="",
        title="Inherits from",
        description="EDFs to inherit, by name or path. Later ones win over earlier ones, this file over all; "
        "mounts and devices are appended. At most ten levels.",
        json_schema_extra=_about("site", ["site", "./team.toml"], path="edf"),
    )
    image: _Text = Field(
        default="",
        title="Image",
        description="[USER@][REGISTRY#]IMAGE[:TAG], or a SquashFS file that begins with '/', './' or '${'. "
        "Without one there is no container.",
        json_schema_extra=_about(
            "nvcr.io#nvidia/pytorch:25.11-py3", "${SCRATCH}/images/pytorch.sqsh", path="image"
        ),
    )
    workdir: _Text = Field(
        default="",
        title="Working folder",
        description="The working folder in the container, an absolute path. Without one it is the image's.",
        json_schema_extra=_about("/workspace", "${SCRATCH}", path="container"),
    )
    entrypoint: bool = Field(
        default=False, title="Entry point", description="Run the entrypoint of the image first."
    )
    writable: bool = Field(
        default=True, title="Writable", description="Whether the root file system can be written to."
    )
    mounts: list[_Text] = Field(
        default=[],
        title="Mounts",
        description="SOURCE:DESTINATION[:FLAG+FLAG]. The flag 'sqsh' stands alone: a SquashFS file.",
        json_schema_extra=_about(
            ["${SCRATCH}:${SCRATCH}", "/store/data:/data:ro", "/store/set.sqsh:/set:sqsh"], path="mount"
        ),
    )
    env: dict[_Variable, _Text] = Field(
        default={},
        title="Variables",
        json_schema_extra={
            "additionalProperties": False,
            **_about({"HF_HOME": "${SCRATCH}/hf", "DEBUG": ""}),
        },
        description="Variables of the container. An empty value unsets one. They do not see each other.",
    )
    annotations: Annotations = Field(
        default=Annotations({}),
        title="Annotations",
        description='For hooks, nested or dotted: com.hooks.cxi.enabled = "true". Values are strings.',
        json_schema_extra=_about({"com.hooks.aws_ofi_nccl.enabled": "true"}),
    )
    devices: list[_Text] = Field(
        default=[],
        title="Devices",
        description="Devices as Podman's --device takes them: nvidia.com/gpu=all. Sarus only.",
        json_schema_extra=_about(["nvidia.com/gpu=all", "/dev/gdrdrv"]),
    )


KEYS = tuple(WrittenEdf.model_fields)


def schema_text() -> str:
    """The JSON Schema of an EDF, as the file ``schema.json`` beside this one holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | WrittenEdf.model_json_schema()
    for name, field in WrittenEdf.model_fields.items():
        # Pydantic leaves the title out where there is a reference.
        schema["properties"][name].setdefault("title", field.title)
    return json.dumps(schema | {"title": "EDF"}, indent=2) + "\n"
