"""Lint rules about annotations, since hooks silently ignore wrong annotations."""

import difflib
import re
from collections.abc import Iterable, Iterator

from ..model import GipfelError
from .gate import ALLOW, ANNOTATIONS, MODE, PREFIX, gates_of
from .model import KEYS, Diagnostic
from .rule import LintContext, Rule

_PREFIX = "com.hooks."
#: The hooks of the CE and the settings of each. Source: CE documentation, container hooks.
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
#: Wrong names that users write → the hook that they mean.
_HOOK_ALIASES = {
    **dict.fromkeys(("nccl", "ofi", "aws_ofi", "ofi_nccl", "aws_nccl", "nccl_ofi"), "aws_ofi_nccl"),
    **dict.fromkeys(("mps", "cuda_mps", "nvidia_mps"), "nvidia_cuda_mps"),
    **dict.fromkeys(("libfabric", "slingshot", "network"), "cxi"),
    "sshd": "ssh",
}
#: Annotations that the Container Engine's Pyxis reads itself.
_PYXIS = "com.pyxis."
_PYXIS_SETTINGS = ("pytorch_remap_vars", "entrypoint_log")
_VARIANTS = ("cuda12", "cuda13", "cuda-dl", "rocm5", "rocm6", "cuda11")
_IGNORED = "it is silently ignored, and without its hook the network is slow"
_MAX_GUESSED = 60  # characters; a longer name gets no suggestion


def _guess(name: str, known: Iterable[str]) -> str:
    name = name.lower().replace("-", "_")
    close = difflib.get_close_matches(name, known, 1) if len(name) <= _MAX_GUESSED else []
    return next(iter(close), "")


class HookPrefix(Rule):
    """An annotation with a prefix that no hook reads."""

    code = "hook-prefix"
    reason = "no hook reads {name}"
    consequence = _IGNORED
    fix = "Write {suggestion}."
    _wrong_prefixes = (
        "hooks.",
        "com.hooks.com.hooks.",
        "hooks.com.hooks.",
        "com.hook.",
        "hook.",
        "annotations.com.hooks.",
    )

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in context.document.annotations.items():
            if suggestion := self._suggestion(name):
                yield self.diagnostic(entry, name=name, suggestion=suggestion)

    def _suggestion(self, name: str) -> str:
        lower = name.lower()
        if lower.startswith(self._wrong_prefixes):
            return _PREFIX + lower.replace("hook.", "hooks.").rpartition("hooks.")[2]
        if name.startswith(_PREFIX):
            return ""
        if lower.startswith(_PREFIX):
            return lower
        # A hook's name without "hooks." before it.
        hook, _, setting = lower.removeprefix("com.").partition(".")
        return f"{_PREFIX}{hook}.{setting}" if setting in HOOKS.get(hook, ()) else ""


class HookName(Rule):
    """An unknown hook, or an unknown setting of a hook."""

    code = "hook-name"
    reason = "no hook of the Container Engine reads {name}"
    consequence = "it is silently ignored, unless your site has a hook for it"
    fix = "{fix}"

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in context.document.annotations.items():
            if name.rpartition(".")[2] in KEYS or name.startswith("com.hooks.com."):
                continue
            fix = self._hook_fix(name) if name.startswith(_PREFIX) else self._pyxis_fix(name)
            if fix:
                yield self.diagnostic(entry, name=name, fix=fix)

    def _hook_fix(self, name: str) -> str:
        hook, _, setting = name.removeprefix(_PREFIX).partition(".")
        near = (
            hook if hook in HOOKS else _HOOK_ALIASES.get(hook.lower().replace("-", "_"), _guess(hook, HOOKS))
        )
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
    """A switch that is neither ``true`` nor ``false``."""

    code = "hook-value"
    reason = "a hook takes {value!r} for false"
    consequence = _IGNORED
    fix = 'Write "true" or "false".'

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, entry in context.document.annotations.items():
            value = context.edf.annotations.get(name, entry.text)
            is_switch = name.startswith(_PREFIX) and name.endswith(".enabled")
            if (is_switch or name.startswith(_PYXIS)) and value not in {"true", "false"}:
                yield self.diagnostic(entry, value=value)


class HookSetting(Rule):
    """A setting that its hook doesn't accept."""

    code = "hook-setting"
    reason = "{name} can't be {value!r}"
    consequence = "the hook fails, or uses its default"
    fix = "Write {suggestion}."
    _settings = (
        ("com.hooks.netstack.source", re.compile("host|artifact"), '"host" or "artifact"'),
        ("com.hooks.ssh.port", re.compile("[1-9][0-9]{0,4}"), "a port number, such as 15263"),
    )

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for name, pattern, suggestion in self._settings:
            entry, value = context.document.annotations.get(name), context.annotation(name)
            if entry and not (pattern.fullmatch(value) and (not value.isdigit() or int(value) < 1 << 16)):
                yield self.diagnostic(entry, name=name, value=value, suggestion=suggestion)


