"""The language of docstrings, comments, docs and generated files: CONTRIBUTING.md has the word list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("alert_rules/*.yml"),
    ROOT / "deploy" / "gpumon.yml",
]
SOURCES = sorted((ROOT / "gpumon").rglob("*.py"))

# Each of these was frequent in gpumon and is rare in the documentation of Prometheus, Kubernetes, NVML and systemd.
# Readers had to read such sentences twice. The rate leaves room for the quotation of a message of a driver.
AVOIDED = {
    "told, tells": r"\b(told|tells?)\b",
    "nobody, somebody": r"\b(nobody|somebody)\b",
    "anew": r"\banew\b",
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


def offences(texts: dict[str, str]) -> dict[str, str]:
    """The phrases that are too frequent, with their rate and the texts that use them most."""
    words = sum(len(text.split()) for text in texts.values())
    found = {}
    for name, pattern in AVOIDED.items():
        counts = {
            source: len(re.findall(pattern, text, re.IGNORECASE if name[0] != "a" else 0))
            for source, text in texts.items()
        }
        rate = 1e4 * sum(counts.values()) / words
        if rate >= MAX_PER_10_000_WORDS:
            worst = sorted(counts, key=lambda source: -counts[source])[:5]
            found[name] = f"{rate:.1f} per 10,000 words, most in {', '.join(worst)}"
    return found


def test_docstrings_comments_and_messages_use_plain_words() -> None:
    """The phrases of the list stay under their rate in the package."""
    assert not offences({str(source.relative_to(ROOT)): "\n".join(prose_of(source)) for source in SOURCES})


def test_pages_and_generated_files_use_plain_words() -> None:
    """They stay under it in the docs and in what is generated, too."""
    assert not offences({str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES})
