"""Certificates for tests, made by openssl: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder: ca.crt and ca.key."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Make the authority in a new folder."""
        folder.mkdir()
        authority = cls(folder)
        _openssl(folder, "req", "-x509", *_NEW_KEY, "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "1")
        return authority

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def sign(self, name: str, sans: str) -> None:
        """Make NAME.crt and NAME.key. `sans`: alternative names as openssl writes them, such as "IP:127.0.0.1"."""
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-days", "1", "-addext", f"subjectAltName={sans}")
        _openssl(
            self.folder, "req", "-x509", *_NEW_KEY, f"{name}.key", "-out", f"{name}.crt", "-subj", "/CN=x", *signed
        )


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
