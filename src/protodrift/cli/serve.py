"""`protodrift serve`: a model over HTTP, with a page."""

from __future__ import annotations

import argparse
import importlib.util
import secrets
from pathlib import Path

from .arguments import Commands, add_command, add_model, add_unknown_rate, answering, whole_number
from .text import plural

_EPILOG = """\
examples:
  protodrift serve birds                                       open http://127.0.0.1:8000/ in a browser
  curl -F images=@a.jpg -F images=@b.jpg http://127.0.0.1:8000/predict
  protodrift serve birds --teach                               open the link it prints, drop photos, name the class
  protodrift serve birds --host 0.0.0.0 --token-file token     reachable from other machines
  curl -H "Authorization: Bearer $(cat token)" --data-binary @a.jpg http://HOST:8000/predict

`protodrift learn birds ...` may run meanwhile: the new version is picked up, and no request is dropped. Ctrl-C and
SIGTERM finish what is in flight. There is no encryption: put a proxy with TLS before it where others could listen.
Needs:  pip install 'protodrift[serve]'
"""

_PARTS = ("fastapi", "uvicorn", "httptools", "python_multipart")


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "serve",
        run,
        help="answer over HTTP, with a page to drop photos on",
        description="Serves a model: an HTTP API, and a page that shows what it knows and how its classes moved.",
        epilog=_EPILOG,
    )
    add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine only)")
    parser.add_argument("--port", type=whole_number(0), default=8000, help="port (default 8000; 0: any that is free)")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="a file with the token that clients must know")
    parser.add_argument(
        "--teach", action="store_true", help="let people with the token teach the model on the page; prints a link"
    )
    parser.add_argument("--device", default="cpu", help="where the network runs (default cpu)")
    parser.add_argument(
        "--allow-origin",
        metavar="URL",
        action="append",
        default=[],
        help="another site whose pages may send requests, such as https://birds.example; may be repeated",
    )
    parser.add_argument("--metrics", action="store_true", help="let Prometheus read /metrics (extra: metrics)")
    add_unknown_rate(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body", type=whole_number(1), default=32, metavar="MB", help="largest request (default 32)"
    )
    limits.add_argument(
        "--max-pixels", type=whole_number(1), default=50, metavar="MILLIONS", help="largest image (default 50)"
    )
    limits.add_argument(
        "--max-images", type=whole_number(1), default=64, metavar="N", help="most images per request (default 64)"
    )
    limits.add_argument(
        "--max-in-flight", type=whole_number(1), default=256, metavar="N", help="requests at a time (default 256)"
    )
    limits.add_argument(
        "--max-connections", type=whole_number(2), default=512, metavar="N", help="open connections (default 512)"
    )
    limits.add_argument(
        "--timeout", type=whole_number(1), default=30, metavar="SECONDS", help="longest time for a request (default 30)"
    )


def run(args: argparse.Namespace) -> int:
    """Check the arguments, load the model, listen, serve until stopped."""
    from ..errors import InputError

    parts = [*_PARTS, *(["prometheus_client"] if args.metrics else [])]
    missing = [name for name in parts if importlib.util.find_spec(name) is None]
    if missing:
        extras = "serve,metrics" if args.metrics else "serve"
        raise InputError(f"serving needs {', '.join(missing)}. Install:  pip install 'protodrift[{extras}]'")
    from ..serve.access import LOOPBACK_NAMES, checked_origin, is_loopback, read_token
    from ..serve.limits import Limits

    # Whatever can be wrong with the arguments is said before torch and the model are loaded.
    token = None if args.token_file is None else read_token(args.token_file)
    if token is None and not is_loopback(args.host):
        raise InputError(
            f"--host {args.host} lets other machines send requests: add --token-file FILE. Make one: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' > token"
        )
    origins = frozenset(map(checked_origin, args.allow_origin))
    limits = Limits(
        body=args.max_body * 2**20,
        pixels=args.max_pixels * 1_000_000,
        images=args.max_images,
        in_flight=args.max_in_flight,
        seconds=float(args.timeout),
        connections=args.max_connections,
    )
    from ..serve.running import BACKLOG, bound, run_until_stopped, url_of

    listener = bound(args.host, args.port)
    from ..common import machine
    from ..serve.app import build_app
    from ..serve.watching import Watched

    machine.tune()
    watched = Watched(args.model, device=args.device, **answering(args))
    hosts = LOOPBACK_NAMES | {args.host} if token is None else None
    write_token = (token or secrets.token_urlsafe(24)) if args.teach else None
    app = build_app(
        watched, limits, token=token, hosts=hosts, origins=origins, metrics=args.metrics, write_token=write_token
    )
    listener.listen(BACKLOG)
    served = watched.served
    classes = plural(len(served.classifier.state_.prototypes), "class")
    secret = f"#token={write_token}" if args.teach and token is None else ""
    print(
        f"serving {args.model}, version {served.current.version} with {classes}, at {url_of(listener)}"
        + "  (to ask; the next link can teach, too)" * bool(secret),
        flush=True,
    )
    if args.teach:
        print(f"teach it at {url_of(listener)}{secret}  (whoever has {'this link' if secret else 'the token'} can)")
    print("stop with Ctrl-C", flush=True)
    run_until_stopped(app, listener, limits.seconds + 5)
    print("stopped; nothing was in flight any more")
    return 0
