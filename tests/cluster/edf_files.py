"""EDFs as the test users write them."""

from pathlib import Path

from unix_users import UnixUser


def write_edf(
    user: UnixUser,
    name: str,
    *,
    image: Path | str = "",
    mounts: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    workdir: str = "",
) -> Path:
    """Write ``~/.edf/<name>.toml`` and return its path."""
    lines = [f'image = "{image}"'] if image else []
    lines += [f'workdir = "{workdir}"'] if workdir else []
    lines += [f"mounts = [{', '.join(repr(mount) for mount in mounts)}]"] if mounts else []
    lines += ["[env]", *(f'{key} = "{value}"' for key, value in (env or {}).items())]
    return user.write(f".edf/{name}.toml", "\n".join(lines) + "\n")