class VariantWithoutHook(Rule):
    """A variant of a hook that is not enabled."""

    code = "variant-without-hook"
    reason = 'com.hooks.aws_ofi_nccl.enabled isn\'t "true"'
    consequence = "the variant has no effect, and NCCL uses TCP"
    fix = 'Set com.hooks.aws_ofi_nccl.enabled = "true", or remove the variant.'

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        entry = context.document.annotations.get("com.hooks.aws_ofi_nccl.variant")
        if entry and not context.hook_is_intended("aws_ofi_nccl"):
            yield self.diagnostic(entry)


class UnknownVariant(Rule):
    """A variant that no release of the hook has."""

    code = "unknown-variant"
    reason = "the hook aws_ofi_nccl has no variant {value!r}"
    consequence = "the container does not start, or NCCL uses TCP"
    fix = "Variants are " + ", ".join(_VARIANTS) + "."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        name = "com.hooks.aws_ofi_nccl.variant"
        value = context.annotation(name)
        if value and value not in _VARIANTS:
            yield self.diagnostic(context.document.annotations[name], value=value)


class ForcedNetwork(Rule):
    """``NCCL_NET`` set to a plugin that nothing in the EDF provides."""

    code = "forced-network"
    reason = "NCCL_NET requires {value!r}, and neither the hook aws_ofi_nccl nor a mount provides it"
    consequence = "if the image has no such plugin, NCCL ends with 'network not found'"
    fix = 'Add com.hooks.aws_ofi_nccl.enabled = "true", which sets NCCL_NET itself, and remove NCCL_NET.'
    _plugin = re.compile(r"/libnccl-net[^/]*\.so[.0-9]*$")

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        entry = context.document.env.get("NCCL_NET")
        value = context.edf.env.get("NCCL_NET", "").strip("\"'")
        is_ofi = value.lower() in {"aws libfabric", "ofi"}
        if (
            entry
            and is_ofi
            and not context.hook_is_intended("aws_ofi_nccl")
            and not self._has_plugin(context)
        ):
            yield self.diagnostic(entry, value=value)

    def _has_plugin(self, context: LintContext) -> bool:
        """Return whether a plugin is named or mounted, or the image has its own network stack."""
        env = context.edf.env
        return bool(
            env.get("NCCL_NET_PLUGIN")
            or "aws-ofi" in env.get("LD_LIBRARY_PATH", "")
            or context.annotation("com.hooks.cxi.enabled") == "false"
            or any(self._plugin.search(mount.destination) for _, mount in context.mounts)
            or any(self._plugin.search(mount.source) for _, mount in context.mounts)
        )


class ReadOnlyHook(Rule):
    """A hook that writes to a read-only root file system."""

    code = "hook-needs-writable"
    reason = "the hook {hook} needs writable = true"
    consequence = "the Container Engine does not start the container"
    fix = "Set writable = true."

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        for hook in ("ssh", "nvidia_cuda_mps"):
            if context.hook_is_enabled(hook) and not context.edf.writable:
                yield self.diagnostic(
                    context.document.annotations[f"com.hooks.{hook}.enabled"],
                    hook=hook,
                )


class SshWithoutKey(Rule):
    """An ssh hook without a key, which nobody could log in to."""

    code = "ssh-without-key"
    reason = "the hook ssh has no authorize_ssh_key with the absolute path of a public key file"
    consequence = "no login is possible"
    fix = 'Add com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub".'

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        name = "com.hooks.ssh.authorize_ssh_key"
        is_refused = f"annotations.{name}" in context.failed_keys
        if context.hook_is_enabled("ssh") and not context.annotation(name).startswith("/") and not is_refused:
            yield self.diagnostic(context.document.annotations["com.hooks.ssh.enabled"])


class GateAnnotation(Rule):
    """Annotations of a gate that are not valid."""

    code = "network-gate"
    severity = "error"
    reason = "{problem}"
    consequence = "what runs in this environment does not start, since it would run without its gate"
    fix = "{fix}"

    def check(self, context: LintContext) -> Iterator[Diagnostic]:  # noqa: D102
        entries = {
            name: entry for name, entry in context.document.annotations.items() if name.startswith(PREFIX)
        }
        for name, entry in entries.items():
            if name not in ANNOTATIONS:
                yield self.diagnostic(
                    entry,
                    problem=f"{name} is not an annotation of a gate",
                    fix=f"There are {ALLOW} and {MODE}.",
                )
                return
        if entries:
            try:
                gates_of(context.edf.annotations, {})
            except GipfelError as error:
                entry = next(iter(entries.values()))
                yield self.diagnostic(entry, problem=error.problem.rstrip("."), fix=error.fix)


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
    GateAnnotation(),
)
