"""Who wrote a model: an Ed25519 signature of its current version.

`CURRENT` names the sha256 of a manifest, and the manifest names the sha256 of every other file and of the version
before: who signs one sha256 has signed every byte. `SIGNATURE` lies beside `CURRENT`; the next version has to be signed
again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common import files
from ..errors import InputError, ModelFileError
from . import versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

NAME = "SIGNATURE"
"""Of the file in a model directory."""

_FIELDS = {"algorithm", "version", "manifest_sha256", "signature"}


def make_key(path: str | Path) -> Path:
    """Write a new private key, readable by its owner alone, and beside it the public one; return the public one's path.

    Raises:
        InputError: if one of them is there already: a key is never written over.
    """
    import os

    _require_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = Path(path)
    public = path.with_name(f"{path.name}.pub")
    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    content = {
        path: key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        public: key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
    }
    for file in content:
        if file.exists():
            raise InputError(f"{file} is there already, and a key is never written over. Choose another name.")
    for file, data in content.items():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(data)
    return public


def sign(model: str | Path, key: str | Path) -> int:
    """Sign the current version of a model, after every byte of it was checked; return its number.

    Args:
        model: the model directory.
        key: a file with an Ed25519 private key (PEM, not encrypted).
    """
    _require_library()
    path, private = Path(model), _private_key(Path(key))
    current = versions.read(path).current
    fields = {
        "algorithm": "ed25519",
        **vars(current),
        "signature": private.sign(_statement(current)).hex(),
    }
    try:
        files.replace_file(path / NAME, (json.dumps(fields) + "\n").encode())
    except OSError as error:
        raise versions.unwritable(path, error) from error
    return current.version


def verify(model: str | Path, key: str | Path) -> int:
    """Check that the current version of a model was signed with a key, and every byte of it; return its number.

    Args:
        model: the model directory.
        key: a file with the Ed25519 public key, or the private one (PEM).

    Raises:
        ModelFileError: if it is not signed, by another key, is another version than the signed one, or was changed.
    """
    _require_library()
    from cryptography.exceptions import InvalidSignature

    path, public = Path(model), _public_key(Path(key))
    current = versions.read_current(path)
    if not (path / NAME).exists():
        raise ModelFileError(f"{path} is not signed: it has no {NAME}. Ask its sender to sign it.")
    fields = files.read_json(path / NAME)
    signature = _signature_of(path, fields)
    if fields["version"] != current.version:
        raise ModelFileError(
            f"{path} is version {current.version}, and its signature is of version {fields['version']}. Sign it again "
            "if you wrote the new version; else do not trust it."
        )
    try:
        public.verify(signature, _statement(current))
    except InvalidSignature:
        raise ModelFileError(f"{path} was not signed with this key, or was changed after it: do not trust it") from None
    versions.read_version(path, current)
    return current.version


def _statement(current: versions.Current) -> bytes:
    """Return what is signed; it begins with a name, so that no signature for another purpose is one for this."""
    return f"protodrift-model signature 1\n{current.version}\n{current.manifest_sha256}\n".encode()


def _signature_of(path: Path, fields: dict[str, Any]) -> bytes:
    try:
        if set(fields) == _FIELDS and fields["algorithm"] == "ed25519":
            return bytes.fromhex(fields["signature"])
    except (TypeError, ValueError):
        pass
    raise ModelFileError(f"{path / NAME} is damaged: not an Ed25519 signature of protodrift's.")


def _require_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError("signatures need the extra `sign`: pip install 'protodrift[sign]'.") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the key {path} cannot be read: {error.strerror}. Make one: protodrift sign MODEL --key {path} --make-key."
        ) from None


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _content(path)
    try:
        key = load_pem_private_key(data, password=None)
    except Exception as error:  # the library's own kinds: encrypted, not PEM, an unknown algorithm
        raise InputError(f"{path} is not a private key in PEM without a password ({str(error)[:80]}).") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} is a {type(key).__name__}; an Ed25519 key is needed.")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _content(path)
    if b"PRIVATE KEY" in data:
        return _private_key(path).public_key()
    try:
        key = load_pem_public_key(data)
    except Exception as error:  # as above
        raise InputError(f"{path} is not a public key in PEM ({str(error)[:80]}).") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} is a {type(key).__name__}; an Ed25519 key is needed.")
    return key
