import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies

from gipfel_cluster.edf import EdfError, Mount, find_edf, list_edfs, load_edf, resolve
from gipfel_cluster.edf.model import Edf


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "edf").mkdir()
    return tmp_path


def write(folder, name, text):
    path = folder / "edf" / f"{name}.toml"
    path.write_text(text)
    return path


def load(folder, name, **variables):
    environment = {"HOME": str(folder), "EDF_PATH": str(folder / "edf"), **variables}
    return load_edf(name, environment=environment, directory=folder)


def codes(folder, name, **variables):
    with pytest.raises(EdfError) as error:
        load(folder, name, **variables)
    assert "\n" not in str(error.value)
    return [each.code for each in error.value.diagnostics if each.severity == "error"]


def test_every_key(folder):
    path = write(
        folder,
        "all",
        """
image = "${HOME}/x.sqsh"
workdir = "/work/${USER}"
entrypoint = true
writable = false
mounts = ["/data", "./here:/there:ro+private", "x.sqsh:/never", "${IMG:-/i.sqsh}:/img:sqsh"]
devices = ["nvidia.com/gpu=all"]
[env]
A = "a b $ \\" é"
GONE = ""
[annotations]
com.hooks.cxi.enabled = "true"
""".replace(', "x.sqsh:/never"', ""),
    )
    edf = load(folder, "all", USER="me")
    assert edf == Edf(
        name="all",
        path=str(path),
        image=f"{folder}/x.sqsh",
        workdir="/work/me",
        entrypoint=True,
        writable=False,
        mounts=(
            Mount(source="/data", destination="/data"),
            Mount(source=f"{folder}/here", destination="/there", flags=("ro", "private")),
            Mount(source="/i.sqsh", destination="/img", flags=("sqsh",)),
        ),
        env={"A": 'a b $ " é', "GONE": ""},
        annotations={"com.hooks.cxi.enabled": "true"},
        devices=("nvidia.com/gpu=all",),
        sources=(str(path),),
    )


def test_an_empty_file_is_an_edf_without_an_image(folder):
    write(folder, "empty", "")
    assert load(folder, "empty").image == ""


def test_later_bases_win_and_the_file_itself_wins_over_all(folder):
    write(folder, "a", 'image = "/a"\nworkdir = "/a"\nmounts = ["/m", "/a"]\n[env]\nX = "a"\nY = "a"\n')
    write(folder, "b", 'workdir = "/b"\nmounts = ["/b", "/m"]\n[env]\nY = "b"\nZ = "b"\n')
    top = write(folder, "c", 'base_environment = ["a", "b"]\n[env]\nZ = "c"\n')
    edf = load(folder, "c")
    assert (edf.image, edf.workdir, edf.env) == ("/a", "/b", {"X": "a", "Y": "b", "Z": "c"})
    assert [mount.source for mount in edf.mounts] == ["/m", "/a", "/b"]
    assert [os.path.basename(each) for each in edf.sources] == ["a.toml", "b.toml", "c.toml"]
    assert edf.sources[-1] == str(top)


def test_origins_name_the_file_of_each_value(folder):
    base = write(folder, "a", 'image = "/a"\n[env]\nX = "a"\n')
    top = write(folder, "b", 'base_environment = "a"\n[env]\nY = "b"\n')
    origins = resolve("b", environment={"EDF_PATH": str(folder / "edf")}, directory=folder).origins
    assert origins == {"image": str(base), "env.X": str(base), "env.Y": str(top)}


def test_a_cycle_shows_its_chain(folder):
    write(folder, "a", 'base_environment = "b"')
    write(folder, "b", 'base_environment = "a"')
    with pytest.raises(EdfError, match=r"a\.toml -> .*b\.toml -> .*a\.toml"):
        load(folder, "a")
    assert codes(folder, "a") == ["cycle"]


