"""Lint rules about annotations, since hooks silently ignore wrong annotations."""

import difflib
import re
from collections.abc import Iterable, Iterator

from ..model import GipfelError
from .gate import ALLOW, ANNOTATIONS, MODE, PREFIX, gates_of
from .model import KEYS
from .rule import LintContext, Mistake, Rule, rule

_PREFIX = "com.hooks."
#: The hooks of the Container Engine (CE) and the settings of each. Source: CE documentation, container hooks.
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
#: Annotations that the CE's Slurm plugin, a variant of Pyxis, reads itself.
_PYXIS = "com.pyxis."
_PYXIS_SETTINGS = ("pytorch_remap_vars", "entrypoint_log")
_VARIANTS = ("cuda12", "cuda13", "cuda-dl", "rocm5", "rocm6", "cuda11")
_IGNORED = "it is silently ignored, and its hook does not run"
_MAX_GUESSED = 60  # characters; a longer name gets no suggestion


def _guess(name: str, known: Iterable[str]) -> str:
    name = name.lower().replace("-", "_")
    close = difflib.get_close_matches(name, known, 1) if len(name) <= _MAX_GUESSED else []
    return next(iter(close), "")


_WRONG_PREFIXES = (
    "hooks.",
    "com.hooks.com.hooks.",
    "hooks.com.hooks.",
    "com.hook.",
    "hook.",
    "annotations.com.hooks.",
)


@rule(
    "hook-prefix",
    reason="no hook reads {name}",
    consequence=_IGNORED,
    fix="Write {suggestion}.",
)
def hook_prefix(context: LintContext) -> Iterator[Mistake]:
    """Find an annotation with a prefix that no hook reads."""
    for name, entry in context.document.annotations.items():
        if suggestion := _right_name(name):
            yield entry, {"name": name, "suggestion": suggestion}


def _right_name(name: str) -> str:
    lower = name.lower()
    if lower.startswith(_WRONG_PREFIXES):
        return _PREFIX + lower.replace("hook.", "hooks.").rpartition("hooks.")[2]
    if name.startswith(_PREFIX):
        return ""
    if lower.startswith(_PREFIX):
        return lower
    # A hook's name without "hooks." before it.
    hook, _, setting = lower.removeprefix("com.").partition(".")
    return f"{_PREFIX}{hook}.{setting}" if setting in HOOKS.get(hook, ()) else ""


@rule(
    "hook-name",
    reason="no hook of the Container Engine reads {name}",
    consequence="it is silently ignored, unless your site has a hook for it",
    fix="{fix}",
)
def hook_name(context: LintContext) -> Iterator[Mistake]:
    """Find an unknown hook, or an unknown setting of a hook."""
    for name, entry in context.document.annotations.items():
        if name.rpartition(".")[2] in KEYS or name.startswith("com.hooks.com."):
            continue
        fix = _hook_fix(name) if name.startswith(_PREFIX) else _pyxis_fix(name)
        if fix:
            yield entry, {"name": name, "fix": fix}


def _hook_fix(name: str) -> str:
    hook, _, setting = name.removeprefix(_PREFIX).partition(".")
    near = hook if hook in HOOKS else _HOOK_ALIASES.get(hook.lower().replace("-", "_"), _guess(hook, HOOKS))
    if not near:
        return f"The Container Engine's hooks are {', '.join(HOOKS)}."
    settings = HOOKS[near]
    if hook == near and setting in settings:
        return ""
    right = setting if setting in settings else _guess(setting, settings) or settings[0]
    return f"Did you mean {_PREFIX}{near}.{right}?"


def _pyxis_fix(name: str) -> str:
    setting = name.removeprefix(_PYXIS)
    if not name.startswith(_PYXIS) or setting in _PYXIS_SETTINGS:
        return ""
    near = _guess(setting, _PYXIS_SETTINGS)
    return f"Did you mean {_PYXIS}{near}?" if near else f"Its settings are {' and '.join(_PYXIS_SETTINGS)}."


@rule(
    "hook-value",
    reason="a hook treats {value!r} as false",
    consequence=_IGNORED,
    fix='Write "true" or "false".',
)
def hook_value(context: LintContext) -> Iterator[Mistake]:
    """Find a switch that is neither ``true`` nor ``false``."""
    for name, entry in context.document.annotations.items():
        value = context.edf.annotations.get(name, entry.text)
        is_switch = name.startswith(_PREFIX) and name.endswith(".enabled")
        if (is_switch or name.startswith(_PYXIS)) and value not in {"true", "false"}:
            yield entry, {"value": value}


_HOOK_SETTINGS = (
    ("com.hooks.netstack.source", re.compile("host|artifact"), '"host" or "artifact"'),
    ("com.hooks.ssh.port", re.compile("[1-9][0-9]{0,4}"), "a port number, such as 15263"),
)


@rule(
    "hook-setting",
    reason="{name} can't be {value!r}",
    consequence="the hook fails, or uses its default",
    fix="Write {suggestion}.",
)
def hook_setting(context: LintContext) -> Iterator[Mistake]:
    """Find a setting that its hook doesn't accept."""
    for name, pattern, suggestion in _HOOK_SETTINGS:
        entry, value = context.document.annotations.get(name), context.annotation(name)
        if entry and not (pattern.fullmatch(value) and (not value.isdigit() or int(value) < 1 << 16)):
            yield entry, {"name": name, "value": value, "suggestion": suggestion}


