import asyncio
import os
import pwd
import sys
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import current_user_name, run_as_prefix
from gipfel_spawner.start.account import Account, JobLog, UserCommands, account_environment, account_of
from gipfel_spawner.start.placement import is_self_contained


def test_a_hub_user_without_a_unix_account_gets_a_home_of_its_own(tmp_path: Path) -> None:
    homes = set()
    for name in ("ada-nobody-knows", "a/../b", "..", ".", "a b", "ü", "A", "a"):
        account = account_of(name, state_folder=tmp_path, needs_unix_user=False)
        home = Path(account.home)
        assert account.user == ""
        assert home.parent == tmp_path / "users"
        assert home.is_dir()
        assert home.stat().st_mode & 0o777 == 0o700
        homes.add(home)
    assert len(homes) == 8


def test_a_cluster_needs_a_unix_user(tmp_path: Path) -> None:
    with pytest.raises(GipfelError, match="no unix user 'ada-nobody-knows'"):
        account_of("ada-nobody-knows", state_folder=tmp_path, needs_unix_user=True)
    for name in ("a\nb", "a\0b", "a\u2028b"):
        with pytest.raises(GipfelError, match="control character"):
            account_of(name, state_folder=tmp_path, needs_unix_user=False)
    account = account_of("nobody", state_folder=tmp_path, needs_unix_user=True)
    assert account.user == "nobody"
    environment = account_environment(account, "nobody", {"X": "1"})
    assert (environment["USER"], environment["SHELL"]) == ("nobody", "/bin/sh")


def test_a_terminal_has_the_shell_of_the_account(tmp_path: Path) -> None:
    own = pwd.getpwuid(os.getuid()).pw_shell
    assert account_environment(Account(home=str(tmp_path)), "ada", {})["SHELL"] == own != "/bin/sh"


def test_acting_as_fills_whole_words() -> None:
    assert run_as_prefix("") == run_as_prefix(current_user_name()) == ()
    assert run_as_prefix("ada; id", "sudo -u {username} --") == ("sudo", "-u", "ada; id", "--")
    with pytest.raises(GipfelError, match="exec_prefix"):
        run_as_prefix("ada", "sudo {home}")
    with pytest.raises(GipfelError, match="exec_prefix"):
        run_as_prefix("ada", "sudo {username.__class__.x}")
    nobody = pwd.getpwnam("nobody")
    numbers = run_as_prefix("nobody", "setpriv --reuid={uid} --regid={gid} --init-groups --")
    assert numbers[1:3] == (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}")
    with pytest.raises(GipfelError, match="no unix user"):
        run_as_prefix("no such user", "setpriv --reuid={uid}")


def errands(home: Path, python: str = sys.executable, limit: float = 20) -> UserCommands:
    account = account_of("ada-nobody-knows", state_folder=home, needs_unix_user=False)
    environment = account_environment(account, "ada", {"PATH": os.environ["PATH"]})
    return UserCommands(account, environment=environment, python=python, limit=limit)


def edf(home: Path, name: str, content: str) -> None:
    folder = home / "users/ada-nobody-knows/.edf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(content)


def test_environments_are_listed_and_checked_by_a_process_of_the_user(tmp_path: Path) -> None:
    async def run() -> None:
        ada = errands(tmp_path)
        edf(tmp_path, "plain", 'workdir = "/tmp"\n')
        edf(tmp_path, "gone", 'image = "/no/such.sqsh"\n')
        edf(tmp_path, "broken", "image = \n")
        assert set(await ada.environments()) >= {"plain", "gone", "broken"}
        await ada.check("plain")
        for name, words in (("gone", "/no/such.sqsh"), ("broken", "broken.toml"), ("absent", "absent")):
            with pytest.raises(GipfelError, match=words) as caught:
                await ada.check(name)
            assert "\n" not in str(caught.value)
            assert "Traceback" not in str(caught.value)

    asyncio.run(run())


def test_an_interpreter_that_fails_or_hangs_is_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(GipfelError, match="can't be checked: exit status 1"):
            await errands(tmp_path, "/bin/false").check("x")
        with pytest.raises(GipfelError, match="can't be run"):
            await errands(tmp_path, "/no/python").check("x")
        slow = tmp_path / "slow"
        slow.write_text("#!/bin/sh\nsleep 60\n")
        slow.chmod(0o755)
        with pytest.raises(GipfelError, match=r"did not end within 0\.3 s"):
            await errands(tmp_path, str(slow), limit=0.3).check("x")

    asyncio.run(run())


def test_the_log_folder_is_the_users_alone(tmp_path: Path) -> None:
    async def run() -> None:
        ada = errands(tmp_path)
        await ada.create_log_directory()
        await ada.create_log_directory()
        folder = tmp_path / "users/ada-nobody-knows/.gipfel/logs"
        assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700] * 2
        log = folder / "x.log"
        log.write_text("\n".join(f"line {number}" for number in range(100)) + "\ngipfel: the reason\nmore\n")
        tail = JobLog(text=await ada.log_tail(str(log)))
        assert tail.text.startswith("line 82")
        assert tail.error_line == "the reason"
        assert await ada.log_tail("/no/log") == ""

    asyncio.run(run())


def test_a_long_log_without_lines_is_not_read(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("wb") as file:
        file.truncate(4 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\ngipfel: the reason\n")

    tail = JobLog(text=asyncio.run(errands(tmp_path).log_tail(str(log))))
    assert tail.error_line == "the reason"
    assert len(tail.text) <= 8000


def test_an_errand_runs_in_the_home_folder_as_the_job_does(tmp_path: Path) -> None:
    async def run() -> None:
        ada = errands(tmp_path)
        home = tmp_path / "users/ada-nobody-knows"
        edf(tmp_path, "near", 'mounts = ["./data:/data"]\n')
        with pytest.raises(GipfelError, match="data"):
            await ada.check("near")
        (home / "data").mkdir()
        await ada.check("near")
        # The job takes the environment, not the folder.
        (home / "near").mkdir()
        await ada.check("near")
        (home / "gone").mkdir()
        with pytest.raises(GipfelError, match="no EDF of this name"):
            await ada.check("gone")

    asyncio.run(run())


def test_an_errand_without_a_home_folder_still_runs(tmp_path: Path) -> None:
    account = Account(home=str(tmp_path / "none"))
    environment = account_environment(account, "ada", {"PATH": os.environ["PATH"]})
    ada = UserCommands(account, environment=environment, python=sys.executable)
    assert asyncio.run(ada.environments()) == ()


def test_which_interpreter_can_serve_inside_an_image(tmp_path: Path) -> None:
    for name, mark in (("built", "runtime.json"), ("conda", "conda-meta/history"), ("venv", "pyvenv.cfg")):
        (tmp_path / name / mark).parent.mkdir(parents=True)
        (tmp_path / name / mark).touch()
    found = [is_self_contained(str(tmp_path / name / "bin/python3")) for name in ("built", "conda", "venv")]
    assert found == [True, True, False]
    assert not is_self_contained("python3")
