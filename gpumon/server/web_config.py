"""TLS and users of the HTTP server, from the web configuration file in the format of Prometheus's exporter-toolkit."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails

from gpumon.config.configuration_error import describe_error
from gpumon.config.yaml_file import YamlError, parse

_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
"""OpenSSL's verify mode by `client_auth_type`. Not supported: two types that do not verify the certificate."""
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_BCRYPT = re.compile(r"\$2[aby]\$(?:0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")


class WebConfigError(Exception):
    """Raised for a web configuration that cannot be used. The message names the file, the key and the remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        """Drop null and empty values, which exporter-toolkit treats as absent, unless {} has an unsupported key."""
        if not isinstance(values, dict):
            return values
        known = cls.model_fields
        return {
            key: value
            for key, value in values.items()
            if value not in (None, "", [], {}) or (value == {} and key not in known)
        }


class TlsConfig(_Part):
    """The section `tls_server_config` of the web configuration file. Paths are relative to the folder of the file."""

    cert_file: Path
    key_file: Path
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    client_allowed_sans: tuple[str, ...] = ()
    """Subject alternative names, of which a client certificate must have at least one. Empty: any certificate."""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"
    prefer_server_cipher_suites: bool = True
    """Ignored: the OpenSSL policy of the host decides on cipher suites."""

    @field_validator("client_ca_file", "client_allowed_sans")
    @classmethod
    def _check_effect(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("client_auth_type") == "NoClientCert":
            raise ValueError("has no effect without client_auth_type: RequireAndVerifyClientCert")
        return value


class HttpConfig(_Part):
    """The section `http_server_config` of the web configuration file."""

    http2: bool = True
    """Ignored: the agent supports only HTTP/1.1, which every HTTP/2 client supports too."""
    headers: Mapping[str, str] = {}


class WebConfig(_Part):
    """The content of a web configuration file."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = HttpConfig()
    basic_auth_users: Mapping[str, str] = {}

    @field_validator("basic_auth_users")
    @classmethod
    def _check_hashes(cls, users: Mapping[str, str]) -> Mapping[str, str]:
        for user, password in users.items():
            if not _BCRYPT.fullmatch(password):
                raise ValueError(f"the password of {user!r} is not a hash of bcrypt: make one with htpasswd -nB {user}")
        return users


def read(path: Path) -> WebConfig:
    """Return the web configuration in the file. Raise WebConfigError if the file is unreadable or invalid."""
    try:
        text = path.read_text(encoding="utf-8")
        parsed = parse(text)
        config = WebConfig.model_validate(parsed.values or {})
    except (OSError, UnicodeDecodeError) as error:
        raise WebConfigError(f"the web configuration {path} cannot be read: {error}") from error
    except YamlError as error:  # PyYAML's own text quotes the line, and a tag may be a password that begins with !
        wrong = "a YAML tag is not supported" if " tag " in error.wrong else error.wrong
        raise WebConfigError(f"the web configuration {path} cannot be read: line {error.line}: {wrong}") from None
    except ValidationError as error:
        keys = [(".".join(map(str, each["loc"])) or "the file", _words(each)) for each in error.errors()]
        problems = "; ".join(f"{key}: {wrong}" for key, wrong in keys)
        raise WebConfigError(f"the web configuration {path} is not valid: {problems}") from error
    if not text:  # as while an editor writes it: TLS and users must not end for that
        raise WebConfigError(f"the web configuration {path} is empty: write {{}} to serve without TLS and users")
    for key, line in parsed.repeated:
        raise WebConfigError(f"the web configuration {path} is not valid: line {line}: {key[-1]} is already set")
    return config


def _words(error: ErrorDetails) -> str:
    unknown = "is not supported: remove it (docs/tls.md lists what is)"
    return unknown if error["type"] == "extra_forbidden" else describe_error(error)


def files(path: Path, config: WebConfig) -> tuple[Path, ...]:
    """Return the path of the web configuration file and the paths of the certificate and key files that it names."""
    tls = config.tls_server_config
    named = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
    return (path, *(path.parent / each for each in named if each is not None))


def tls_context(path: Path, config: WebConfig) -> ssl.SSLContext | None:
    """Return the TLS context for TCP connections; None without TLS. Raise WebConfigError if a file cannot be used."""
    tls = config.tls_server_config
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    context.verify_mode = _VERIFY[tls.client_auth_type]
    try:
        context.load_cert_chain(path.parent / tls.cert_file, path.parent / tls.key_file, _no_passphrase)
        if tls.client_ca_file is not None:
            context.load_verify_locations(path.parent / tls.client_ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        named = ", ".join(str(each) for each in files(path, config)[1:])
        raise WebConfigError(f"TLS cannot use the files of {path} ({named}): {error}") from error
    if tls.client_ca_file is None and context.verify_mode is not ssl.CERT_NONE:
        raise WebConfigError(f"{path}: client_auth_type {tls.client_auth_type} needs client_ca_file")
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, which the agent cannot ask for: store the key without one")
