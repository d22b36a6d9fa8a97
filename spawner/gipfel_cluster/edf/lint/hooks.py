"""Mistakes about annotations, which no hook complains about."""

import difflib
from collections.abc import Iterator

from ..model import Diagnostic
from .rule import Rule, Subject

_PREFIX = "com.hooks."
#: The hooks of the CE and what can be set of each. Source: CE documentation, container hooks.
HOOKS = {
    "cxi": ("enabled",),
    "aws_ofi_nccl": ("enabled", "variant"),
    "ssh": ("enabled", "authorize_ssh_key", "port", "pidfile_container", "pidfile_host"),
    "nvidia_cuda_mps": ("enabled",),
    "dcgm": ("enabled",),
    "netstack": ("source", "version", "name"),
    "slurm": ("enabled",),
    "parallax_imagestore_create": ("enabled",),
}
_VARIANTS = ("cuda12", "cuda13", "cuda-dl", "rocm5", "rocm6", "cuda11")
_SILENT = "it is ignored without a word, and without its hook the network is slow"


class HookPrefix(Rule):
    """Annotations at a place where no hook looks."""

    code = "hook-prefix"
    reason = "no hook reads {name}"
    consequence = _SILENT
    fix = "Write {right}."
    _wrong = (
        "hooks.",
        "com.hooks.com.hooks.",
        "hooks.com.hooks.",
        "com.hook.",
        "hook.",
        "annotations.com.hooks.",
    )

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            if name.startswith(self._wrong):
                right = _PREFIX + name.replace("hook.", "hooks.").rpartition("hooks.")[2]
                yield self.at(entry, name=name, right=right)


class HookName(Rule):
    """A hook, or something of one, that is nearly spelt right."""

    code = "hook-name"
    reason = "no hook reads {name}"
    consequence = _SILENT
    fix = "Did you mean {right}?"

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            if name.startswith(_PREFIX) and not name.startswith("com.hooks.com."):
                right = self._right(*name.removeprefix(_PREFIX).partition(".")[::2])
                if right != name.removeprefix(_PREFIX):
                    yield self.at(entry, name=name, right=_PREFIX + right)

    def _right(self, hook: str, setting: str) -> str:
        near = [hook] if hook in HOOKS else difflib.get_close_matches(hook.lower(), HOOKS, 1)
        if not near:
            return f"{hook}.{setting}" if setting else hook
        settings = HOOKS[near[0]]
        if setting not in settings:
            setting = (*difflib.get_close_matches(setting.lower(), settings, 1), settings[0])[0]
        return f"{near[0]}.{setting}"


class HookValue(Rule):
    """A switch that is neither on nor off."""

    code = "hook-value"
    reason = "a hook takes {value!r} for false"
    consequence = _SILENT
    fix = 'Write "true" or "false".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            value = subject.edf.annotations.get(name, entry.text)
            if name.startswith(_PREFIX) and name.endswith(".enabled") and value not in {"true", "false"}:
                yield self.at(entry, value=value)


class VariantWithoutHook(Rule):
    """A variant of a hook that is off."""

    code = "variant-without-hook"
    reason = 'com.hooks.aws_ofi_nccl.enabled isn\'t "true"'
    consequence = "the variant does nothing, and NCCL uses TCP"
    fix = 'Add com.hooks.aws_ofi_nccl.enabled = "true".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.annotations.get("com.hooks.aws_ofi_nccl.variant")
        if entry and not subject.hook("aws_ofi_nccl"):
            yield self.at(entry)


class UnknownVariant(Rule):
    """A variant that no release of the hook has."""

    code = "unknown-variant"
    reason = "the hook aws_ofi_nccl has no variant {value!r}"
    consequence = "the container does not start, or NCCL uses TCP"
    fix = "Variants are " + ", ".join(_VARIANTS) + "."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        name = "com.hooks.aws_ofi_nccl.variant"
        value = subject.annotation(name)
        if value and value not in _VARIANTS:
            yield self.at(subject.document.annotations[name], value=value)


class ForcedNetwork(Rule):
    """``NCCL_NET`` for a plugin that nobody brings."""

    code = "forced-network"
    reason = "NCCL_NET asks for {value!r}, which only the hook aws_ofi_nccl brings"
    consequence = "NCCL ends with 'network not found'"
    fix = 'Add com.hooks.aws_ofi_nccl.enabled = "true", which sets NCCL_NET itself, and take NCCL_NET out.'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.env.get("NCCL_NET")
        value = subject.edf.env.get("NCCL_NET", "").strip("\"'")
        if entry and value.lower() in {"aws libfabric", "ofi"} and not subject.hook("aws_ofi_nccl"):
            yield self.at(entry, value=value)


class ReadOnlyHook(Rule):
    """A hook that writes to a root that can't be written to."""

    code = "hook-needs-writable"
    reason = "the hook {hook} needs writable = true"
    consequence = "the Container Engine does not start the container"
    fix = "Set writable = true."

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for hook in ("ssh", "nvidia_cuda_mps"):
            if subject.hook(hook) and not subject.edf.writable:
                yield self.at(subject.document.annotations[f"com.hooks.{hook}.enabled"], hook=hook)


class SshWithoutKey(Rule):
    """An ssh server that lets nobody in."""

    code = "ssh-without-key"
    reason = "the hook ssh has no authorize_ssh_key that is the absolute path of a public key's file"
    consequence = "nobody can log in"
    fix = 'Add com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        key = subject.annotation("com.hooks.ssh.authorize_ssh_key")
        if subject.hook("ssh") and not key.startswith("/"):
            yield self.at(subject.document.annotations["com.hooks.ssh.enabled"])


HOOK_RULES: tuple[Rule, ...] = (
    HookPrefix(),
    HookName(),
    HookValue(),
    VariantWithoutHook(),
    UnknownVariant(),
    ForcedNetwork(),
    ReadOnlyHook(),
    SshWithoutKey(),
)
