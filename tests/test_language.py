"""The language of docstrings, comments, messages, docs, deployment files and generated files."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("gpumon", "simulator/gpumon_sim", "scripts", "dashboards", "benchmarks")
SOURCES = sorted(source for folder in CODE for source in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FOLDERS = ("deploy", "alert_rules", "dashboards", "docs", ".ci")
PAGES = sorted(
    path
    for path in (*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")))
    if path.is_file() and path.name != ".git" and path.suffix not in {".py", ".pyc", ".db", ".png"}
)
WORD_LIST = re.compile(r"^\| (?:instead of|[^|]*) \|[^|]*\|$", re.MULTILINE)

# Each of these was frequent in gpumon and is rare in the documentation of Prometheus, Kubernetes, NVML and systemd.
# Readers had to read such sentences twice. The list has the phrases of CONTRIBUTING.md that a pattern can match without
# false alarms. "look", "least", "most", "well" and "known" have correct uses, so reviewers check those.
AVOIDED = {
    "tell, told": r"(?i)\b(tells?|told)\b",
    "say, said": r"(?i)\b(says?|said)\b",
    "nobody, somebody, everybody, whoever": r"(?i)\b((no|some|every)body|whoever)\b",
    "anew, once more": r"(?i)\b(anew|once\s+more)\b",
    "of late, at last, in vain": r"(?i)\b(of\s+late|at\s+last|in\s+vain)\b",
    "go on": r"(?i)\b(go|goes|going|went)\s+on\b",
    "stand, for a state": r"(?i)\b(stands?(?!\s+(for|in|out)\b|-)|stood)\b",
    "is so, at the end of a clause": r"(?i)\b(is|are)\s+so[.,;:]",
    "known are": r"(?i)\bknown\s+are\b",
    "let go, take up again": r"(?i)\b(lets?\s+go|tak(es?|en|ing)\s+up\s+again)\b",
    "leave aside": r"(?i)\b(leaves?|left|leaving)\s+aside\b",
    "mend": r"(?i)\bmend(s|ed|ing)?\b",
    "well, sick, for health": r"(?i)\b((is|are|be|not)\s+well|sick)\b",
    "looked": r"(?i)\blooked\b(?!\s+up)",
    "a sentence that begins with Of": r"""(?m)(?:^|[.:;!?"|\-]\s*)Of\s""",
}
MAX_PER_10_000_WORDS = 2
"""Maximum rate of a phrase in the tests, which use some phrases as data."""


def prose_of(source: Path) -> Iterator[str]:
    """Docstrings, comments and every other string with spaces: help texts, reasons, actions, log messages."""
    text = source.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def uses(pattern: str, path: Path, texts: Iterable[str]) -> Iterator[str]:
    """Yield each use of a phrase with its file and its neighbours."""
    for text in texts:
        for match in re.finditer(pattern, text):
            excerpt = " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())
            yield f"{path.relative_to(ROOT)}: ...{excerpt}..."


def page(path: Path) -> str:
    """Return the text of a file without the word list of CONTRIBUTING.md."""
    text = path.read_text(encoding="utf-8")
    return WORD_LIST.sub("", text) if path.name == "CONTRIBUTING.md" else text


def uses_by_phrase(texts: Mapping[Path, Iterable[str]]) -> dict[str, list[str]]:
    """Return the uses of each phrase of the list that occurs in these texts."""
    found = {
        name: [use for path, prose in texts.items() for use in uses(pattern, path, prose)]
        for name, pattern in AVOIDED.items()
    }
    return {name: each for name, each in found.items() if each}


def test_docstrings_comments_and_messages_use_plain_words() -> None:
    """No phrase of the list is in the Python code, and each is rare in the tests."""
    code, tests = ({source: list(prose_of(source)) for source in sources} for sources in (SOURCES, TESTS))
    words = sum(len(text.split()) for prose in tests.values() for text in prose)
    assert words > 50_000, "the sources were not read"
    assert uses_by_phrase(code) == {}
    most = MAX_PER_10_000_WORDS * words / 1e4
    assert {name: each for name, each in uses_by_phrase(tests).items() if len(each) >= most} == {}


def test_pages_and_deployment_files_use_plain_words() -> None:
    """No phrase of the list is in the docs, in generated files or in files that operators install."""
    texts = {path: page(path) for path in PAGES}
    assert {"README.md", "gpumon.yml", "docker-compose.yml", "alerts.md", "gpumon.service"} <= {
        path.name for path in texts
    }
    assert uses_by_phrase({path: [text] for path, text in texts.items()}) == {}


def test_phrases_are_found_over_lines_and_after_quotes_and_dashes() -> None:
    of = "a sentence that begins with Of"
    for text, name in (
        ("The child goes\n  on.", "go on"),
        ('"description": "Of the GPUs that answer."', of),
        ("- Of agents", of),
        ("| Of agents |", of),
        ("first line\nOf agents", of),
    ):
        assert list(uses_by_phrase({ROOT: [text]})) == [name], text
