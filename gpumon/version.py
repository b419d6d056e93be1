"""The source revision of the package or of the checkout."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def revision() -> str | None:
    """Return the first twelve digits of the commit; None if it is unknown."""
    stamped = _HERE / "REVISION"
    if stamped.is_file():
        return stamped.read_text(encoding="ascii").strip() or None
    return _checked_out(_HERE.parent / ".git")


def _checked_out(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        _, _, ref = head.partition("ref: ")
        return (_commit(git, ref) if ref else head)[:12] or None
    except OSError:
        return None


def _commit(git: Path, ref: str) -> str:
    loose = git / ref
    if loose.is_file():
        return loose.read_text(encoding="ascii").strip()
    packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
