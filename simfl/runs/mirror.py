"""Copies of run folders at a URL (s3://, gs://, file://, …), from which another machine can resume the run.

A run works in a folder of its machine. Each checkpoint is copied after it is complete, its hashes last, so an
interrupted copy is a damaged checkpoint, and a resumed run uses the one before. A thread uploads while the run goes to
its next round, from hard links that keep files which the run deletes or replaces meanwhile. A lease at the URL keeps a
second writer out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread

from simfl import files
from simfl.runs.folder import CHECKPOINTS, CLIENT_STATES, DIGESTS, TABLE_PARTS
from simfl.runs.lease import LEASE, Lease, leased
from simfl.runs.storage import Storage, is_wanted
from simfl.safe_text import mask_secrets, without_password

ORDER = (CLIENT_STATES, TABLE_PARTS, "", CHECKPOINTS)  # uploaded in this order: a checkpoint follows what it needs
LOCAL_FILES = (".lock", LEASE)  # not copied
NOT_READ = (CHECKPOINTS, CLIENT_STATES, "stacks", "tensorboard", "wandb")  # parts of a run needed only to resume it
VERSIONS = "versions.json"  # of the files that `opened` has downloaded

Stamp = tuple[int, int]  # size and time of modification of a file, which change when its content does


@contextmanager
def mirrored(
    url: str,
    cache: Path,
    without: Collection[str] = (),
    exclusive: bool = True,
    on_wait: Callable[[str], object] = lambda text: None,
) -> Iterator[Mirror]:
    """Open the local copy of a URL for the block, with the content of the URL; at its end, uploads are complete.

    Args:
        url: The URL of a run folder.
        cache: The cache folder, which holds the local copy.
        without: Names of folders that are not downloaded.
        exclusive: Whether to hold the lease of the URL.
        on_wait: Called with a message before waiting for the lease of another process to expire.

    Raises:
        ConfigError: The scheme of the URL is unknown, or its bucket does not exist.
        RunError: The storage fails, or another process uses the URL or the local copy.
    """
    storage, base = Storage.open(url), cache / "mirrored" / _local_name(url)
    storage.check()
    files.make_folder(base)
    with ExitStack() as stack:
        stack.enter_context(files.locked(base))
        lease = stack.enter_context(leased(storage, on_wait)) if exclusive else None
        shutil.rmtree(base / "staged", ignore_errors=True)
        mirror = Mirror(storage, base / "run", base / "staged", lease)
        mirror.pull(without)
        try:
            yield mirror
        finally:
            mirror.close()


def opened(url: str, cache: Path, without: Collection[str] = ()) -> Path:
    """Return a folder with the current content of a URL, for reading; only files that have changed are downloaded.

    Args:
        url: The URL of a run or a sweep.
        cache: The cache folder, which holds the copy.
        without: Names of folders that are not downloaded.

    Raises:
        ConfigError: The scheme of the URL is unknown, or its bucket does not exist.
        RunError: The storage fails.
    """
    storage = Storage.open(url)
    storage.check()
    base = cache / "opened" / _local_name(url)
    folder = base / (shown_name(url) or "run")
    files.make_folder(folder)
    base.chmod(0o700)  # a run may hold a secret key
    with files.in_turn(base / ".lock", lambda: None):
        known = _known(base / VERSIONS)
        found = {
            name: version for name, version in storage.versions().items() if is_wanted(name, without) and name != LEASE
        }
        for name in known.keys() - found.keys():
            (folder / name).unlink(missing_ok=True)
        changed = [name for name in found if known.get(name) != found[name] or not (folder / name).exists()]
        storage.get(folder, changed)
        files.write(base / VERSIONS, lambda file: file.write(json.dumps(found).encode()))
    return folder


def is_copy(folder: Path) -> bool:
    """Return whether `opened` has made a folder: what is written to it does not reach the URL."""
    return (folder.parent / VERSIONS).exists()


@dataclass
class Mirror:
    """A local folder and its copy at a URL."""

    storage: Storage
    folder: Path
    staged: Path  # folder of hard links to files that are being uploaded, on the disk of `folder`
    lease: Lease | None = None
    copied: dict[str, Stamp] = field(default_factory=dict)  # file -> its stamp when it was copied
    _changed: Condition = field(default_factory=Condition)
    _pending: _Content | None = None  # the newest content that waits for its upload
    _uploading: bool = False
    _error: BaseException | None = None

    @property
    def url(self) -> str:
        """The URL."""
        return self.storage.url

    def pull(self, without: Collection[str] = ()) -> None:
        """Replace the local folder by the content of the URL, except folders named in `without`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        files.make_folder(self.folder)
        names = self.storage.get_all(self.folder, without, skip=[LEASE])
        self.copied = {name: _stamp(self.folder / name) for name in names}

    def push(self) -> None:
        """Upload the content of the folder in the background: new and changed files, then delete files that are gone.

        Of contents that wait for an upload, only the newest is uploaded.

        Raises:
            RunError: An earlier upload has failed, or another process has taken over the URL.
        """
        with self._changed:
            self._raise_error()
            if self._pending is not None:
                self._pending.discard()
            self._pending = self._content()
            if not self._uploading:
                self._uploading = True
                Thread(target=self._upload_all, name="mirror", daemon=True).start()

    def push_and_wait(self) -> None:
        """Upload the content of the folder, and return when it is at the URL. RunError if that fails."""
        self.push()
        self.wait()

    def wait(self) -> None:
        """Wait until everything pushed so far is at the URL. RunError if an upload failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._uploading)
            self._raise_error()

    def close(self) -> None:
        """Finish the uploads; an upload that fails was reported by `wait`, or the run has failed for another reason."""
        with self._changed:
            self._changed.wait_for(lambda: not self._uploading)
        shutil.rmtree(self.staged, ignore_errors=True)

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _upload_all(self) -> None:
        """Upload pushed contents until none waits."""
        while True:
            with self._changed:
                content, self._pending = self._pending, None
                if content is None:
                    self._uploading = False
                    self._changed.notify_all()
                    return
            try:
                self._upload(content)
            except BaseException as error:  # the next call of the main thread raises it
                self._error = error
            content.discard()

    def _upload(self, content: _Content) -> None:
        if self.lease is not None:
            self.lease.check()
        changed = [name for name in content.stamps if self.copied.get(name) != content.stamps[name]]
        for order in sorted({_order(name) for name in changed}):
            batch = [name for name in changed if _order(name) == order]
            self.storage.put({name: content.files[name] for name in batch})
            self.copied.update({name: content.stamps[name] for name in batch})
        gone = self.copied.keys() - content.stamps.keys()
        for order in sorted({_order(name) for name in gone}, reverse=True):
            self.storage.remove([name for name in gone if _order(name) == order])
        for name in gone:
            del self.copied[name]

    def _content(self) -> _Content:
        """Return the content of the folder, with hard links to the files that may have to be uploaded."""
        folder = self.staged / uuid.uuid4().hex
        files.make_folder(folder)
        stamps, links = dict[str, Stamp](), dict[str, Path]()
        for path in self.folder.rglob("*"):
            name = str(path.relative_to(self.folder))
            try:
                if not _is_copied(path):
                    continue
                stamps[name] = _stamp(path)
                if self.copied.get(name) != stamps[name]:
                    links[name] = files.link(path, folder / str(len(links)))
            except FileNotFoundError:  # a tracker has deleted it in between
                stamps.pop(name, None)
        return _Content(folder, stamps, links)


@dataclass(frozen=True)
class _Content:
    """The files of a folder at one time."""

    folder: Path  # of the links
    stamps: Mapping[str, Stamp]  # of all files, by name
    files: Mapping[str, Path]  # links to the files that were not copied, by name

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def shown_name(url: str) -> str:
    """Return the last part of a URL, without secrets."""
    return mask_secrets(url).rstrip("/").rpartition("/")[2].rpartition("@")[2]


def _local_name(url: str) -> str:
    """Return the name of the local copy of a URL."""
    return f"{shown_name(url)}-{hashlib.sha256(without_password(url).rstrip('/').encode()).hexdigest()[:12]}"


def _known(path: Path) -> Mapping[str, str]:
    """Return the versions of the files that were downloaded before."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):  # a download that was interrupted is repeated
        return {}


def _is_copied(path: Path) -> bool:
    """Return whether a file is copied; symbolic links, as trackers make to their newest files, are not."""
    temporary = any(part.startswith(files.TEMP) for part in path.parts)
    return path.is_file() and not path.is_symlink() and path.name not in LOCAL_FILES and not temporary


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple[int, bool]:
    """Return the key by which files are sorted for copying; files of one key are copied at once."""
    top = name.partition("/")[0] if "/" in name else ""
    return ORDER.index(top) if top in ORDER else ORDER.index(""), name.endswith(f"/{DIGESTS}")
