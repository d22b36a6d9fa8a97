"""Lint rules about values, the image, and variables that let others choose what is installed or run."""

import re
from collections.abc import Iterator

from ..environment import PATH_VARIABLES, PROTECTED_VARIABLES
from ..installs import variable_problem
from .document import Entry, Source
from .expand import unbraced_variables
from .model import KEYS, Dialect
from .mounts import placeholder, reference_problem
from .rule import LintContext, Mistake, Rule, rule

_KEYS = frozenset(KEYS)
#: Tables whose values may be any text, not only paths or names.
_FREE_TEXT_TABLES = frozenset(("env", "annotations"))
_MAX_NAMES = 10  # reported names of one value
#: The literal user name of NVIDIA's registry.
_NGC_USER = re.compile(r"(?:[a-z]+://)?\$oauthtoken@")
#: Zero-width spaces, joiners, direction marks and the no-break space.
INVISIBLE = re.compile("[\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs", ".sqfs")
_SCHEME = re.compile(r"[a-z]+://")
#: Schemes allowed before an image name. Sources: Pyxis, args.c; raster, which reads Sarus' EDFs, passes the
#: name to podman.
_SCHEMES: dict[Dialect, frozenset[str]] = {
    "ce": frozenset(),
    "pyxis": frozenset({"docker://", "dockerd://"}),
    "sarus": frozenset({"docker://"}),
}


@rule(
    "unbraced-variable",
    dialects=("ce", "pyxis"),
    reason="${name} has no braces",
    consequence="it is not expanded",
    fix="Write ${{{name}}}.",
)
def unbraced_variable(context: LintContext) -> Iterator[Mistake]:
    """Find ``$NAME``, which shells and Sarus expand and other engines don't."""
    for entry in context.entries if unbraced_variables(context.all_text) else ():
        if "$" in entry.text:
            names = unbraced_variables(entry.text)
            if entry.key == "image" and _NGC_USER.match(entry.text):
                names = tuple(name for name in names if name != "oauthtoken")
            yield from ((entry, {"name": name}) for name in names[:_MAX_NAMES])


@rule(
    "placeholder",
    reason="{text!r} is a placeholder",
    consequence="the value is used literally",
    fix="Replace it with your own value.",
)
def unfilled_placeholder(context: LintContext) -> Iterator[Mistake]:
    """Find a placeholder that was never filled in."""
    if not placeholder(context.all_text, is_path=True):
        return
    for entry in context.entries:
        is_path = entry.path[0] not in _FREE_TEXT_TABLES or entry.text.startswith("/")
        if text := placeholder(entry.text, is_path=is_path):
            yield entry, {"text": text}


@rule(
    "invisible-character",
    reason="it contains the invisible character {character}",
    consequence="no file and no image has this name",
    fix="Type the value again.",
)
def invisible_character(context: LintContext) -> Iterator[Mistake]:
    """Find an invisible character, which often comes with copied text."""
    for entry in () if context.all_text.isascii() else context.entries:
        if entry.text.isascii() or entry.path[0] in _FREE_TEXT_TABLES:
            continue
        if match := INVISIBLE.search(entry.text):
            yield entry, {"character": f"U+{ord(match[0]):04X}"}


@rule(
    "key-in-table",
    reason="below [{table}], {key} is {kind} and not a key of the EDF",
    consequence="the EDF is used without this key",
    fix="Move it above the first line in brackets.",
)
def key_in_table(context: LintContext) -> Iterator[Mistake]:
    """Find a key of the EDF below a table header, where it belongs to that table."""
    for name in context.document.env.keys() & _KEYS:
        yield context.document.env[name], {"table": "env", "kind": "a variable", "key": name}
    for name, entry in context.document.annotations.items():
        first, last = name.partition(".")[0], name.rpartition(".")[2]
        key = first if first in _KEYS and first != "annotations" else last
        if key in _KEYS:
            table = ".".join(map(str, entry.path[:-1]))
            yield entry, {"table": table, "kind": "an annotation", "key": key}


_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$"
    r"|(?:^|_)(?:APIKEY|SECRET_ACCESS_KEY)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}"
    r"|xox[abp]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[\w-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY"
)


