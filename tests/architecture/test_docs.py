"""The documentation: every link leads somewhere, the README stays short, tables are what the result files say."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("app", "benchmarks", "clients", "deploy", "docs", "examples", "kernels", "privacy", "tests", "workers")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")) if "licenses" not in page.parts),
    *sorted((ROOT / "examples").glob("*.ipynb")),
]

# Pages that only name files of this repository, not of a machine or of an image.
OURS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "privacy/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)}|warpdesk_server)/[\w./-]+)`")
_CODE = re.compile(r"^```.*?^```|``[^`]+``|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    counts: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = counts.get(anchor, -1) + 1
        counts[anchor] = count
        if count:
            counts[f"{anchor}-{count}"] = 0
    return set(counts)


def broken_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of it."""
    broken = []
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `name`, two\n## One name, two\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](none.md) [c](other.md#one-name-two) [d](other.md#one-name-two-1) [e](other.md#no-heading)\n"
        "[f](#here) `[g](none.md)` [h](https://example.org/none) ![i](none.png)\n# Here\n"
    )
    assert broken_links(page) == ["none.md", "other.md#no-heading", "none.png"]


@pytest.mark.parametrize("page", OURS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert [path for path in _PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_every_page_of_docs_is_reached_from_an_index() -> None:
    docs = ROOT / "docs"
    indexes = [docs / "README.md", docs / "decisions" / "README.md"]
    reached = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in indexes
        for link in _LINK.findall(_CODE.sub("", index.read_text()))
    }
    assert [page for page in PAGES if docs in page.parents and page not in {*reached, *indexes}] == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 900


def test_the_tables_of_the_benchmarks_are_what_the_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "write_tables.py"))
    page = script["PAGE"].read_text()
    assert script["written"](page) == page
    assert sorted(re.findall(r"<!-- table: (\w+) -->", page)) == sorted(script["TABLES"])


def test_the_reference_page_of_settings_has_each_in_one_row_and_nothing_else() -> None:
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.workers.settings import WorkerSettings

    fields = {name.upper() for name in (*Settings.model_fields, *WorkerSettings.model_fields)}
    rows = re.findall(r"^\|([^|]*)\|", (ROOT / "docs" / "reference" / "settings.md").read_text(), re.MULTILINE)
    names = re.findall(r"`WARPDESK_(\w+)`", "".join(rows))
    assert sorted(name for name in names if not name.endswith("_URL_FILE") and name != "API_KEY_FILE") == sorted(
        {*fields, "KERNEL_CACHE"}  # read by `kernels.gpu.cubins`, which has no settings
    )


def test_the_reference_page_of_routes_has_each_field_of_a_workers_report() -> None:
    from warpdesk_server.workers.queue.reports import WorkerReport

    rows = re.findall(r"^\|([^|]*)\|", (ROOT / "docs" / "reference" / "http.md").read_text(), re.MULTILINE)
    assert set(WorkerReport.model_fields) <= set(re.findall(r"`(\w+)`", "".join(rows)))
