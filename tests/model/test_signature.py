"""Signatures: what was signed is accepted, and nothing else."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from safetensors.torch import load_file, save_file

from protodrift.cli import main
from protodrift.errors import InputError, ModelFileError
from protodrift.model.audit import audit
from protodrift.model.signature import make_key, sign, verify
from tests.model.directories import reseal


@pytest.fixture
def signed(two_clouds, tmp_path):
    """A model with its signature, and the private key."""
    make_key(tmp_path / "key")
    two_clouds.save(tmp_path / "birds")
    assert sign(tmp_path / "birds", tmp_path / "key") == 1
    return tmp_path / "birds", tmp_path / "key"


def test_a_signed_model_is_accepted_with_either_key_and_belongs_together(signed):
    model, key = signed
    assert verify(model, f"{key}.pub") == verify(model, key) == 1
    assert not audit(model).foreign
    assert key.stat().st_mode & 0o077 == 0


def test_tampering_that_checksums_do_not_find_is_found(signed):
    model, key = signed
    file = model / "versions" / "1" / "prototypes.safetensors"
    tensors = load_file(file)
    tensors["means"][0] += 1
    save_file(tensors, file)
    with pytest.raises(ModelFileError, match="does not match its checksum"):
        verify(model, f"{key}.pub")
    reseal(model)  # all checksums are right again: it can be loaded
    with pytest.raises(ModelFileError, match="not signed with this key, or was changed after it"):
        verify(model, f"{key}.pub")


def test_another_key_another_version_and_no_signature_are_refused(signed, two_clouds, tmp_path):
    model, key = signed
    make_key(tmp_path / "other")
    with pytest.raises(ModelFileError, match="not signed with this key"):
        verify(model, tmp_path / "other.pub")
    fields = json.loads((model / "SIGNATURE").read_text())
    for change in ({"signature": "zz"}, {"signature": 5}, {"algorithm": "none"}, {"more": 1}):
        (model / "SIGNATURE").write_text(json.dumps({**fields, **change}))
        with pytest.raises(ModelFileError, match="not an Ed25519 signature"):
            verify(model, key)
    (model / "SIGNATURE").write_text(json.dumps(fields))
    current = json.loads((model / "CURRENT").read_text())
    (model / "CURRENT").write_text(json.dumps({**current, "version": 2}))
    with pytest.raises(ModelFileError, match="is version 2, and its signature is of version 1"):
        verify(model, key)
    (model / "SIGNATURE").unlink()
    with pytest.raises(ModelFileError, match="is not signed"):
        verify(model, key)


def test_keys_that_are_none_are_named_and_none_is_written_over(signed, tmp_path):
    model, key = signed
    with pytest.raises(InputError, match="never written over"):
        make_key(key)
    (tmp_path / "text").write_text("no key")
    ec = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "ec").write_bytes(ec)
    for name, why in (("text", "is not a private key"), ("ec", "an Ed25519 key is needed"), ("gone", "--make-key")):
        with pytest.raises(InputError, match=why):
            sign(model, tmp_path / name)
    with pytest.raises(InputError, match="is not a public key"):
        verify(model, tmp_path / "text")


def test_the_commands(two_clouds, tmp_path, capsys):
    two_clouds.save(tmp_path / "birds")
    assert main(["sign", str(tmp_path / "birds"), "--key", str(tmp_path / "k"), "--make-key"]) == 0
    assert main(["verify", str(tmp_path / "birds"), "--key", str(tmp_path / "k.pub")]) == 0
    assert "is whole, and signed with" in capsys.readouterr().out
    (tmp_path / "birds" / "SIGNATURE").unlink()
    assert main(["verify", str(tmp_path / "birds"), "--key", str(tmp_path / "k.pub")]) == 1
    assert "is not signed" in capsys.readouterr().err
