"""Downloads from a real server that behaves badly: verified, resumed, unpacked safely, in place only when whole."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import os
import re
import socket
import tarfile
import threading
import zipfile
from dataclasses import replace

import pytest

from protodrift.data.datasets import DATASETS, load_dataset, prepare_dataset
from protodrift.data.datasets.base import RemoteFile
from protodrift.data.datasets.download import download
from protodrift.data.datasets.unpack import unpack
from protodrift.errors import InputError

from . import layouts

BODY = bytes(range(256)) * 4000  # about a megabyte: several blocks


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `faults` is taken from the front, one per request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[object] = []
        self.requests: list[dict[str, str]] = []
        self.tag = '"one"'
        self.sent = 0  # bytes of endless answers

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


LOGIN = b"<html>log in first</html>"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # chunks are unknown to 1.0

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.requests.append({key.lower(): value for key, value in self.headers.items()})
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = self.server.files.get(self.path[1:])
        if content is None or (isinstance(fault, int) and fault >= 400):
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        if fault in ("login page, chunked", "login page, closed", "endless", "cut without length"):
            self.answer_without_length(str(fault), content)
            return
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fresh = self.headers.get("If-Range") in (None, self.server.tag)
        if wanted and fresh and fault != "no ranges":
            start = int(wanted[1])
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if self.server.tag:
            self.send_header("ETag", self.server.tag)
        if fault != "no length":
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if isinstance(fault, float):  # cut the connection after this share of what is left
            rest = rest[: int(len(rest) * fault)]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(rest)
        if isinstance(fault, float):
            self.wfile.flush()
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def answer_without_length(self, fault: str, content: bytes):
        """Answer 200 from the start: in chunks, with a marked end, or until the connection is closed."""
        self.send_response(200)
        if "chunked" in fault:
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "consolidate")  # also tells the handler to close it
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if fault == "login page, chunked":
                self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(LOGIN), LOGIN))
            elif fault == "login page, closed":
                self.wfile.write(LOGIN)
            elif fault == "cut without length":
                self.wfile.write(content[: int(0.4 * len(content))])
            else:
                for _ in range(200):
                    self.wfile.write(bytes(1_000_000))
                    self.server.sent += 1_000_000


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


@pytest.fixture
def remote(server):
    """Put a file on the server and return what is known of it."""

    def put(name="data.bin", content=BODY, **facts) -> RemoteFile:
        server.files[name] = content
        return RemoteFile(server.url(name), **{"bytes": len(content), "checksum": md5(content), **facts})

    return put


def left(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_nothing_else_is_left(server, remote, tmp_path):
    seen = []
    download(remote(), tmp_path / "data.bin", on_progress=lambda *args: seen.append(args))
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert left(tmp_path) == ["data.bin"]
    assert seen[-1] == ("download data.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert server.requests[0]["user-agent"].startswith("protodrift/")


def test_a_broken_connection_goes_on_where_it_broke(server, remote, tmp_path):
    server.faults = [0.4, 0.5]
    download(remote(), tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY
    starts = [int(request["range"][6:-1]) for request in server.requests[1:]]
    assert len(starts) == 2
    assert starts[0] == int(0.4 * len(BODY))
    assert starts[1] > starts[0]
    assert all(request["if-range"] == '"one"' for request in server.requests[1:])


def test_another_call_goes_on_where_the_first_gave_up(server, remote, tmp_path):
    file = remote()
    server.faults = [0.4, *[503] * 5]
    with pytest.raises(InputError, match=r"409,600 bytes that arrived are kept"):
        download(file, tmp_path / "data.bin", pause=0)
    assert not (tmp_path / "data.bin").exists()
    server.requests.clear()
    download(file, tmp_path / "data.bin", pause=0)
    assert server.requests[0]["range"] == "bytes=409600-"
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert left(tmp_path) == ["data.bin"]


def test_a_server_without_ranges_sends_all_of_it_again(server, remote, tmp_path):
    server.faults = [0.4, "no ranges"]
    download(remote(), tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_a_file_that_changed_between_two_calls_is_not_mixed(server, remote, tmp_path):
    remote()
    server.faults = [0.4, *[503] * 5]
    with pytest.raises(InputError):
        download(remote(), tmp_path / "data.bin", pause=0)
    new = BODY[::-1]
    server.tag = '"two"'
    download(remote(content=new), tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == new


def test_a_changed_file_that_breaks_off_sooner_is_gone_on_from(server, remote, tmp_path):
    """What had arrived of the old version is longer, but of no use."""
    (tmp_path / ".data.bin.part").write_bytes(b"x" * 900_000)
    (tmp_path / ".data.bin.part.tag").write_text('"old"')
    server.faults = [0.4]
    download(remote(), tmp_path / "data.bin", pause=0)
    assert server.requests[1]["range"] == "bytes=409600-"
    assert server.requests[1]["if-range"] == '"one"'
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_halves_that_do_not_belong_together_are_fetched_again_whole(server, remote, tmp_path):
    """A server without tags cannot say that its file changed; the checksum does."""
    server.tag = ""
    file = remote()
    (tmp_path / ".data.bin.part").write_bytes(b"x" * 1000)
    download(file, tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert ["range" in request for request in server.requests] == [True, False]


def test_a_part_that_is_too_long_is_thrown_away(server, remote, tmp_path):
    (tmp_path / ".data.bin.part").write_bytes(b"x" * (len(BODY) + 5))
    download(remote(), tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_a_part_that_is_whole_is_only_verified(server, remote, tmp_path):
    (tmp_path / ".data.bin.part").write_bytes(BODY)
    download(remote(), tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_a_server_that_does_not_say_the_length_is_no_problem(server, remote, tmp_path):
    server.faults = ["no length"]
    download(remote(bytes=None), tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_a_wrong_checksum_is_named_and_the_bytes_are_not_kept(remote, tmp_path):
    file = remote(checksum="md5:" + "0" * 32)
    with pytest.raises(InputError, match=rf"has the md5 {md5(BODY)[4:]}, the published file has 0000"):
        download(file, tmp_path / "data.bin", pause=0)
    assert left(tmp_path) == []


def test_sha256_is_known_too(remote, tmp_path):
    download(remote(checksum="sha256:" + hashlib.sha256(BODY).hexdigest()), tmp_path / "data.bin")
    with pytest.raises(InputError, match="sha256"):
        download(remote(checksum="sha256:" + "0" * 64), tmp_path / "other.bin")


def test_a_wrong_size_is_named_before_the_file_is_fetched(server, remote, tmp_path):
    seen = []
    with pytest.raises(InputError, match=r"has 1,024,000 bytes now, the published file has 5"):
        download(remote(bytes=5), tmp_path / "data.bin", on_progress=lambda *args: seen.append(args))
    assert not seen
    assert left(tmp_path) == []


def test_a_wrong_size_is_named_when_the_server_did_not_say_it(server, remote, tmp_path):
    server.faults = ["no length"]
    with pytest.raises(InputError, match=r"sends more than the 5 bytes that the published file has"):
        download(remote(bytes=5), tmp_path / "data.bin")
    assert left(tmp_path) == []


def test_an_endless_answer_is_stopped_at_the_published_size(server, remote, tmp_path):
    file = remote()
    server.faults = ["endless"]
    with pytest.raises(InputError, match=r"sends more than the 1,024,000 bytes that the published file has"):
        download(file, tmp_path / "data.bin", pause=0)
    assert server.sent < 100_000_000  # what the system's buffers take, not all of it
    assert left(tmp_path) == []
    (tmp_path / ".data.bin.part").write_bytes(BODY[:900_000])
    server.faults = ["endless"]
    with pytest.raises(InputError, match=r"sends more than"):
        download(file, tmp_path / "data.bin", pause=0)
    assert left(tmp_path) == [".data.bin.part"]
    assert (tmp_path / ".data.bin.part").read_bytes() == BODY[:900_000]


@pytest.mark.parametrize("facts", [{}, {"bytes": None}, {"bytes": None, "checksum": None}])
@pytest.mark.parametrize("page", ["login page, chunked", "login page, closed"])
def test_a_login_page_does_not_destroy_what_had_arrived(server, remote, tmp_path, page, facts):
    file = remote(**facts)
    (tmp_path / ".data.bin.part").write_bytes(BODY[:900_000])
    (tmp_path / ".data.bin.part.tag").write_text('"one"')
    server.faults = [page] * 5
    with pytest.raises(InputError, match=r"25 bytes|has the md5|900,000 bytes that arrived are kept"):
        download(file, tmp_path / "data.bin", pause=0)
    assert left(tmp_path) == [".data.bin.part", ".data.bin.part.tag"]
    assert (tmp_path / ".data.bin.part").read_bytes() == BODY[:900_000]
    server.faults.clear()
    server.requests.clear()
    download(file, tmp_path / "data.bin", pause=0)
    assert [request["range"] for request in server.requests] == ["bytes=900000-"]
    assert (tmp_path / "data.bin").read_bytes() == BODY
    assert left(tmp_path) == ["data.bin"]


def test_an_answer_from_the_start_that_breaks_sooner_leaves_the_longer_part(server, remote, tmp_path):
    (tmp_path / ".data.bin.part").write_bytes(BODY[:900_000])
    server.faults = ["cut without length"]
    download(remote(), tmp_path / "data.bin", pause=0)
    assert server.requests[1]["range"] == "bytes=900000-"
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_an_answer_from_the_start_that_gets_further_is_gone_on_from(server, remote, tmp_path):
    (tmp_path / ".data.bin.part").write_bytes(b"x" * 1000)
    (tmp_path / ".data.bin.part.tag").write_text('"old"')
    server.faults = ["cut without length"]
    download(remote(), tmp_path / "data.bin", pause=0)
    assert server.requests[1]["range"] == "bytes=409600-"
    assert "if-range" not in server.requests[1]  # that tag belonged to other bytes
    assert len(server.requests) == 2
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_a_break_is_noticed_by_the_published_size_if_the_server_says_none(server, remote, tmp_path):
    file = remote()
    server.faults = ["cut without length"]
    download(file, tmp_path / "data.bin", pause=0)
    assert server.requests[1]["range"] == "bytes=409600-"
    assert (tmp_path / "data.bin").read_bytes() == BODY
    server.faults = ["cut without length", *[503] * 5]
    with pytest.raises(InputError, match=r"409,600 bytes that arrived are kept"):
        download(file, tmp_path / "other.bin", pause=0)
    assert left(tmp_path) == [".other.bin.part", "data.bin"]


@pytest.mark.parametrize("status", [404, 403])
def test_a_file_that_is_gone_is_said_at_once(server, remote, tmp_path, status):
    server.faults = [status]
    with pytest.raises(InputError, match=f"data.bin answers {status}"):
        download(remote(), tmp_path / "data.bin", pause=100)
    assert len(server.requests) == 1


def test_a_mirror_is_tried_next(server, remote, tmp_path):
    file = remote()
    gone = RemoteFile(server.url("gone.bin"), file.bytes, file.checksum, mirrors=(file.url,))
    download(gone, tmp_path / "data.bin", pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_no_network_is_said_at_once(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
    with pytest.raises(InputError, match="the server cannot be reached"):
        download(RemoteFile(url), tmp_path / "x", pause=0)
    assert left(tmp_path) == []


def test_only_http_is_followed(tmp_path):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(InputError, match="not an http address"):
        download(RemoteFile(f"file://{tmp_path}/secret"), tmp_path / "x")


def test_a_full_disk_is_said_before_the_file_is_fetched(remote, tmp_path, monkeypatch):
    file = remote()
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"1,000 bytes free, 1,024,000 are needed"):
        download(file, tmp_path / "data.bin")


# ------------------------------------------------------------------------------------------------------------ unpacking


def tar(members, mode="w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for member in members:
            name, content = member if isinstance(member, tuple) else (member, None)
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if content is not None:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return buffer.getvalue()


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2"])
def test_a_tar_is_unpacked(tmp_path, mode):
    (tmp_path / "a.tar").write_bytes(tar([("set/x.txt", b"x"), ("set/deep/y.txt", b"y")], mode))
    unpack(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out" / "set" / "deep" / "y.txt").read_bytes() == b"y"
    assert left(tmp_path / "out") == ["set"]


def test_files_are_plain_whatever_the_archive_says(tmp_path):
    info = tarfile.TarInfo("set/run")
    info.mode = 0o4777
    (tmp_path / "a.tgz").write_bytes(tar([(info, b"x")]))
    unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert not (tmp_path / "out" / "set" / "run").stat().st_mode & 0o7111


@pytest.mark.parametrize(
    "bad",
    [
        ("../evil", b"x"),
        ("set/../../evil", b"x"),
        ("/tmp/protodrift-evil", b"x"),
        ("..\\evil", b"x"),
        ("C:/evil", b"x"),
        link("set/out", "/etc"),
        link("set/out", "../.."),
        link("set/hard", "/etc/passwd", tarfile.LNKTYPE),
        link("set/pipe", "", tarfile.FIFOTYPE),
        link("set/device", "", tarfile.CHRTYPE),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_refused_whole(tmp_path, bad):
    (tmp_path / "a.tgz").write_bytes(tar([("set/x.txt", b"x"), bad, ("set/out/y", b"y")]))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="is refused"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert left(tmp_path) == ["a.tgz", "out"]
    assert left(tmp_path / "out") == []
    assert not os.path.exists("/tmp/protodrift-evil")


@pytest.mark.parametrize("name", ["../evil", "/tmp/protodrift-evil", "link"])
def test_a_zip_that_would_write_elsewhere_is_refused_whole(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("set/x.txt", "x")
        info = zipfile.ZipInfo(name)
        if name == "link":
            info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc")
    with pytest.raises(InputError, match="is refused"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    assert left(tmp_path / "out") == []


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.97])
@pytest.mark.parametrize("kind", ["tgz", "tar", "zip"])
def test_an_archive_that_is_cut_off_is_named_and_leaves_nothing(tmp_path, kind, keep):
    files = [(f"set/{i}.bin", os.urandom(5000)) for i in range(20)]
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name, content in files:
                archive.writestr(name, content)
        whole = (tmp_path / "a.zip").read_bytes()
    else:
        whole = tar(files, "w:gz" if kind == "tgz" else "w")
    path = tmp_path / f"a.{kind}"
    path.write_bytes(whole[: int(len(whole) * keep * 0.9)])
    with pytest.raises(InputError, match=rf"a.{kind} is cut off or damaged"):
        unpack(path, tmp_path / "out")
    assert left(tmp_path / "out") == []


def test_a_tar_that_is_cut_off_between_two_files_is_noticed(tmp_path):
    whole = tar([("set/a", b"a" * 512), ("set/b", b"b" * 512)], "w")
    (tmp_path / "a.tar").write_bytes(whole[:1024])  # the first file, whole, and nothing more
    with pytest.raises(InputError, match="its end is missing"):
        unpack(tmp_path / "a.tar", tmp_path / "out")


def test_a_folder_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "a.tgz").write_bytes(tar([("set/x.txt", b"new")]))
    (tmp_path / "out" / "set").mkdir(parents=True)
    (tmp_path / "out" / "set" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is in the way"):
        unpack(tmp_path / "a.tgz", tmp_path / "out")
    assert left(tmp_path / "out") == ["set"]
    assert left(tmp_path / "out" / "set") == ["mine.txt"]


# ------------------------------------------------------------------------------------------------------- whole datasets


def archive_of(folder, kind="tgz") -> bytes:
    """Pack a folder under its own name."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder.parent))
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
    return buffer.getvalue()