def test_ten_levels_of_bases_and_no_more(folder):
    write(folder, "e0", 'image = "/x"')
    for level in range(1, 12):
        write(folder, f"e{level}", f'base_environment = "e{level - 1}"')
    assert load(folder, "e10").image == "/x"
    assert codes(folder, "e11") == ["levels"]


def test_bases_that_multiply_end(folder):
    for level in range(1, 10):
        write(folder, f"e{level}", f"base_environment = {[f'e{level - 1}'] * 9}")
    write(folder, "e0", "")
    assert "files" in codes(folder, "e9")


def test_env_does_not_see_env(folder):
    write(folder, "a", '[env]\nA = "1"\nB = "${A}"\n')
    assert codes(folder, "a") == ["unknown-variable"]
    assert load(folder, "a", A="host").env["B"] == "host"


def test_an_unknown_variable_is_named_with_its_key_and_line(folder):
    path = write(folder, "a", '[env]\n\nB = "${NOWHERE}"\n')
    with pytest.raises(EdfError) as error:
        load(folder, "a")
    assert str(error.value).startswith(f"{path}:3: env.B: the variable NOWHERE is not defined.")


def test_a_mount_is_split_before_its_variables_are_known(folder):
    write(folder, "a", 'mounts = ["${D}:/y"]')
    assert load(folder, "a", D="/a:b").mounts == (Mount(source="/a:b", destination="/y"),)


@pytest.mark.parametrize(
    ("mount", "code"),
    [
        ("CHANGE_THIS", "mount-path"),
        ("/a:b", "mount-path"),
        ("/a:/b:ro:x", "mount"),
        ("/a:/b:sqsh+ro", "mount-flags"),
        ("/a:/b:ro+", "mount-flags"),
        ("/a:/b:" + "+".join(map(str, range(40))), "mount-flags"),
        ("/a:/" + "b" * 5000, "mount-path"),
        (":/b", "mount-path"),
    ],
)
def test_a_wrong_mount(folder, mount, code):
    write(folder, "a", f'mounts = ["{mount}"]')
    assert code in codes(folder, "a")


def test_a_line_break_is_refused_wherever_it_comes_from(folder):
    write(folder, "a", '[env]\nA = "x\\ny"\n')
    write(folder, "b", '[env]\nA = "${X}"\n')
    assert codes(folder, "a") == ["line-break"]
    assert codes(folder, "b", X="x\ny") == ["line-break"]


def test_the_variables_of_the_image_win_over_those_of_the_host(folder):
    (folder / "image/etc").mkdir(parents=True)
    (folder / "image/etc/environment").write_text('PATH="/image/bin"\nexport ONLY=image\n# no\n')
    write(folder, "a", 'image = "./image"\n[env]\nPATH = "${PATH}:/x"\nB = "${ONLY}"\nC = "${C}"\n')
    edf = load(folder, "a", PATH=os.environ["PATH"], C="host")
    assert edf.env == {"PATH": "/image/bin:/x", "B": "image", "C": "host"}


def test_the_variables_of_a_squashfs_image_are_seen(folder):
    (folder / "image/etc").mkdir(parents=True)
    (folder / "image/etc/environment").write_text("ONLY=image\n")
    try:
        subprocess.run(["mksquashfs", folder / "image", folder / "i.sqsh", "-quiet"], check=True, stdout=-3)
    except FileNotFoundError:
        pytest.skip("mksquashfs is not installed")
    write(folder, "a", 'image = "${HOME}/i.sqsh"\n[env]\nB = "${ONLY}"\n')
    assert load(folder, "a").env == {"B": "image"}


def test_the_search_path_is_used_in_its_order(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "x.toml").write_text("")
    (folder / "two/y.toml").write_text("")
    environment = {"EDF_PATH": f"relative:{folder}/none:{folder}/one:{folder}/two"}

    def find(name):
        return find_edf(name, environment=environment, directory=folder)

    assert find("x") == folder / "one/x.toml"
    assert find("x.toml") == folder / "one/x.toml"
    assert find("y") == folder / "two/y.toml"
    assert find("./two/x.toml") == folder / "two/x.toml"
    assert find(str(folder / "two/x.toml")) == folder / "two/x.toml"
    assert list_edfs(environment=environment) == ("x", "y")
    with pytest.raises(EdfError) as error:
        find("z")
    assert all(f"{folder}/{each}/z.toml" in str(error.value) for each in ("none", "one", "two"))


