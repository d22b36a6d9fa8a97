"""Choices for a service on Kubernetes: image, host, storage, GPUs, and the profile of a cluster."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gipfel_cluster.model import Frozen, OneLine
from gipfel_cluster.scheduler.protocol import Name, TimeLimit
from gipfel_cluster.storage_classes import ClassName

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DnsLabel = Annotated[str, Field(pattern=rf"^(?:{_LABEL})?$")]
_DnsName = Annotated[str, Field(pattern=rf"^(?:{_LABEL}(?:\.{_LABEL})*)?$", max_length=253)]
_LabelValue = Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]
_Quantity = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}(?:[KMGTP]i)?$")]
# Without quotes, semicolons and braces, which have a meaning where nginx reads annotations.
_Url = Annotated[str, Field(pattern=r"^(?:https?://[A-Za-z0-9._~:/?@!&()*+,=%-]{1,500})?$")]
_GitUrl = Annotated[str, Field(pattern=r"^(?:(?:https?|ssh)://[\x21-\x7e]+|[A-Za-z0-9._-]+@[\x21-\x7e]+)?$")]
_RepositoryPath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]{0,200}$")]


class Profile(Frozen):
    """Names that differ between clusters.

    ``storage_classes`` maps Gipfel's classes to those of the cluster; one that is missing is the cluster's
    default. ``shared`` storage can be mounted by several pods.
    """

    storage_classes: dict[ClassName, str] = Field(default={})
    ingress_class: str = ""
    annotations: dict[str, str] = Field(default={})
    scheduler: str = ""
    """``schedulerName`` of its pods, empty for the default; slurm-bridge's starts a Slurm job for each."""


#: The names are those of the clusters' documentation: CSCS's Kubernetes service, and SchedMD's slurm-bridge.
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "plain": Profile(),
        "cscs": Profile(
            storage_classes={"fast": "rbd-nvme", "shared": "cephfs", "keep": "cephfs-retain"},
            ingress_class="nginx",
            annotations={"cert-manager.io/cluster-issuer": "letsencrypt"},
        ),
        "slurm-bridge": Profile(scheduler="slurm-bridge-scheduler"),
    }
)


class Target(Frozen):
    """Options of `render`: everything that the service itself does not determine.

    Parameters
    ----------
    image
        Name of the image in a registry, with its digest; empty for that of the EDF.
    namespace
        A namespace that exists; empty for one of the service's own, named like it.
    host
        Host name of the service's URL; without one it is reachable only within the cluster.
    login
        URL of an oauth2-proxy that the Ingress asks about each request.
    without_login
        Everyone who reaches the host may use the service.
    gateway
        ``NAMESPACE/NAME`` of a Gateway, for an HTTPRoute instead of an Ingress.
    ingress_namespace
        Namespace of the Ingress controller, from which the network policy admits connections.
    storage, storage_class, size
        Gipfel's storage class of ``${storage}``; the cluster's StorageClass, if it is not that of the
        profile; and the size of the volume.
    gpu_product, gpu_part
        GPU product that the node must have; part that gets the GPUs if there are several parts.
    user_id
        User and group ID of the containers.
    account, partition, time
        Options of the Slurm job of each pod, with slurm-bridge.
    drop
        Keys of the blueprint that Kubernetes can't fulfil, to be left out.
    repository, revision, project
        Git repository and revision that Argo CD renders from, and its project; no Application without one.
    """

    profile: Literal["plain", "cscs", "slurm-bridge"] = "plain"
    image: OneLine = Field("", max_length=500)
    namespace: _DnsLabel = ""
    host: _DnsName = ""
    login: _Url = ""
    without_login: bool = False
    gateway: Annotated[str, Field(pattern=rf"^(?:{_LABEL}/{_LABEL})?$")] = ""
    ingress_namespace: _DnsLabel = "ingress-nginx"
    storage: ClassName = "fast"
    storage_class: _DnsName = ""
    size: _Quantity = "10Gi"
    gpu_vendor: Literal["nvidia", "amd"] = "nvidia"
    gpu_product: _LabelValue = ""
    gpu_part: str = ""
    user_id: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1000
    account: Name = ""
    partition: Name = ""
    time: TimeLimit = ""
    drop: tuple[Literal["idle_s"], ...] = ()
    repository: _GitUrl = ""
    path: _RepositoryPath = "services"
    """Directory of the repository with a directory for each service, named like its namespace."""
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,200}$")] = "HEAD"
    server: _Url = "https://kubernetes.default.svc"
    """API server to which Argo CD applies the manifests."""
    project: _DnsLabel = "default"

    @model_validator(mode="after")
    def _has_one_login(self) -> "Target":
        if self.host and not (self.login or self.without_login):
            raise ValueError(
                "a host needs a login: give --login with the URL of an oauth2-proxy, or --without-login if"
                " everyone who reaches the host may use the service"
            )
        if self.login and self.without_login:
            raise ValueError("--login and --without-login exclude each other")
        if self.login and self.gateway:
            raise ValueError(
                "a standard HTTPRoute can't ask for a login: use an Ingress, or --without-login with a login"
                " at the Gateway"
            )
        if self.gateway and not self.host:
            raise ValueError("an HTTPRoute needs --host")
        return self

    @property
    def names(self) -> Profile:
        """Return the names of the profile's cluster."""
        return PROFILES[self.profile]

    @property
    def storage_class_name(self) -> str:
        """Return the StorageClass; empty for the cluster's default."""
        return self.storage_class or self.names.storage_classes.get(self.storage, "")
