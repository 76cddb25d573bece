"""The guides tell the truth: every Python block runs, every option and link exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
#: Pages whose Python needs an engine or a model that a test run does not have; their own tests run the same lines.
NEEDS_AN_ENGINE = {"vllm.md", "sglang.md", "llama_cpp.md", "transformers.md", "README.md"}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def blocks():
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            yield pytest.param(page, match[1], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize(("page", "source"), list(blocks()))
def test_python_compiles(page, source):
    compile(source, f"{page.name}", "exec")


def runnable():
    return [case for case in blocks() if case.values[0].name not in NEEDS_AN_ENGINE]


@pytest.mark.model
@pytest.mark.parametrize(("page", "source"), runnable())
def test_python_runs(page, source, smollm2, capsys):
    exec(compile(source, page.name, "exec"), {"__name__": "snippet"})


def test_some_blocks_run():
    assert len(runnable()) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if target.startswith(("http://", "https://")):
            continue
        found = page if not path else (page.parent / path).resolve()
        assert found.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name} links to {target}; {found.name} has no such heading"


def test_every_page_is_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.relative_to(ROOT / "docs").as_posix() in site, page


def test_b74_every_verifier_is_in_the_table_that_says_whether_it_is_lossless():
    """B74: the promise in the guide is the one in the code, for every rule that is there."""
    from specrs import verification

    page = (ROOT / "docs" / "lossless.md").read_text(encoding="utf-8")
    exact, relaxed = page.split("## Relaxed", 1)
    rules = [rule for rule in vars(verification).values() if isinstance(rule, type) and hasattr(rule, "lossless")]
    assert len(rules) == 13, rules
    for rule in rules:
        part = exact if rule.lossless else relaxed
        assert f"| `{rule.__name__}" in part, f"{rule.__name__} (lossless={rule.lossless}) is not in its table"
