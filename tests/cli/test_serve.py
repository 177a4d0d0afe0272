"""`protodrift serve`: what is wrong with its arguments is said before torch and the model are loaded."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

CODE = """
import sys
from protodrift.cli import main
status = main(sys.argv[1:])
print('torch' in sys.modules)
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "add --token-file FILE"),
        (["--token-file", "nothing"], "the token file nothing cannot be read"),
        (["--allow-origin", "birds"], "is not an origin"),
        (["--port", "TAKEN"], "Choose another --port"),
        (["--host", "no such host", "--token-file", "TOKEN"], "Choose another --host"),
    ],
)
def test_wrong_arguments_are_refused_before_the_model_is_loaded(tmp_path, options, said):
    (tmp_path / "token").write_text("0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"TAKEN": str(taken.getsockname()[1]), "TOKEN": str(tmp_path / "token")}
        command = ["serve", str(tmp_path / "no model"), *(names.get(one, one) for one in options)]
        done = subprocess.run(
            [sys.executable, "-c", CODE, *command], capture_output=True, text=True, timeout=120, check=False
        )
    assert said in done.stderr
    assert done.stdout.strip() == "False"  # torch was not imported
    assert done.returncode == 1