def test_the_search_path_is_the_home_folder_by_default(folder):
    (folder / ".edf").mkdir()
    (folder / ".edf/x.toml").write_text("")
    assert find_edf("x", environment={"HOME": str(folder)}, directory=folder) == folder / ".edf/x.toml"


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "/nowhere/x.toml", "./x.toml", "~/x.toml"])
def test_what_is_not_there_is_one_line(folder, name):
    assert codes(folder, name) == ["not-found"]


def test_what_can_not_be_read_is_one_line(folder):
    os.mkfifo(folder / "edf/pipe.toml")
    (folder / "edf/folder.toml").mkdir()
    (folder / "edf/broken.toml").symlink_to("nowhere")
    (folder / "edf/latin.toml").write_bytes(b'# \n image = "\xe4"')
    (folder / "edf/large.toml").write_text("#" * (2 << 20))
    for name in ("pipe", "folder", "broken", "latin", "large"):
        assert codes(folder, name) == ["unreadable"]


def test_the_digest_is_that_of_the_content(folder):
    write(folder, "a", 'image = "/x"\n[env]\nA = "1"\nB = "2"\n')
    write(folder, "b", '# other\nimage = "/x"\nenv = { B = "2", A = "1" }\n')
    write(folder, "c", 'image = "/x"\n[env]\nA = "1"\nB = "3"\n')
    assert load(folder, "a").digest == load(folder, "b").digest != load(folder, "c").digest
    assert load(folder, "a").digest.startswith("sha256:")


@given(
    strategies.text(
        alphabet=strategies.characters(exclude_characters="\n\r\0", exclude_categories=["Cs", "Cc"])
    )
)
def test_a_value_comes_through_to_the_byte(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("edf")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("${", "$${")
    (folder / "a.toml").write_text(f'[env]\nA = "{escaped}"\n', encoding="utf-8", newline="")
    edf = load_edf(str(folder / "a.toml"), environment={}, directory=folder)
    assert edf.env["A"] == value


def as_user(number, question):
    """The answer of another user, in a separate process."""
    if os.geteuid() != 0:
        pytest.skip("Only root can become another user.")
    process = os.fork()
    if process == 0:
        try:
            os.setgid(number)
            os.setuid(number)
            os._exit(0 if question() else 1)
        finally:
            os._exit(2)
    return os.waitpid(process, 0)[1] == 0


def test_a_link_into_a_private_folder_hides_no_other_edf(tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        private = Path(folder, "private")
        private.mkdir(mode=0o700)
        (private / "x.toml").write_text("")
        for name in ("a", "b", "c", "d", "e", "f"):
            Path(folder, f"{name}.toml").write_text("")
            Path(folder, f"link-{name}.toml").symlink_to(private / "x.toml")
        assert as_user(65534, lambda: list_edfs(environment={"EDF_PATH": folder}) == tuple("abcdef"))

        def closed():
            try:
                find_edf("x", environment={"EDF_PATH": f"{private}"}, directory=Path("/"))
            except EdfError as error:
                return f"{private} can't be read: Permission denied." in str(error)
            return False

        assert as_user(65534, closed)


def test_without_a_home_folder_one_line_says_so(tmp_path):
    def said():
        os.environ.pop("HOME", None)
        lines = []
        for name in ("x", "~/x"):
            try:
                find_edf(name, environment={}, directory=tmp_path)
            except EdfError as error:
                lines.append(str(error))
        return (
            list_edfs(environment={}) == ()
            and "neither EDF_PATH nor HOME" in lines[0]
            and "no home directory for your user" in lines[1]
        )

    assert as_user(61234, said)