@rule(
    "secret",
    reported_with_errors=True,
    reason="{name} looks like a secret",
    consequence="everyone who can read the file, or a log that shows the environment, can use it",
    fix='Write {name} = "${{{name}}}" and set it where you submit, or use a file of mode 600.',
)
def secret(context: LintContext) -> Iterator[Mistake]:
    """Find a password or token in the file, which everyone with read permission can use."""
    for name, entry in context.document.env.items():
        is_secret_name = _SECRET_NAME.search(name) and entry.text and "${" not in entry.text
        if (is_secret_name and not entry.text.startswith("/")) or _SECRET_VALUE.search(entry.text):
            yield entry, {"name": name}


@rule(
    "hidden-gpus",
    reason="{name} is {value!r}",
    consequence="the container gets neither the GPUs nor the driver's libraries",
    fix='Remove it, or write "all".',
)
def hidden_gpus(context: LintContext) -> Iterator[Mistake]:
    """Find GPUs that the EDF itself hides."""
    entry = context.document.env.get("NVIDIA_VISIBLE_DEVICES")
    if entry is not None and entry.text in {"", "void", "none"}:
        yield entry, {"name": "NVIDIA_VISIBLE_DEVICES", "value": entry.text}


_JOB_FAMILIES = tuple(name[:-1] for name in PROTECTED_VARIABLES if name.endswith("*"))
_JOB_NAMES = frozenset(PROTECTED_VARIABLES)


@rule(
    "bound-variable",
    reason="the job sets {name} itself",
    consequence="in a job of Gipfel the hub's or the scheduler's value is used, and this one has no effect",
    fix="Remove it, or set it in the set-up steps beside the EDF.",
)
def job_variable(context: LintContext) -> Iterator[Mistake]:
    """Find a variable that the hub or the scheduler sets for the job."""
    for name, entry in context.document.env.items():
        if name in _JOB_NAMES or name.startswith(_JOB_FAMILIES):
            yield entry, {"name": name}


@rule(
    "host-search-path",
    dialects=("ce", "pyxis"),
    severity="note",
    reason="the image is in a registry, so its {name} can't be read here",
    consequence="the engines pyxis, podman and apptainer use this host's value instead",
    fix="For them, write the image's {name} in full, or import the image into a .sqsh file.",
)
def host_search_path(context: LintContext) -> Iterator[Mistake]:
    """Find a search path that extends the host's value, since the image's can't be read."""
    if not context.edf.image or context.edf.image.startswith("/"):
        return
    for name, entry in context.document.env.items():
        is_search_path = name in PATH_VARIABLES or name.startswith("LD_")
        if is_search_path and re.search(rf"(?<!\$)\${{{re.escape(name)}[}}:]", entry.text):
            yield entry, {"name": name}


VALUE_RULES: tuple[Rule, ...] = (
    unbraced_variable,
    unfilled_placeholder,
    invisible_character,
    key_in_table,
    secret,
    hidden_gpus,
    job_variable,
    host_search_path,
)


@rule(
    "no-image",
    dialects=("ce", "pyxis"),
    severity="note",
    reason="no image is set",
    consequence="no container is started unless --container-image names one",
    fix='Add image = "…" to run in a container.',
)
def no_image(context: LintContext) -> Iterator[Mistake]:
    """Find an EDF that starts no container unless its caller names an image."""
    entry = context.document.scalars.get("image")
    in_table = "image" in context.document.env or "image" in context.document.annotations
    if context.is_complete and not in_table and (entry is None or not entry.text):
        yield entry or Entry("", (), context.documents[-1].source or Source("", "")), {}


@rule(
    "image-path",
    reason="{image!r} begins with neither '/' nor './'",
    consequence="it is read as the name of an image in a registry",
    fix="Write {suggestion} for a file.",
)
def image_without_path(context: LintContext) -> Iterator[Mistake]:
    """Find the name of an image file that lacks the leading ``/`` or ``./`` of a path."""
    entry = context.document.scalars.get("image")
    if entry and (suggestion := _as_path(entry.text)) and not _has_other_diagnostic(entry):
        yield entry, {"image": entry.text, "suggestion": suggestion}


@rule(
    "image-name",
    reason="no registry has an image {image!r}, because {problem}",
    consequence="it can't be pulled",
    fix="Write {suggestion}.",
)
def image_name(context: LintContext) -> Iterator[Mistake]:
    """Find an image name that is not valid in any registry."""
    entry, image = context.document.scalars.get("image"), context.edf.image
    if entry is None or not image or image.startswith("/") or "${" in image:
        return
    if _as_path(entry.text) or _has_other_diagnostic(entry):
        return
    scheme = _SCHEME.match(image)
    if scheme and scheme[0] in _SCHEMES[context.dialect]:
        image = image[scheme.end() :]
    if problem := reference_problem(image):
        is_known = scheme is not None and scheme[0] in _SCHEMES["pyxis"] | {"podman://"}
        suggestion = image[scheme.end() :] if scheme and is_known else "[USER@][REGISTRY#]IMAGE[:TAG]"
        yield entry, {"image": image, "problem": problem, "suggestion": suggestion}


