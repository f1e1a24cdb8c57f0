"""TLS: the certificate of a server, checked before it listens."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from regard.core.errors import InvalidArgument


@dataclass(frozen=True)
class Tls:
    """The files of a certificate with its chain, and of its key."""

    certificate: Path
    key: Path

    @staticmethod
    def of(certificate: Path | None, key: Path | None) -> "Tls | None":
        """None where neither is given; refused where one is missing, or they do not belong together."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            name = "tls_key" if key is None else "tls_certificate"
            raise InvalidArgument(
                name, wanted="both a certificate and its key", got="one", remedy="Give both files."
            )
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                certificate, key, password=_no_password
            )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            wanted, got = (
                "files of a certificate and its key, both PEM",
                f"{certificate} and {key}: {error}",
            )
            raise InvalidArgument(
                "tls_certificate", wanted=wanted, got=got, remedy="Check the files."
            ) from None
        return Tls(certificate, key)


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # or OpenSSL asks for a password on the terminal