@rule(
    "variant-without-hook",
    reason='com.hooks.aws_ofi_nccl.enabled isn\'t "true"',
    consequence="the variant has no effect, and NCCL uses TCP",
    fix='Set com.hooks.aws_ofi_nccl.enabled = "true", or remove the variant.',
)
def variant_without_hook(context: LintContext) -> Iterator[Mistake]:
    """Find a variant of a hook that is not enabled."""
    entry = context.document.annotations.get("com.hooks.aws_ofi_nccl.variant")
    # A hook that is enabled by a misspelled name is another rule's mistake.
    if entry and not context.hook_is_intended("aws_ofi_nccl"):
        yield entry, {}


@rule(
    "unknown-variant",
    reason="the hook aws_ofi_nccl has no variant {value!r}",
    consequence="the container does not start, or NCCL uses TCP",
    fix="Variants are " + ", ".join(_VARIANTS) + ".",
)
def unknown_variant(context: LintContext) -> Iterator[Mistake]:
    """Find a variant that no release of the hook has."""
    name = "com.hooks.aws_ofi_nccl.variant"
    value = context.annotation(name)
    if value and value not in _VARIANTS:
        yield context.document.annotations[name], {"value": value}


_PLUGIN = re.compile(r"/libnccl-net[^/]*\.so[.0-9]*$")


@rule(
    "forced-network",
    reason="NCCL_NET requires {value!r}, and neither the hook aws_ofi_nccl nor a mount provides it",
    consequence="if the image has no such plugin, NCCL ends with 'network not found'",
    fix='Add com.hooks.aws_ofi_nccl.enabled = "true", which sets NCCL_NET itself, and remove NCCL_NET.',
)
def forced_network(context: LintContext) -> Iterator[Mistake]:
    """Find ``NCCL_NET`` set to a plugin that nothing in the EDF provides."""
    entry = context.document.env.get("NCCL_NET")
    value = context.edf.env.get("NCCL_NET", "").strip("\"'")
    is_ofi = value.lower() in {"aws libfabric", "ofi"}
    if entry and is_ofi and not context.hook_is_intended("aws_ofi_nccl") and not _has_plugin(context):
        yield entry, {"value": value}


def _has_plugin(context: LintContext) -> bool:
    """Return whether a plugin is named or mounted, or the image has its own network stack."""
    env = context.edf.env
    return bool(
        env.get("NCCL_NET_PLUGIN")
        or "aws-ofi" in env.get("LD_LIBRARY_PATH", "")
        or context.annotation("com.hooks.cxi.enabled") == "false"
        or any(_PLUGIN.search(mount.destination) for _, mount in context.mounts)
        or any(_PLUGIN.search(mount.source) for _, mount in context.mounts)
    )


@rule(
    "hook-needs-writable",
    reason="the hook {hook} needs writable = true",
    consequence="the Container Engine does not start the container",
    fix="Set writable = true.",
)
def read_only_hook(context: LintContext) -> Iterator[Mistake]:
    """Find a hook that writes to a read-only root file system."""
    for hook in ("ssh", "nvidia_cuda_mps"):
        if context.hook_is_enabled(hook) and not context.edf.writable:
            yield context.document.annotations[f"com.hooks.{hook}.enabled"], {"hook": hook}


@rule(
    "ssh-without-key",
    reason="the hook ssh has no authorize_ssh_key with the absolute path of a public key file",
    consequence="no login is possible",
    fix='Add com.hooks.ssh.authorize_ssh_key = "/absolute/path/of/key.pub".',
)
def ssh_without_key(context: LintContext) -> Iterator[Mistake]:
    """Find an ssh hook without a key, with which no user could log in."""
    name = "com.hooks.ssh.authorize_ssh_key"
    is_refused = f"annotations.{name}" in context.failed_keys
    if context.hook_is_enabled("ssh") and not context.annotation(name).startswith("/") and not is_refused:
        yield context.document.annotations["com.hooks.ssh.enabled"], {}


@rule(
    "network-gate",
    severity="error",
    reason="{problem}",
    consequence="no container starts with this EDF, since it would have no gate",
    fix="{fix}",
)
def gate_annotation(context: LintContext) -> Iterator[Mistake]:
    """Find annotations of a gate that are not valid."""
    entries = {name: entry for name, entry in context.document.annotations.items() if name.startswith(PREFIX)}
    for name, entry in entries.items():
        if name not in ANNOTATIONS:
            problem, fix = f"{name} is not an annotation of a gate", f"These are {ALLOW} and {MODE}."
            yield entry, {"problem": problem, "fix": fix}
            return
    if entries:
        try:
            gates_of(context.edf.annotations, {})
        except GipfelError as error:
            entry = next(iter(entries.values()))
            yield entry, {"problem": error.problem.rstrip("."), "fix": error.fix}


HOOK_RULES: tuple[Rule, ...] = (
    hook_prefix,
    hook_name,
    hook_value,
    hook_setting,
    variant_without_hook,
    unknown_variant,
    forced_network,
    read_only_hook,
    ssh_without_key,
    gate_annotation,
)