@pytest.fixture
def cifar(remote, tmp_path, monkeypatch):
    """CIFAR-100, small, on the server."""
    content = archive_of(layouts.cifar(tmp_path / "publisher"))
    dataset = replace(DATASETS["cifar100"], files=(remote("cifar-100-python.tar.gz", content),))
    monkeypatch.setitem(DATASETS, "cifar100", dataset)
    return content


def test_a_dataset_is_prepared_and_then_found(server, cifar, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTODRIFT_DATA", str(tmp_path / "data"))
    folder = prepare_dataset("cifar100", pause=0)
    assert folder == tmp_path / "data" / "cifar-100-python"
    assert len(load_dataset("cifar100", check=False).train) == 6
    assert left(tmp_path / "data") == [".cifar100.lock", "cifar-100-python"]
    count = len(server.requests)
    assert prepare_dataset("cifar100") == folder
    assert len(server.requests) == count


def test_the_users_cache_is_the_place_if_none_is_named(cifar, tmp_path):
    assert prepare_dataset("cifar100") == tmp_path / "cache-home" / "protodrift" / "data" / "cifar-100-python"


def test_an_archive_that_is_there_already_is_used_and_kept(server, cifar, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-100-python.tar.gz").write_bytes(cifar)
    prepare_dataset("cifar100", tmp_path / "data")
    assert not server.requests
    assert "cifar-100-python.tar.gz" in left(tmp_path / "data")
    assert len(load_dataset("cifar100", tmp_path / "data", check=False).train) == 6


def test_an_archive_that_is_there_and_damaged_is_named(cifar, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-100-python.tar.gz").write_bytes(cifar[:-1] + b"x")
    with pytest.raises(InputError, match=r"cifar-100-python.tar.gz has the md5"):
        prepare_dataset("cifar100", tmp_path / "data")
    (tmp_path / "data" / "cifar-100-python.tar.gz").write_bytes(cifar[:-1])
    with pytest.raises(InputError, match="it is cut off or another"):
        prepare_dataset("cifar100", tmp_path / "data")


def test_a_folder_in_the_way_is_said_before_the_download(server, cifar, tmp_path):
    folder = tmp_path / "data" / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "train").write_text("mine")
    with pytest.raises(InputError, match=r"cifar-100-python is in the way, and is not whole"):
        prepare_dataset("cifar100", tmp_path / "data")
    assert not server.requests
    assert (folder / "train").read_text() == "mine"


def test_an_empty_folder_is_not_in_the_way(cifar, tmp_path):
    (tmp_path / "data" / "cifar-100-python").mkdir(parents=True)
    prepare_dataset("cifar100", tmp_path / "data")
    assert len(load_dataset("cifar100", tmp_path / "data", check=False).train) == 6


@pytest.mark.parametrize("damage", [False, True])
def test_after_an_interrupted_unpacking_the_archive_is_used_and_then_removed(server, remote, tmp_path, damage):
    folder = layouts.cifar(tmp_path / "publisher")
    for i in range(60):  # progress is reported every 50 files
        (folder / f"{i}.txt").write_text(str(i))
    file = remote("cifar-100-python.tar.gz", archive_of(folder))
    dataset = replace(DATASETS["cifar100"], files=(file,))
    seen = []

    def interrupt(what, done, total):
        seen.append(what)
        if what.startswith("unpack"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_dataset(dataset, tmp_path / "data", on_progress=interrupt)
    assert seen[-1] == "unpack cifar-100-python.tar.gz"
    assert left(tmp_path / "data") == [".cifar-100-python.tar.gz", ".cifar100.lock"]
    if damage:
        (tmp_path / "data" / ".cifar-100-python.tar.gz").write_bytes(b"x")
    prepare_dataset(dataset, tmp_path / "data")
    assert len(server.requests) == (2 if damage else 1)
    assert left(tmp_path / "data") == [".cifar100.lock", "cifar-100-python"]


def test_what_arrived_of_an_archive_is_gone_on_from(server, cifar, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".cifar-100-python.tar.gz.part").write_bytes(cifar[:100])
    prepare_dataset("cifar100", tmp_path / "data")
    assert [request["range"] for request in server.requests] == ["bytes=100-"]
    assert left(tmp_path / "data") == [".cifar100.lock", "cifar-100-python"]


def test_without_network_the_error_says_what_to_put_where(server, cifar, tmp_path):
    server.files.clear()
    with pytest.raises(InputError) as caught:
        prepare_dataset("cifar100", tmp_path / "data")
    said = str(caught.value)
    assert "answers 404" in said
    assert f"Put train, test, meta into {tmp_path / 'data' / 'cifar-100-python'}" in said


def test_a_dataset_without_an_address_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"no address to download from. Put .*image-net.org"):
        prepare_dataset("imagenet-subset", tmp_path)


def test_flowers102_comes_in_three_files(remote, tmp_path, monkeypatch):
    folder = layouts.flowers(tmp_path / "publisher")
    files = [remote("102flowers.tgz", archive_of(folder / "jpg"), into="flowers-102")]
    for name in ("imagelabels.mat", "setid.mat"):
        files.append(remote(name, (folder / name).read_bytes(), unpack=False, into="flowers-102"))
    dataset = replace(DATASETS["flowers102"], files=tuple(files))
    assert prepare_dataset(dataset, tmp_path / "data") == tmp_path / "data" / "flowers-102"
    assert len(load_dataset("flowers102", tmp_path / "data", size=8, check=False).test) == 4


def test_what_an_earlier_call_unpacked_is_not_fetched_again(server, remote, tmp_path):
    folder = layouts.flowers(tmp_path / "publisher")
    files = [remote("102flowers.tgz", archive_of(folder / "jpg"), into="flowers-102", gives="jpg")]
    for name in ("imagelabels.mat", "setid.mat"):
        files.append(remote(name, (folder / name).read_bytes(), unpack=False, into="flowers-102"))
    dataset = replace(DATASETS["flowers102"], files=tuple(files))
    content = server.files.pop("setid.mat")
    with pytest.raises(InputError, match=r"setid.mat answers 404"):
        prepare_dataset(dataset, tmp_path / "data", pause=0)
    server.files = {"setid.mat": content}
    assert prepare_dataset(dataset, tmp_path / "data", pause=0) == tmp_path / "data" / "flowers-102"


def test_caltech101_is_an_archive_in_an_archive(server, remote, tmp_path):
    folder = layouts.caltech(tmp_path / "publisher", images=3)
    outer = tmp_path / "outer" / "caltech-101"
    outer.mkdir(parents=True)
    (outer / "101_ObjectCategories.tar.gz").write_bytes(archive_of(folder))
    (tmp_path / "outer" / "__MACOSX").mkdir()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted((tmp_path / "outer").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "outer"))
    inner = DATASETS["caltech101"].files[0].inner
    dataset = replace(DATASETS["caltech101"], files=(remote("caltech-101.zip", buffer.getvalue(), inner=inner),))
    mine = tmp_path / "data" / "caltech-101" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(InputError, match=r"caltech-101 is in the way"):
        prepare_dataset(dataset, tmp_path / "data")
    assert not server.requests
    mine.unlink()
    found = prepare_dataset(dataset, tmp_path / "data")
    assert found == tmp_path / "data" / "caltech-101" / "101_ObjectCategories"
    assert left(tmp_path / "data") == [".caltech101.lock", "caltech-101"]
    assert left(tmp_path / "data" / "caltech-101") == ["101_ObjectCategories"]


def test_mnist_stays_compressed(remote, tmp_path):
    folder = layouts.mnist(tmp_path / "publisher")
    files = tuple(
        remote(path.name, path.read_bytes(), unpack=False, into="MNIST/raw") for path in sorted(folder.iterdir())
    )
    prepare_dataset(replace(DATASETS["mnist"], files=files), tmp_path / "data")
    assert len(load_dataset("mnist", tmp_path / "data", check=False).train) == 6


@pytest.fixture
def mnist(remote, tmp_path):
    """MNIST, small, on the server; and the folder of its four files."""
    folder = layouts.mnist(tmp_path / "publisher")
    files = tuple(
        remote(path.name, path.read_bytes(), unpack=False, into="MNIST/raw") for path in sorted(folder.iterdir())
    )
    (tmp_path / "data").mkdir()
    return replace(DATASETS["mnist"], files=files), folder


def test_a_file_in_the_data_directory_is_used_where_it_belongs(server, mnist, tmp_path):
    dataset, folder = mnist
    name = dataset.files[0].name
    content = server.files.pop(name)
    (tmp_path / "data" / name).write_bytes(content)
    assert prepare_dataset(dataset, tmp_path / "data") == tmp_path / "data" / "MNIST" / "raw"
    assert len(server.requests) == 3
    assert (tmp_path / "data" / name).read_bytes() == content  # the user's own stays
    assert left(tmp_path / "data" / "MNIST" / "raw") == left(folder)
    assert len(load_dataset("mnist", tmp_path / "data", check=False).train) == 6


def test_a_file_of_another_dataset_with_the_same_name_is_passed_over(server, mnist, tmp_path):
    dataset, _ = mnist
    name = dataset.files[0].name
    (tmp_path / "data" / name).write_bytes(b"of Fashion-MNIST")
    content = server.files.pop(name)
    with pytest.raises(InputError, match=rf"answers 404.* Not used: .*{name} has 16 bytes.* By hand: "):
        prepare_dataset(dataset, tmp_path / "data", pause=0)
    server.files[name] = content
    found = prepare_dataset(dataset, tmp_path / "data", pause=0)
    assert (found / name).read_bytes() == content
    assert (tmp_path / "data" / name).read_bytes() == b"of Fashion-MNIST"


def test_a_wrong_file_in_the_datasets_own_folder_is_named(server, mnist, tmp_path):
    dataset, _ = mnist
    own = tmp_path / "data" / "MNIST" / "raw" / dataset.files[0].name
    own.parent.mkdir(parents=True)
    own.write_bytes(b"of Fashion-MNIST")
    with pytest.raises(InputError, match=rf"raw.{own.name} has 16 bytes"):
        prepare_dataset(dataset, tmp_path / "data", pause=0)
    assert not server.requests


def test_two_at_once_download_it_once(server, cifar, tmp_path):
    threads = [threading.Thread(target=prepare_dataset, args=("cifar100", tmp_path / "data")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1


def test_every_address_has_a_checksum_that_could_be_right():
    for dataset in DATASETS.values():
        for file in dataset.files:
            kind, _, digest = (file.checksum or "").partition(":")
            assert re.fullmatch(r"[0-9a-f]*", digest), file
            assert len(digest) == {"md5": 32, "sha256": 64}[kind], file
