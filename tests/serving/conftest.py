"""What several tests of the server share."""

import shutil
import subprocess

import pytest

PATIENCE = 60.0


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """The certificate of localhost and its key."""
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    from regard.serving.http.tls import Tls

    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    folder = tmp_path_factory.mktemp("tls")
    made = Tls(folder / "certificate.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", made.key,
         "-out", made.certificate],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    return made
