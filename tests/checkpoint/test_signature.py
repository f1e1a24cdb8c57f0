"""A signed checkpoint is that of somebody with the key; hashes that agree prove no author."""

import os
import shutil
from pathlib import Path

import pytest

import regard
from regard.checkpoint.signature import PURPOSE
from support.command_line import command
from support.forged import GOLDEN, forge, rehashed

KEY = bytes(range(32))


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "team.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


@pytest.fixture
def signed(tmp_path, key) -> Path:
    folder = Path(shutil.copytree(GOLDEN / "transformer", tmp_path / "signed"))
    assert list(regard.sign(folder, key)) == [folder]
    return folder


def refused(folder: Path, key: Path) -> str:
    with pytest.raises(regard.CheckpointRefused) as caught:
        list(regard.verify(folder, key))
    return str(caught.value)


def test_a_signature_is_an_hmac_of_the_manifest(signed, key):
    """As another implementation computes it."""
    import hashlib

    def padded(byte: int) -> bytes:
        return bytes(b ^ byte for b in KEY.ljust(64, b"\0"))

    manifest = (signed / "manifest.json").read_bytes()
    inner = hashlib.sha256(padded(0x36) + PURPOSE + manifest).digest()
    wanted = hashlib.sha256(padded(0x5C) + inner).hexdigest()
    assert (signed / "manifest.json.sig").read_text() == f"hmac-sha256 {wanted}\n"
    (found,) = regard.verify(signed, key)
    assert found == (signed, len(list(signed.iterdir())) - 2)
    assert regard.load(signed, device="cpu").predict(["abc"]) == regard.load(
        GOLDEN / "transformer"
    ).predict(["abc"])


def test_a_forged_checkpoint_has_no_signature(tmp_path, key, signed):
    """Its hashes agree, so it verifies without a key and with no key that it was not signed with."""
    forged = forge(
        tmp_path / "forged",
        "config.json",
        lambda config: config["recipe"]["decode"].update(beam_size=2),
    )
    assert list(regard.verify(forged))
    assert "got none" in refused(forged, key)
    shutil.copy(signed / "manifest.json.sig", forged)
    assert "got another" in refused(forged, key)
    assert list(regard.verify(forged))
    weights = bytearray((signed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (signed / "model.safetensors").write_bytes(weights)
    assert "bytes that differ" in refused(signed, key)
    assert "got another" in refused(rehashed_but_signed(signed), key)


def rehashed_but_signed(folder: Path) -> Path:
    signature = (folder / "manifest.json.sig").read_bytes()
    (folder / "manifest.json.sig").unlink()
    rehashed(folder)
    (folder / "manifest.json.sig").write_bytes(signature)
    return folder


def test_every_flipped_bit_of_a_signature_and_of_the_key_is_noticed(signed, key):
    for path, mode in ((signed / "manifest.json.sig", 0o644), (key, 0o600)):
        whole = path.read_bytes()
        for place in range(len(whole) * 8):
            changed = bytearray(whole)
            changed[place // 8] ^= 1 << place % 8
            path.write_bytes(changed)
            path.chmod(mode)
            if path == key or place % 8 == 0:  # each byte of a signature
                assert "got another" in refused(signed, key), place
        path.write_bytes(whole)
    (signed / "manifest.json.sig").write_bytes(b"")
    assert "got another" in refused(signed, key)
    (signed / "manifest.json.sig").unlink()
    (signed / "manifest.json.sig").symlink_to(os.devnull)
    assert "got none" in refused(signed, key)


def test_the_command_line_signs_and_verifies_a_run(tmp_path, key):
    for step in (1, 2):
        shutil.copytree(GOLDEN / "classifier", tmp_path / "run" / f"step-{step:08d}")
    unsigned = command("verify", tmp_path / "run", "--key", key)
    assert (unsigned.returncode, unsigned.stderr.count("made with this key; got none")) == (4, 2)
    done = command("sign", tmp_path / "run", "--key", key)
    assert (done.returncode, done.stdout.count("signed")) == (0, 2), done.stderr
    again = command("verify", tmp_path / "run", "--key", key)
    assert (again.returncode, again.stdout.count("as saved, signed")) == (0, 2)
    (tmp_path / "run" / "step-00000002" / "README.md").write_text("other")
    assert command("sign", tmp_path / "run", "--key", key).returncode == 4


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (b"x" * 31, 0o600, "31 bytes"),
        (b"x" * 5000, 0o600, "more than 4096"),
        (KEY, 0o640, "one of mode 640.*chmod 600"),
        (None, 0, "No such file"),
    ],
    ids=["short", "long", "readable by others", "missing"],
)
def test_keys_that_are_none_are_refused(content, mode, message, tmp_path):
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    for use in (regard.verify, regard.sign):
        with pytest.raises(regard.InvalidArgument, match=message):
            list(use(GOLDEN / "transformer", path))
    assert not (GOLDEN / "transformer" / "manifest.json.sig").exists()