def _as_path(image: str) -> str:
    """Return the path to write for an image file that is not written as a path, else an empty string."""
    if image.startswith("~/"):
        return "${HOME}" + image[1:]
    if image.startswith("file://"):
        return "/" + image.removeprefix("file://").lstrip("/")
    is_file = image.endswith(SQUASHFS_SUFFIXES) and not image.startswith(("/", "./", "../", "$"))
    return f"./{image}" if is_file else ""


def _has_other_diagnostic(entry: Entry) -> bool:
    """Return whether another rule reports the problem of the name."""
    unbraced = unbraced_variables(entry.text.removeprefix("$oauthtoken@"))
    return bool(unbraced or INVISIBLE.search(entry.text) or placeholder(entry.text, is_path=True))


@rule(
    "image-is-host",
    severity="error",
    reason="the image '/' is this machine itself, with every file system that is mounted on it",
    consequence="no container can be made of it",
    fix="Remove image to run without a container, or give the directory of an unpacked image.",
)
def image_is_host(context: LintContext) -> Iterator[Mistake]:
    """Find the machine's root directory given as the image."""
    entry = context.document.scalars.get("image")
    if entry and context.edf.image.startswith("/") and not context.edf.image.strip("/."):
        yield entry, {}


_MUSL = re.compile(r"(?:^|[/#:_.-])(?:alpine|musl)(?=$|[0-9:@_.-])")


@rule(
    "musl",
    reason="{image!r} is an image with musl instead of glibc",
    consequence=(
        "ldconfig fails in the hooks, and no library of the host, CUDA and libfabric among them, loads"
    ),
    fix='Use an image with glibc, such as Debian\'s, or set cxi.enabled = "false" and ENROOT_SLURM_HOOK=0.',
)
def musl_image(context: LintContext) -> Iterator[Mistake]:
    """Find an image whose C library is not glibc."""
    entry = context.document.scalars.get("image")
    is_adapted = (
        context.annotation("com.hooks.cxi.enabled") == "false"
        and context.edf.env.get("ENROOT_SLURM_HOOK") == "0"
    )
    if entry and _MUSL.search(entry.text) and not is_adapted:
        yield entry, {"image": entry.text}


IMAGE_RULES: tuple[Rule, ...] = (no_image, image_without_path, image_name, image_is_host, musl_image)


def _faulty_variable(context: LintContext, code: str) -> Iterator[Mistake]:
    """Yield the first variable that `variable_problem` finds fault with for this reason."""
    for name, entry in context.document.env.items():
        problem = variable_problem(name, entry.text)
        if problem is not None and problem.code == code:
            yield entry, {"name": name}
            return


@rule(
    "extra-index",
    reason="with {name}, packages come from several indexes",
    consequence=(
        "the highest version of all is installed, so a public package can replace yours of the same name"
    ),
    fix="Write PIP_INDEX_URL with one index that has all packages, and remove {name}.",
)
def extra_index(context: LintContext) -> Iterator[Mistake]:
    """Find several package indexes, from which pip installs the highest version of a package."""
    return _faulty_variable(context, "extra-index")


@rule(
    "insecure-index",
    reason="{name} allows an index that is not authenticated",
    consequence="an attacker in the network can choose what is installed",
    fix="Write an index that begins with https://, and remove {name}.",
)
def insecure_index(context: LintContext) -> Iterator[Mistake]:
    """Find a package index without TLS, or whose certificate is not verified."""
    return _faulty_variable(context, "insecure-index")


@rule(
    "unsafe-load",
    reason="with {name}, torch.load runs the code in every checkpoint",
    consequence="a checkpoint from someone else can run programs as you",
    fix="Remove it, and pass weights_only=False where you trust the file.",
)
def unsafe_load(context: LintContext) -> Iterator[Mistake]:
    """Find a variable that makes ``torch.load`` run code in checkpoints."""
    return _faulty_variable(context, "unsafe-load")


INSTALL_RULES: tuple[Rule, ...] = (extra_index, insecure_index, unsafe_load)
