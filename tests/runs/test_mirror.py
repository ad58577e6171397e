"""Copies of run folders at a URL."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pytest

from simfl.errors import ConfigError, RunError
from simfl.runs import lease
from simfl.runs.mirror import mirrored, opened
from simfl.runs.storage import Storage, is_url


def test_urls_are_distinguished_from_folders() -> None:
    assert is_url("s3://bucket/a")
    assert is_url("memory://a")
    assert not is_url("/shared/a")
    assert not is_url(Path("runs/a:b"))


def write_files(folder: Path, **content: str) -> None:
    for name, text in content.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def files_at(url: str) -> dict[str, str]:
    system, root = fsspec.core.url_to_fs(url)
    return {path[len(root) :].lstrip("/"): system.cat_file(path).decode() for path in system.find(root)}


@pytest.mark.parametrize("url", ["file://{}/copy", "memory://a/copy{}"])
def test_another_machine_reads_what_was_pushed(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    with mirrored(url, tmp_path / "one") as first:
        write_files(first.folder, log="a", checkpoints__000001__state="s", checkpoints__000001__digest="d")
        first.push()
        (first.folder / "log").write_text("ab")
        (first.folder / "checkpoints/000001/state").unlink()
        first.push()
    with mirrored(url, tmp_path / "other") as second:
        here = {str(p.relative_to(second.folder)): p.read_text() for p in second.folder.rglob("*") if p.is_file()}
    assert here == files_at(url) == {"log": "ab", "checkpoints/000001/digest": "d"}


def test_opening_replaces_the_local_folder_by_the_copy(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/copy"
    with mirrored(url, tmp_path / "here") as mirror:
        write_files(mirror.folder, log="old")
        mirror.push_and_wait()
        write_files(mirror.folder, log="newer, never pushed", more="x")
    with mirrored(url, tmp_path / "here") as mirror:
        assert [(path.name, path.read_text()) for path in mirror.folder.iterdir()] == [("log", "old")]


def test_a_checkpoint_is_copied_after_the_files_that_it_needs_and_its_hashes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirrored(f"memory://order{tmp_path}", tmp_path) as mirror:
        write_files(
            mirror.folder, checkpoints__000002__digests_json="d", checkpoints__000002__state="s", client_states__a="m",
            tables__rounds="t", log="l",
        )  # fmt: skip
        (mirror.folder / "checkpoints/000002/digests_json").rename(mirror.folder / "checkpoints/000002/digests.json")
        system, order = mirror.storage.system, []
        put = system.put_file
        monkeypatch.setattr(type(system), "put_file", lambda self, a, b, **more: (order.append(b), put(a, b, **more)))
        mirror.push()
    assert [name.partition(f"order{tmp_path}/")[2] for name in order] == [
        "client_states/a", "tables/rounds", "log", "checkpoints/000002/state", "checkpoints/000002/digests.json",
    ]  # fmt: skip


def test_unchanged_files_are_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrored(f"memory://again{tmp_path}", tmp_path) as mirror:
        write_files(mirror.folder, client_states__a="m", log="l")
        mirror.push_and_wait()
        monkeypatch.setattr(type(mirror.storage.system), "put_file", refuse)
        mirror.push_and_wait()
        (mirror.folder / "log").write_text("longer")
        with pytest.raises(RunError, match="no connection"):
            mirror.push_and_wait()


def refuse(*_: Any, **more: Any) -> None:
    raise OSError("no connection")


def test_temporary_files_and_locks_are_not_copied(tmp_path: Path) -> None:
    with mirrored(f"memory://temp{tmp_path}", tmp_path) as mirror:
        write_files(mirror.folder, log="l")
        (mirror.folder / ".tmp-x").write_text("half")
        (mirror.folder / ".lock").write_text("1")
        mirror.push()
    assert files_at(f"memory://temp{tmp_path}") == {"log": "l"}


def test_symbolic_links_are_not_copied(tmp_path: Path) -> None:
    """W&B makes relative ones in the run folder; others could lead to any file of the machine."""
    (tmp_path / "secret").write_text("s")
    url = f"memory://links{tmp_path}"
    with mirrored(url, tmp_path / "one") as mirror:
        write_files(mirror.folder, wandb__run__debug="d")
        (mirror.folder / "wandb" / "debug").symlink_to("run/debug")
        (mirror.folder / "wandb" / "latest-run").symlink_to("run")
        (mirror.folder / "outside").symlink_to(tmp_path / "secret")
        mirror.push_and_wait()
    assert files_at(url) == {"wandb/run/debug": "d"}


def test_an_unknown_scheme_raises_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"^nowhere://a: Protocol not known: nowhere"),
        mirrored("nowhere://a", tmp_path),
    ):
        pass


def test_two_processes_of_a_machine_cannot_open_the_same_copy(tmp_path: Path) -> None:
    url = f"memory://two{tmp_path}"
    with mirrored(url, tmp_path) as first:
        write_files(first.folder, log="l")
        with pytest.raises(RunError, match="is using this run"), mirrored(url, tmp_path):
            pass
        assert (first.folder / "log").exists()


def test_an_upload_has_the_files_of_its_push_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, going, seen, put = f"memory://later{tmp_path}", Event(), Event(), Storage.put

    def slow(self: Storage, sources: Any) -> None:
        seen.set()
        assert going.wait(10)
        put(self, sources)

    monkeypatch.setattr(Storage, "put", slow)
    with mirrored(url, tmp_path) as mirror:
        write_files(mirror.folder, state="first", log="a")
        mirror.push()  # returns before anything is uploaded
        assert seen.wait(10)
        (mirror.folder / "state").unlink()
        write_files(mirror.folder, log="b", second="s")
        mirror.push()
        write_files(mirror.folder, second="t")
        mirror.push()  # takes the place of the one that waits
        assert files_at(url).keys() == {".lease"}
        going.set()
        mirror.wait()
        assert {**files_at(url), ".lease": ""} == {"log": "b", "second": "t", ".lease": ""}
        assert not list(mirror.staged.iterdir())


def test_an_upload_that_fails_in_the_background_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrored(f"memory://failing{tmp_path}", tmp_path) as mirror:
        write_files(mirror.folder, log="a")
        monkeypatch.setattr(type(mirror.storage.system), "put_file", refuse)
        mirror.push()
        with pytest.raises(RunError, match=r"memory://failing.*: no connection"):
            mirror.wait()


def test_a_second_writer_is_refused_as_soon_as_the_first_renews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEWAL", 0.05)
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.02)
    url, heard = f"memory://second{tmp_path}", list[str]()
    with mirrored(url, tmp_path / "one") as first:
        with (
            pytest.raises(RunError, match=rf"process {os.getpid()} on .* is writing this run; stop it first"),
            mirrored(url, tmp_path / "two", on_wait=heard.append),
        ):
            pass
        write_files(first.folder, log="a")
        first.push_and_wait()
    assert "waiting up to 40 s" in heard[0]
    assert files_at(url) == {"log": "a"}


def test_a_silent_writer_loses_the_url_and_uploads_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"POLL_SECONDS": 0.02, "EXPIRY": 0.1, "SETTLE_SECONDS": 0.01}.items():
        monkeypatch.setattr(lease, name, seconds)
    url = f"memory://silent{tmp_path}"
    with mirrored(url, tmp_path / "frozen") as frozen, mirrored(url, tmp_path / "next") as following:
        write_files(frozen.folder, log="old")
        with pytest.raises(RunError, match="has taken over; this process writes nothing more"):
            frozen.push_and_wait()
        write_files(following.folder, log="new")
        following.push_and_wait()
        assert files_at(url)["log"] == "new"


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    url, process = f"file://{tmp_path}/copy", subprocess.Popen(["true"])
    process.wait()
    storage = Storage.open(url)
    owner = {"host": "h", "process": process.pid, "boot": lease._boot(), "token": "t"}
    assert storage.create(".lease", json.dumps(owner).encode())
    assert not storage.create(".lease", b"second")
    with mirrored(url, tmp_path, on_wait=pytest.fail):
        pass
    assert files_at(url) == {}


def test_a_missing_bucket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(Storage.open("memory://x").system), "protocol", ("s3",))
    with (
        pytest.raises(ConfigError, match="memory://absent/run: there is no bucket"),
        mirrored("memory://absent/run", tmp_path),
    ):
        pass
    assert not (tmp_path / "mirrored").exists()


def test_reading_a_url_downloads_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, fetched, get = f"file://{tmp_path}/copy/small", list[str](), Storage.get
    monkeypatch.setattr(Storage, "get", lambda self, folder, names: (fetched.extend(names), get(self, folder, names)))
    write_files(tmp_path / "copy" / "small", log="one", table="t", gone="g")
    write_files(tmp_path / "copy" / "small", checkpoints__weights="w")
    folder = opened(url, tmp_path / "cache", ["checkpoints"])
    assert (folder.name, sorted(fetched)) == ("small", ["gone", "log", "table"])
    (tmp_path / "copy" / "small" / "gone").unlink()
    write_files(tmp_path / "copy" / "small", log="two!")
    fetched.clear()
    assert opened(url, tmp_path / "cache", ["checkpoints"]) == folder
    assert fetched == ["log"]
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"log": "two!", "table": "t"}


def test_a_name_that_leads_out_of_the_folder_is_refused() -> None:
    class Hostile:
        def invalidate_cache(self) -> None: ...

        def exists(self, path: str) -> bool:
            return True

        def find(self, path: str, detail: bool) -> dict[str, dict[str, int]]:
            return {f"{path}/a/../../b": {"size": 1}}

    system: Any = Hostile()
    with pytest.raises(RunError, match=r"holds 'a/../../b', which is no name of a file in a folder"):
        Storage("s3://b/run", system, "b/run").versions()
