"""Text of others on the screen and on the disk: no passwords, no control characters, no formulas, no commands."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import IO, Any, cast

import pytest
from fakes import experiment
from rich.console import Console
from rich.text import Text

from simfl import config, simulation
from simfl.cli import main
from simfl.errors import ConfigError, DamagedFile, RunError
from simfl.reports.formats import csv, latex, markdown
from simfl.reports.page import Section, page
from simfl.reports.results import RunResult
from simfl.reports.table import compare
from simfl.runs.storage import Storage
from simfl.runtime.ray.cluster import resolve_address
from simfl.safe_text import LossyStream, SafeStream, mask_secrets, printable, without_password
from simfl.session.options import RunOptions
from simfl.tracking import watch
from simfl.tracking.console import SafeConsole
from simfl.tracking.watch import RunView

SECRET = "PaSsW0rd"
HOSTILE = "\x1b]0;title\x07\x1b[8mhidden\u202e\x9b2J"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("memory://user:PW@host/x", "memory://***@host/x"),
        ("s3://key:sec/ret@bucket/a", "s3://***@bucket/a"),
        ("ray://u:p@w@host:1", "ray://***@host:1"),
        ("failed: 'https://TOKEN@h/x': no", "failed: 'https://***@h/x': no"),
        ("https://h/x?a=1&X-Amz-Signature=abc&b=2", "https://h/x?a=1&X-Amz-Signature=***&b=2"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("http://h:80/a@b", "http://h:80/a@b"),
        ("write to a@b.c", "write to a@b.c"),
    ],
)
def test_users_passwords_and_tokens_in_urls_are_masked(given: str, shown: str) -> None:
    assert mask_secrets(given) == shown
    assert mask_secrets(shown) == shown


def test_user_name_without_the_password_identifies_a_url() -> None:
    assert without_password("sftp://a:x@h/r") == without_password("sftp://a:y@h/r") == "sftp://a@h/r"
    assert without_password("http://h:80/a@b") == "http://h:80/a@b"


def test_control_characters_and_marks_that_reorder_text_become_visible() -> None:
    assert printable(f"a\tb\n{HOSTILE}") == r"a" + "\tb\n" + r"\x1b]0;title\x07\x1b[8mhidden\u202e\x9b2J"


def test_printed_text_is_printable_and_keeps_the_start_of_progress_bars() -> None:
    stream = io.StringIO()
    print(f"\rx\x1b[31m{HOSTILE} s3://u:{SECRET}@b\x1b[0m", file=SafeStream(stream))
    assert stream.getvalue() == "\rx" + r"\x1b]0;title\x07hidden\u202e\x9b2J s3://***@b" + "\n"


class Gone(io.StringIO):
    """A terminal that was closed."""

    number = errno.EIO

    def write(self, text: str) -> int:
        raise OSError(self.number, "gone")

    def flush(self) -> None:
        raise OSError(self.number, "gone")


def test_output_to_a_closed_terminal_or_pipe_is_dropped_and_other_errors_are_not() -> None:
    stream = Gone()
    print("x", file=SafeStream(stream), flush=True)
    stream.number = errno.ENOSPC
    with pytest.raises(OSError, match="gone"):
        print("x", file=SafeStream(stream))


def test_console_shows_foreign_text_without_obeying_it() -> None:
    out = io.StringIO()
    SafeConsole(file=out, force_terminal=True, width=200).print(Text(f"{HOSTILE} s3://u:{SECRET}@b", style="bold"))
    assert out.getvalue() == "\x1b[1m" + printable(HOSTILE.replace("\x07", "")) + " s3://***@b\x1b[0m\n"


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_password_of_the_output_url_is_nowhere_on_screen_or_disk(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "e.yaml"
    file.write_text(config.dump(experiment("fedavg", rounds=1)))
    code = main(["run", str(file), "--out", f"{scheme}://user:{SECRET}@host/x", "--backend", "inline"])
    assert code == (0 if scheme == "memory" else 2)
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert "***@host/x" in shown.out + shown.err
    for path in tmp_path.rglob("*"):
        assert SECRET not in str(path)
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_storage_errors_hold_no_password() -> None:
    class Broken:
        def cat_file(self, path: str) -> bytes:
            raise OSError(f"cannot read s3://u:{SECRET}@b{path}")

    system: Any = Broken()
    with pytest.raises(RunError, match=r"\*\*\*@b") as failed:
        Storage(f"s3://u:{SECRET}@b", system, "").read("x")
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("address", [f"ray://user:{SECRET}@h:10001", f"user:{SECRET}@h:6379"])
@pytest.mark.parametrize("variable", [True, False])
def test_address_with_a_password_is_refused(address: str, variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address if variable else "")
    with pytest.raises(ConfigError, match=r"\*\*\*@h:.* RAY_AUTH_TOKEN") as refused:
        resolve_address(None if variable else address)
    assert SECRET not in str(refused.value)


def test_setting_with_a_password_is_refused_before_it_is_stored() -> None:
    given = {**config.to_mapping(experiment("fedavg")), "data": {"name": "hf_disk", "path": f"s3://u:{SECRET}@b"}}
    with pytest.raises(ConfigError, match=r"data\.path: s3://\*\*\*@b holds a user or a password"):
        config.parse(given)


def test_submitted_output_url_with_a_password_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(config.dump(experiment("fedavg")))
    arguments = ["submit", str(file), "--to", "slurm", "--out", f"s3://u:{SECRET}@b/x", "--dry-run"]
    assert main([*arguments, "--working-dir", str(tmp_path)]) == 2
    shown = capfd.readouterr()
    assert "--env" in shown.err
    assert SECRET not in shown.out + shown.err


class Result(RunResult):
    """A run without scores."""

    @property
    def scores(self) -> dict[str, float]:
        return {}

    @property
    def metric(self) -> str:
        return "anls"


def table_of(value: object) -> Any:
    return compare([Result(f"r{i}", {"setting": v}, Path("r"), "failed", "", {}) for i, v in enumerate([value, "b"])])


def test_cells_are_no_formulas_commands_or_html() -> None:
    assert csv(table_of("=cmd|' /C calc'!A0")).splitlines()[1].startswith("'=cmd")
    assert csv(table_of(-1)).splitlines()[1].startswith("-1,")
    text = latex(table_of(r"\input{/etc/passwd}$x^2$~"))
    assert r"\textbackslash{}input\{/etc/passwd\}\$x\textasciicircum{}2\$\textasciitilde{}" in text
    assert latex(table_of("[64]")).count("\n{[}64]") == 1
    assert "\n\\input" not in latex(table_of("a\n\\input{x}"))
    shown = markdown(table_of("a|<img src=x onerror=alert(1)>\n| b [x](javascript:alert(1))"))
    assert r"| a\|&lt;img src=x onerror=alert(1)> \| b [x]\(javascript:alert(1)) |" in shown
    assert "\x1b" not in markdown(table_of(HOSTILE)) + latex(table_of(HOSTILE)) + csv(table_of(HOSTILE))


def test_report_forbids_scripts_and_downloads() -> None:
    assert "default-src 'none'" in page("<script>", "", [Section("a", "b")])
    assert "<script>" not in page("<script>", "", [Section("a", "b")])


START = {"event": "started", "time": 1.0, "rounds": 2, "resumed_at": None, "clients": 3, "workers": 1, "name": "n"}
ROUND = {
    "event": "round", "time": 2.0, "step": 1, "phase": 0, "loss": 1.0, "sampled": 1, "download_bytes": 1,
    "upload_bytes": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": "round", "time": 1},
        {**ROUND, "loss": "x"},
        {**ROUND, "timings": [1]},
        {**ROUND, "time": "now"},
        {**START, "rounds": "many"},
        {"event": "evaluated", "time": 1, "value": {}, "metric": 1, "model": 2, "split": 3, "step": 4},
        [1],
    ],
    ids=str,
)
def test_watch_refuses_lines_that_no_run_writes(line: Any, tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="damaged"):
        show(START, line, folder=tmp_path)


def show(*lines: Any, folder: Path) -> str:
    """Return what `watch` shows of a log in a terminal."""
    view, out = RunView(), io.StringIO()
    for line in lines:
        view.update(line)
    SafeConsole(file=out, force_terminal=True).print(watch._render(view, folder))
    return out.getvalue()


def test_watch_shows_names_and_messages_without_obeying_them(tmp_path: Path) -> None:
    score = {"event": "evaluated", "time": 1.0, "value": 0.5, "metric": HOSTILE, "model": "global", "split": HOSTILE}
    message = {"event": HOSTILE, "time": 1.0, "text": HOSTILE}
    shown = show({**START, "name": HOSTILE}, ROUND, {**score, "step": 1}, message, folder=tmp_path)
    assert "hidden" in shown
    assert not any(sign in shown for sign in ("\x1b]", "\x1b[8m", "\u202e", "\x9b"))


def test_failed_command_shows_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", f"/nowhere/{HOSTILE}"]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_streams_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr
    assert main(["list", "no such name"]) == 2
    assert (sys.stdout, sys.stderr) == before
    assert isinstance(Console(file=cast(IO[str], SafeStream(io.StringIO()))).file, LossyStream)


def test_messages_of_a_run_hold_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "remarks", lambda *_: [f"see s3://u:{SECRET}@b"])
    simulation.run(experiment("fedavg", rounds=1), RunOptions(tmp_path / "r", backend="inline"))
    assert SECRET not in (tmp_path / "r" / "log.jsonl").read_text()


@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_token_of_ray_is_readable_by_its_user_alone(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simfl.runtime.ray.access import TOKEN_FILE, private_token

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    token = tmp_path / TOKEN_FILE
    token.parent.mkdir()
    token.touch()
    token.chmod(mode)
    before = os.umask(0o022)
    try:
        with private_token():
            (tmp_path / "new").touch()
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (token, tmp_path / "new", tmp_path / "later")] == [
        0o600,
        0o600,
        0o644,
    ]
