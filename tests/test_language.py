"""The language of docstrings, comments, messages, docs, deployment files and generated files."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("gpumon", "scripts", "dashboards", "benchmarks", "tests")
SOURCES = sorted(source for folder in CODE for source in (ROOT / folder).rglob("*.py"))
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
    "anew, once more": r"(?i)\b(anew|once more)\b",
    "of late, at last, in vain": r"(?i)\b(of late|at last|in vain)\b",
    "go on": r"(?i)\b(go|goes|going|went) on\b",
    "stand, for a state": r"(?i)\b(stands?(?! (for|in|out)\b|-)|stood)\b",
    "is so, at the end of a clause": r"(?i)\b(is|are) so[.,;:]",
    "known are": r"(?i)\bknown are\b",
    "let go, take up again": r"(?i)\b(lets? go|tak(es?|en|ing) up again)\b",
    "leave aside": r"(?i)\b(leaves?|left|leaving) aside\b",
    "mend": r"(?i)\bmend(s|ed|ing)?\b",
    "well, sick, for health": r"(?i)\b((is|are|be|not) well|sick)\b",
    "looked": r"(?i)\blooked\b(?! up)",
    "a sentence that begins with Of": r"(?:^|[.:;!?]\s+)Of\s",
}
MAX_PER_10_000_WORDS = 2


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


def test_docstrings_comments_and_messages_use_plain_words() -> None:
    """Each phrase of the list is rare in the Python code."""
    texts = {source: list(prose_of(source)) for source in SOURCES}
    words = sum(len(text.split()) for prose in texts.values() for text in prose)
    assert words > 50_000, "the sources were not read"
    frequent = {}
    for name, pattern in AVOIDED.items():
        found = [use for source, prose in texts.items() for use in uses(pattern, source, prose)]
        if 1e4 * len(found) / words >= MAX_PER_10_000_WORDS:
            frequent[name] = found
    assert not frequent


def test_pages_and_deployment_files_use_plain_words() -> None:
    """No phrase of the list is in the docs, in generated files or in files that operators install."""
    texts = {path: page(path) for path in PAGES}
    assert {"README.md", "gpumon.yml", "docker-compose.yml", "alerts.md", "gpumon.service"} <= {
        path.name for path in texts
    }
    found = {
        name: [use for path, text in texts.items() for use in uses(pattern, path, [text])]
        for name, pattern in AVOIDED.items()
    }
    assert not {name: offenders for name, offenders in found.items() if offenders}
