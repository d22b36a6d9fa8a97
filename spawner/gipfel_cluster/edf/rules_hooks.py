"""Mistakes about annotations, which no hook complains about."""

import difflib
import re
from collections.abc import Iterable, Iterator

from .keys import KEYS
from .model import Diagnostic
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
#: Names under which a hook is looked for in vain.
_NICKNAMES = {
    **dict.fromkeys(("nccl", "ofi", "aws_ofi", "ofi_nccl", "aws_nccl", "nccl_ofi"), "aws_ofi_nccl"),
    **dict.fromkeys(("mps", "cuda_mps", "nvidia_mps"), "nvidia_cuda_mps"),
    **dict.fromkeys(("libfabric", "slingshot", "network"), "cxi"),
    "sshd": "ssh",
}
#: What the Container Engine's Pyxis reads itself.
_PYXIS = "com.pyxis."
_PYXIS_SETTINGS = ("pytorch_remap_vars", "entrypoint_log")
_VARIANTS = ("cuda12", "cuda13", "cuda-dl", "rocm5", "rocm6", "cuda11")
_SILENT = "it is silently ignored, and without its hook the network is slow"
_LONGEST = 60  # characters of a name for which another is guessed


def _guess(name: str, known: Iterable[str]) -> str:
    name = name.lower().replace("-", "_")
    close = difflib.get_close_matches(name, known, 1) if len(name) <= _LONGEST else []
    return next(iter(close), "")


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
            if right := self._right(name):
                yield self.at(entry, name=name, right=right)

    def _right(self, name: str) -> str:
        small = name.lower()
        if small.startswith(self._wrong):
            return _PREFIX + small.replace("hook.", "hooks.").rpartition("hooks.")[2]
        if name.startswith(_PREFIX):
            return ""
        if small.startswith(_PREFIX):
            return small
        # The hook's name without the word hooks before it.
        hook, _, setting = small.removeprefix("com.").partition(".")
        return f"{_PREFIX}{hook}.{setting}" if setting in HOOKS.get(hook, ()) else ""


class HookName(Rule):
    """A hook, or something of one, that there isn't."""

    code = "hook-name"
    reason = "no hook of the Container Engine reads {name}"
    consequence = "it is silently ignored, unless your site has a hook of its own for it"
    fix = "{fix}"

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            if name.rpartition(".")[2] in KEYS or name.startswith("com.hooks.com."):
                continue
            fix = self._hook_fix(name) if name.startswith(_PREFIX) else self._pyxis_fix(name)
            if fix:
                yield self.at(entry, name=name, fix=fix)

    def _hook_fix(self, name: str) -> str:
        hook, _, setting = name.removeprefix(_PREFIX).partition(".")
        near = hook if hook in HOOKS else _NICKNAMES.get(hook.lower().replace("-", "_"), _guess(hook, HOOKS))
        if not near:
            return f"Its hooks are {', '.join(HOOKS)}."
        settings = HOOKS[near]
        if hook == near and setting in settings:
            return ""
        right = setting if setting in settings else _guess(setting, settings) or settings[0]
        return f"Did you mean {_PREFIX}{near}.{right}?"

    def _pyxis_fix(self, name: str) -> str:
        setting = name.removeprefix(_PYXIS)
        if not name.startswith(_PYXIS) or setting in _PYXIS_SETTINGS:
            return ""
        near = _guess(setting, _PYXIS_SETTINGS)
        return f"Did you mean {_PYXIS}{near}?" if near else f"There are {' and '.join(_PYXIS_SETTINGS)}."


class HookValue(Rule):
    """A switch that is neither on nor off."""

    code = "hook-value"
    reason = "a hook takes {value!r} for false"
    consequence = _SILENT
    fix = 'Write "true" or "false".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in subject.document.annotations.items():
            value = subject.edf.annotations.get(name, entry.text)
            is_switch = name.startswith(_PREFIX) and name.endswith(".enabled")
            if (is_switch or name.startswith(_PYXIS)) and value not in {"true", "false"}:
                yield self.at(entry, value=value)


class HookSetting(Rule):
    """A setting that its hook doesn't take."""

    code = "hook-setting"
    reason = "{name} can't be {value!r}"
    consequence = "the hook fails, or does what it does without it"
    fix = "Write {right}."
    _settings = (
        ("com.hooks.netstack.source", re.compile("host|artifact"), '"host" or "artifact"'),
        ("com.hooks.ssh.port", re.compile("[1-9][0-9]{0,4}"), "the number of a port, such as 15263"),
    )

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        for name, pattern, right in self._settings:
            entry, value = subject.document.annotations.get(name), subject.annotation(name)
            if entry and not (pattern.fullmatch(value) and (not value.isdigit() or int(value) < 1 << 16)):
                yield self.at(entry, name=name, value=value, right=right)


class VariantWithoutHook(Rule):
    """A variant of a hook that is off."""

    code = "variant-without-hook"
    reason = 'com.hooks.aws_ofi_nccl.enabled isn\'t "true"'
    consequence = "the variant does nothing, and NCCL uses TCP"
    fix = 'Set com.hooks.aws_ofi_nccl.enabled = "true", or take the variant out.'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.annotations.get("com.hooks.aws_ofi_nccl.variant")
        if entry and not subject.hook_is_meant("aws_ofi_nccl"):
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
    """``NCCL_NET`` for a plugin that nothing in the EDF brings."""

    code = "forced-network"
    reason = "NCCL_NET asks for {value!r}, and neither the hook aws_ofi_nccl nor a mount brings it"
    consequence = "if the image has no such plugin, NCCL ends with 'network not found'"
    fix = 'Add com.hooks.aws_ofi_nccl.enabled = "true", which sets NCCL_NET itself, and take NCCL_NET out.'
    _plugin = re.compile(r"/libnccl-net[^/]*\.so[.0-9]*$")

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        entry = subject.document.env.get("NCCL_NET")
        value = subject.edf.env.get("NCCL_NET", "").strip("\"'")
        asked = value.lower() in {"aws libfabric", "ofi"}
        if entry and asked and not subject.hook_is_meant("aws_ofi_nccl") and not self._is_brought(subject):
            yield self.at(entry, value=value)

    def _is_brought(self, subject: Subject) -> bool:
        """Return whether a plugin is named or mounted, or the image is one that has its own network stack."""
        env = subject.edf.env
        return bool(
            env.get("NCCL_NET_PLUGIN")
            or "aws-ofi" in env.get("LD_LIBRARY_PATH", "")
            or subject.annotation("com.hooks.cxi.enabled") == "false"
            or any(self._plugin.search(mount.destination) for _, mount in subject.mounts)
            or any(self._plugin.search(mount.source) for _, mount in subject.mounts)
        )


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
    """An ssh server that accepts no key."""

    code = "ssh-without-key"
    reason = "the hook ssh has no authorize_ssh_key that is the absolute path of a public key's file"
    consequence = "no login is possible"
    fix = 'Add com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub".'

    def look(self, subject: Subject) -> Iterator[Diagnostic]:  # noqa: D102
        name = "com.hooks.ssh.authorize_ssh_key"
        is_refused = f"annotations.{name}" in subject.failed
        if subject.hook("ssh") and not subject.annotation(name).startswith("/") and not is_refused:
            yield self.at(subject.document.annotations["com.hooks.ssh.enabled"])


HOOK_RULES: tuple[Rule, ...] = (
    HookPrefix(),
    HookName(),
    HookValue(),
    HookSetting(),
    VariantWithoutHook(),
    UnknownVariant(),
    ForcedNetwork(),
    ReadOnlyHook(),
    SshWithoutKey(),
)
