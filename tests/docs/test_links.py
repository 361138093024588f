import re

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.text)}


def test_every_link_leads_to_a_page_and_a_heading_that_exist(page, docs):
    for link in LINK.findall(page.text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = docs.page((page.path.parent / name).resolve()) if name else page
        assert target.path.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def test_every_page_is_reached_from_the_readme(docs):
    seen, left = set(), [docs.page("README.md")]
    while left:
        page = left.pop()
        if page.path not in seen:
            seen.add(page.path)
            names = (link.partition("#")[0] for link in LINK.findall(page.text) if not link.startswith("https://"))
            left += [docs.page((page.path.parent / name).resolve()) for name in names if name.endswith(".md")]
    assert {page.path for page in docs.pages} <= seen


def test_the_changelog_has_this_version(docs):
    from postrow import __version__

    assert f"## [{__version__}]" in docs.page("CHANGELOG.md").text
