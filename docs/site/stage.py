"""Copy the pages of the documentation into one folder, as Sphinx reads them: `python docs/site/stage.py FOLDER`.

Starts at docs/, README.md and the other pages of the root, and follows their links: pages and pictures are copied,
other files are texts at the top of the site, folders stand for their README.md or a list of files. A link to a missing
file is an error.
Pages of docs/ keep their path; all others are below project/. Index pages get a table of contents of the pages that
they list. Only files whose content changed are written, so that Sphinx reads only these again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PICTURES = (".png", ".svg", ".jpg")
EXTRA = "_extra"  # folder of texts that are copied to the top of the site
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
CODE_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
PICTURE = re.compile(r'(src=")([^"]+)(")')


@dataclass
class Stage:
    """Pages found so far, by their path in the repository."""

    folder: Path
    pages: dict[str, str] = field(default_factory=dict)  # text, with the links of the site
    pictures: set[str] = field(default_factory=set)
    code: set[str] = field(default_factory=set)  # other files and folders that a page links to
    missing: list[str] = field(default_factory=list)

    def add(self, source: str) -> None:
        """Add a page and everything that it links to."""
        if source in self.pages:
            return
        text = (ROOT / source).read_text(encoding="utf-8")
        self.pages[source] = ""  # links can be circular
        self.pages[source] = self._converted(source, text)

    def _converted(self, source: str, text: str) -> str:
        pieces, end = [], 0
        for fence in FENCE.finditer(text):
            pieces += [self._linked(source, text[end : fence.start()]), captioned(fence.group())]
            end = fence.end()
        converted = "".join([*pieces, self._linked(source, text[end:])])
        if source.startswith("docs/") and Path(source).name == "index.md":
            converted += contents(source, text)
        elif not source.startswith("docs/") and source not in ROOT_PAGES:
            converted = "---\norphan: true\n---\n" + converted
        return converted

    def _linked(self, source: str, text: str) -> str:
        text = CODE_LINK.sub(lambda found: self._code_link(source, found), text)
        for pattern in (LINK, PICTURE):
            text = pattern.sub(lambda found: found[1] + self._target(source, found[2]) + found[3], text)
        return text

    def _code_link(self, source: str, link: re.Match[str]) -> str:
        """Return a link to the text of a file or to the list of a folder; other links are returned unchanged."""
        target = resolved(source, link[2])
        if re.match(r"\w+:", link[2]) or target.endswith((".md", *PICTURES)) or not (ROOT / target).exists():
            return link[0]
        self.code.add(target)
        address = os.path.relpath(f"{EXTRA}/{target}.txt", f"{EXTRA}/{os.path.dirname(place(source))}")
        words = re.sub(r"`([^`]*)`", r"<code>\1</code>", link[1])
        return f'<a class="reference external" href="{address}">{words}</a>'

    def _target(self, source: str, link: str) -> str:
        """Return a link of a page for the site, and add the page that it leads to."""
        if re.match(r"\w+:", link):
            return link
        target = resolved(source, link)
        if not (ROOT / target).is_file():
            self.missing.append(f"{source}: {link}")
            return link
        if target.endswith(PICTURES):
            self.pictures.add(target)
        else:
            self.add(target)
        return os.path.relpath(place(target), os.path.dirname(place(source)) or ".")

    def write(self) -> None:
        """Write all pages and pictures, and remove files that are no longer part of the site."""
        wanted: dict[Path, bytes] = {self.folder / place(page): text.encode() for page, text in self.pages.items()}
        wanted |= {self.folder / place(picture): (ROOT / picture).read_bytes() for picture in self.pictures}
        for one in self.code:
            names = "\n".join(sorted(path.name for path in (ROOT / one).glob("[!_]*")))
            wanted[self.folder / EXTRA / f"{one}.txt"] = names.encode() or (ROOT / one).read_bytes()
        wanted |= {self.folder / path: text.encode() for path, text in generated()}
        for path, content in wanted.items():
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for path in [path for path in self.folder.rglob("*") if path.is_file() and path not in wanted]:
            path.unlink()


def place(source: str) -> str:
    """Return the path of a file of the repository in the site."""
    return source.removeprefix("docs/") if source.startswith("docs/") else f"project/{source}"


def captioned(fence: str) -> str:
    """Return a block of code with the name of its file above it, if it has one."""
    return re.sub(r"^```(\w+) file=(\S+)\n", r"```{code-block} \1\n:caption: \2\n\n", fence)


def resolved(source: str, link: str) -> str:
    """Return the path in the repository that a link of a page leads to; a folder stands for its page."""
    target = os.path.normpath(os.path.join(os.path.dirname(source), link))
    pages = (f"{target}/{name}" for name in ("index.md", "README.md"))
    return next((page for page in pages if (ROOT / page).exists()), target)


def contents(source: str, text: str) -> str:
    """Return the table of contents of an index page: the pages that it lists, in their order."""
    links = [found[2] for found in LINK.finditer(FENCE.sub("", text)) if not re.match(r"\w+:", found[2])]
    targets = [os.path.normpath(os.path.join(os.path.dirname(source), link)) for link in links if link.endswith(".md")]
    if source == "docs/index.md":
        targets = [one for one in targets if one.endswith("index.md") or one in ROOT_PAGES]
    else:
        targets = [one for one in targets if os.path.dirname(one) == os.path.dirname(source)]
    entries = [os.path.relpath(place(one), os.path.dirname(place(source)) or ".") for one in dict.fromkeys(targets)]
    entries = [f"Project <{entry}>" if entry.endswith("README.md") else entry for entry in entries]
    entries += ["messages.md", "api/index.md"] if source == "docs/reference/index.md" else []
    return "\n```{toctree}\n:hidden:\n:titlesonly:\n\n" + "\n".join(entries) + "\n```\n"


def generated() -> Iterator[tuple[str, str]]:
    """Write the pages that exist in the site alone: the API reference and the list of all error messages."""
    sys.path[:0] = [str(ROOT), str(DOCS), str(DOCS / "site")]
    import api_pages
    import error_messages

    yield from api_pages.pages()
    yield "reference/messages.md", error_messages.page()


def stage(folder: Path) -> list[str]:
    """Write the site's sources into a folder.

    Returns:
        Links that lead nowhere, with their pages.
    """
    found = Stage(folder)
    for page in (*ROOT_PAGES, *sorted(str(PurePosixPath(path.relative_to(ROOT))) for path in DOCS.rglob("*.md"))):
        found.add(page)
    found.write()
    return found.missing


if __name__ == "__main__":
    if missing := stage(Path(sys.argv[1]).resolve()):
        sys.exit("links to missing files:\n  " + "\n  ".join(missing))
