"""Copies of run folders at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from simfl.errors import ConfigError, RunError
from simfl.runs.mirror import is_url, mirrored


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
        mirror.push()
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
        system, put, order = mirror._system()[0], [], []
        put = system.put_file
        monkeypatch.setattr(type(system), "put_file", lambda self, a, b: (order.append(b), put(a, b)))
        mirror.push()
    assert [name.partition(f"order{tmp_path}/")[2] for name in order] == [
        "client_states/a", "tables/rounds", "log", "checkpoints/000002/state", "checkpoints/000002/digests.json",
    ]  # fmt: skip


def test_unchanged_files_are_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mirrored(f"memory://again{tmp_path}", tmp_path) as mirror:
        write_files(mirror.folder, client_states__a="m", log="l")
        mirror.push()
        monkeypatch.setattr(type(mirror._system()[0]), "put_file", refuse)
        mirror.push()
        (mirror.folder / "log").write_text("longer")
        with pytest.raises(RunError, match="no connection"):
            mirror.push()


def refuse(*_: Any) -> None:
    raise OSError("no connection")


def test_temporary_files_and_locks_are_not_copied(tmp_path: Path) -> None:
    with mirrored(f"memory://temp{tmp_path}", tmp_path) as mirror:
        write_files(mirror.folder, log="l")
        (mirror.folder / ".tmp-x").write_text("half")
        (mirror.folder / ".lock").write_text("1")
        mirror.push()
    assert files_at(f"memory://temp{tmp_path}") == {"log": "l"}


def test_an_unknown_scheme_raises_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="--out: nowhere://a: Protocol not known: nowhere"),
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
