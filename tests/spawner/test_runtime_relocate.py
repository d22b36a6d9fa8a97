"""Shared libraries that a runtime contains."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gipfel_cluster.runtime.interpreter import (
    interpreter_program,
    is_elf,
    patchelf,
    relocate,
    shared_libraries,
)


def ignore(_: str) -> None:
    pass


def test_libc_its_loader_and_what_is_opened_later_come_along() -> None:
    libraries, loader = shared_libraries([interpreter_program()], copied=[], progress=ignore)
    assert loader.startswith("ld-")
    assert {loader, "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libresolv.so.2"} <= set(libraries)
    assert all(is_elf(path) for path in libraries.values())


def test_a_library_that_is_copied_anyway_is_not_taken_twice() -> None:
    first, _ = shared_libraries([interpreter_program()], copied=[], progress=ignore)
    second, _ = shared_libraries([interpreter_program()], copied=[first["libm.so.6"]], progress=ignore)
    again = second.get("libm.so.6")
    assert "libc.so.6" in second
    assert again is None or again == first["libm.so.6"]


def test_a_search_path_outside_the_runtime_goes_and_one_inside_stays(tmp_path: Path) -> None:
    library = tmp_path / "lib/python/site-packages/pack/extension.so"
    library.parent.mkdir(parents=True)
    origin, _ = shared_libraries([interpreter_program()], copied=[], progress=ignore)
    shutil.copyfile(origin["libm.so.6"], library)
    command = [
        patchelf(),
        "--set-rpath",
        "/home/builder/lib:$ORIGIN/../pack.libs:$ORIGIN/../../../../../x",
        str(library),
    ]
    subprocess.run(command, check=True, timeout=60)
    relocate(
        {"lib/python/site-packages/pack/extension.so": library},
        programs={"bin/python3"},
        prefix="/p",
        loader="ld.so",
    )
    shown = subprocess.run(
        [patchelf(), "--print-rpath", str(library)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "$ORIGIN/../pack.libs"


def test_the_program_looks_beside_itself_for_loader_and_libraries(tmp_path: Path) -> None:
    copy = tmp_path / "bin/python3"
    copy.parent.mkdir()
    shutil.copy(interpreter_program(), copy)
    relocate({"bin/python3": copy}, programs={"bin/python3"}, prefix="/opt/gipfel", loader="ld-x.so")
    shown = [
        subprocess.run(
            [patchelf(), what, str(copy)], capture_output=True, text=True, check=True
        ).stdout.strip()
        for what in ("--print-interpreter", "--print-rpath")
    ]
    assert shown == ["/opt/gipfel/lib/ld-x.so", "$ORIGIN/../lib:/opt/gipfel/lib"]


@pytest.mark.parametrize(("path", "expected"), [(sys.executable, True), (__file__, False)])
def test_is_elf(path: str, expected: bool) -> None:
    assert is_elf(Path(path)) is expected
