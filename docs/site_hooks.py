"""What mkdocs does not do by itself: pages that lie outside of docs/, executed notebooks, and a complete reference.

The Markdown files of the repository link to each other as they lie there, so that they can be read without the site.
`repository_path` and `site_path` map one onto the other. Notebooks are scripts in jupytext's percent format below
docs/tutorials; each is executed while the site is built, and an error in a cell is an error of the build.
"""

from __future__ import annotations

import base64
import importlib
import os
import pkgutil
import posixpath
import re
import sys
import zlib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT = "project/"
"""Where Markdown files of the repository's root appear in the site."""

LINK = re.compile(r"(?<!\\)(!?\[[^\]]*\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"^(?:```.*?^```|(?: {4}[^\n]*\n)+)|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def repository_path(uri: str) -> str:
    """Return where the source of a page lies in the repository.

    >>> [repository_path(uri) for uri in ("drift.md", "results/drift.md", "project/CHANGELOG.md")]
    ['docs/drift.md', 'results/drift.md', 'CHANGELOG.md']
    """
    if uri.startswith("results/"):
        return uri
    return uri.removeprefix(PROJECT) if uri.startswith(PROJECT) else f"docs/{uri}"


def site_path(path: str) -> str:
    """Return where a file of the repository appears in the site.

    >>> [site_path(path) for path in ("docs/drift.md", "docs/tutorials/x.py", "results/drift.md", "LICENSE")]
    ['drift.md', 'tutorials/x.md', 'results/drift.md', 'project/LICENSE']
    """
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return re.sub(r"^(tutorials/.*)\.py$", r"\1.md", path.removeprefix("docs/"))
    return path if path.startswith("results/") else PROJECT + path


def relinked(markdown: str, uri: str) -> str:
    """Return a page's text with links between files of the repository as links between pages of the site.

    >>> relinked("[results](../results/drift.md#gate), `[x](../y)`\\n    [x](../y)\\n[y](../LICENSE)", "drift.md")
    '[results](results/drift.md#gate), `[x](../y)`\\n    [x](../y)\\n[y](project/LICENSE)'
    """
    here = posixpath.dirname(repository_path(uri))
    there = posixpath.dirname(uri)

    def link(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        target = posixpath.normpath(posixpath.join(here, target))
        if (ROOT / target).is_dir():
            target += "/README.md"
        return match[1] + posixpath.relpath(site_path(target), there or ".") + match[3]

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(link, markdown[end:])])


def executed(source: Path) -> tuple[str, dict[str, bytes]]:
    """Run a notebook and return it as Markdown, and the pictures it drew by file name.

    With NOTEBOOKS=0 in the environment its cells are shown, but not run: for a look at other pages.
    """
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    # One thread: what a notebook prints is then the same on every machine, and threads do not wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "110", "NO_COLOR": "1"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    if os.environ.get("NOTEBOOKS") != "0":
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(ROOT)}}).execute(env=environment)
    text: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            text.append(cell.source)
            continue
        text.append(f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            data: dict[str, Any] = output.get("data", {})
            if "image/png" in data:
                name = f"{source.stem}_{number}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                text.append(f"![{data.get('text/plain', 'figure')}]({name})")
            elif "text/html" in data:
                text.append(f'<div class="output" markdown="0">\n{data["text/html"]}\n</div>')
            else:
                words = output.get("text") or data.get("text/plain", "")
                words = re.sub(r"\x1b\[[0-9;]*m", "", words).rstrip()
                text.append(f"```{{.text .output}}\n{words}\n```")
    return "\n\n".join(text) + "\n", pictures


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/, and run the notebooks."""
    outside = [*ROOT.glob("*.md"), *(path for path in (ROOT / "results").iterdir() if path.is_file())]
    for path in sorted(outside):
        uri = site_path(path.relative_to(ROOT).as_posix())
        if path.name != "README.md" or path.parent != ROOT:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for script in [file for file in files if file.src_uri.startswith("tutorials/") and file.src_uri.endswith(".py")]:
        markdown, pictures = executed(Path(str(script.abs_src_path)))
        files.remove(script)
        files.append(File.generated(config, script.src_uri.removesuffix(".py") + ".md", content=markdown))
        for name, content in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links between files of the repository links between pages."""
    return markdown if page.file.src_uri.startswith("tutorials/") else relinked(markdown, page.file.src_uri)


def public_names() -> list[str]:
    """Return the full name of everything that a public module of the package lists in `__all__`."""
    import protodrift

    found = [module.name for module in pkgutil.iter_modules(protodrift.__path__, "protodrift.")]
    modules = [importlib.import_module(name) for name in found if name != "protodrift.__main__"]
    at_root = [f"protodrift.{home}.{name}" for name, home in protodrift._HOMES.items()]
    return [*at_root, *(f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", ()))]


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a reference that lacks a public name."""
    inventory = (Path(config.site_dir) / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    missing = [name for name in public_names() if name not in documented]
    if missing:
        raise PluginError(f"docs/reference has no entry for: {', '.join(missing)}")
