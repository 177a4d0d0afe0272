"""The routes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from .. import __version__
from ..errors import InputError
from ..model import answers
from ..report.page import style
from . import schemas
from .batching import Batcher, Rows, pieces
from .connections import Connections
from .decoding import Decoders, Refused
from .guard import Guard, Observe
from .limits import Limits
from .teaching import Busy, Job, Teacher
from .uploads import Upload, read_uploads
from .watching import Served, Watched

logger = logging.getLogger(__package__)

POLL = 0.5
"""Seconds between two reads of CURRENT."""

ASSETS = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "map.js": "text/javascript",
    "teach.js": "text/javascript",
    "style.css": "text/css",
}

T = TypeVar("T")

_POST: dict[str, Any] = {
    "openapi_extra": schemas.IMAGES_BODY,
    "responses": schemas.refusals(400, 401, 403, 408, 413, 415, 422, 429, 504),
}


def build_app(
    watched: Watched,
    limits: Limits = Limits(),
    *,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    origins: frozenset[str] = frozenset(),
    metrics: bool = False,
    write_token: str | None = None,
    poll: float = POLL,
) -> FastAPI:
    """Return the application that serves a model.

    Args:
        watched: the model directory.
        limits: how much a client may send.
        token: what clients must know; None: nothing.
        hosts: names that clients may call this server by; None: any.
        origins: other sites whose pages may send requests, such as "https://birds.example".
        metrics: whether Prometheus may read `/metrics`; needs the extra `metrics`.
        write_token: what clients must know to teach the model; None: nobody can.
        poll: seconds between two checks for a new version.
    """
    pipeline = _Pipeline(watched, limits)
    teacher = None if write_token is None else Teacher(watched.path, watched.check, watched.trains)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_watch(watched, poll))
        try:
            yield
        finally:
            watcher.cancel()
            if teacher is not None:
                await asyncio.to_thread(teacher.close)
            pipeline.close()

    app = FastAPI(
        title="protodrift",
        version=__version__,
        description="Which class an image shows, how sure that is, and whether it is none of them; asked of a model "
        "that goes on learning.",
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.connections = Connections(limits)
    app.state.stopping = False
    app.state.watched = watched
    _add_predictions(app, pipeline)
    _add_facts(app, watched)
    _add_health(app, pipeline)
    if teacher is not None:
        _add_teaching(app, pipeline, teacher)
    _add_page(app, teaches=teacher is not None)
    observe = _add_metrics(app, pipeline) if metrics else None
    app.add_middleware(
        Guard, limits=limits, token=token, hosts=hosts, origins=origins, write_token=write_token, observe=observe
    )
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    return app


async def _watch(watched: Watched, poll: float) -> None:
    logged = ""
    while True:
        await asyncio.sleep(poll)
        if await asyncio.to_thread(watched.check):
            logger.info("now serving version %d", watched.served.current.version)
        if watched.problem and watched.problem != logged:
            logger.warning("the version before is served on: %s", watched.problem)
        logged = watched.problem


@dataclass(frozen=True)
class _Answered:
    """What the images of a request gave: those that could be read, in pieces; and why the others could not."""

    served: Served
    names: Sequence[str]
    refused: dict[int, Refused]
    pieces: Sequence[Rows]

    def document(self, key: str, made: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the answer: what was made of each image, or the error of it, in the order of the images."""
        good = iter(made)
        entries = [
            {"file": name, "error": self.refused[i].why} if i in self.refused else next(good)
            for i, name in enumerate(self.names)
        ]
        counts = {"answered": len(made), "refused": len(self.refused)}
        return {"version": self.served.current.version, **counts, key: entries}

    @property
    def good(self) -> Iterator[tuple[list[str], Rows]]:
        """Names and rows of the images that were answered, piece by piece."""
        names = (name for i, name in enumerate(self.names) if i not in self.refused)
        for rows in self.pieces:
            yield list(itertools.islice(names, rows.stop - rows.start)), rows


class _Pipeline:
    """Reads the images of a request, has them decoded and computed, and returns the rows of the result."""

    def __init__(self, watched: Watched, limits: Limits) -> None:
        self.watched, self.limits = watched, limits
        self.batcher, self.decoders = Batcher(), Decoders(limits)
        self.answered, self.refused = 0, 0
        self._numbers = itertools.count()

    async def read(self, request: Request, size: int) -> tuple[list[Upload], dict[int, Refused], list[np.ndarray]]:
        """Return the files of a request, why some cannot be read, and the pixels of the others."""
        deadline, client = time.monotonic() + self.limits.seconds, _client(request)
        uploads = await read_uploads(request, self.limits)
        decoded = await _all(self.decoders.submit([one.data for one in uploads], size, client, deadline))
        refused = {i: one for i, one in enumerate(decoded) if isinstance(one, Refused)}
        self.refused += len(refused)
        _refuse_all(uploads, refused)
        return uploads, refused, [one for one in decoded if not isinstance(one, Refused)]

    async def answer(self, request: Request, kind: str) -> _Answered:
        # All versions of a model take photos of one size. From here on the request belongs to one version.
        uploads, refused, good = await self.read(request, self.watched.served.size)
        served, client = self.watched.served, _client(request)
        turn, work = (client, next(self._numbers)), _work(served, kind)
        rows = await _all([self.batcher.submit(work, np.stack(piece), turn) for piece in pieces(good)])
        self.answered += len(good)
        return _Answered(served, [one.name for one in uploads], refused, rows)

    @property
    def problem(self) -> str:
        """Why no answer can be given in time; empty if it can."""
        stuck = self.batcher.busy_for() > self.limits.seconds
        return "the network does not answer" if stuck else self.decoders.problem

    def close(self) -> None:
        self.decoders.close()
        self.batcher.close()


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


async def _all(futures: Sequence[Future[T]]) -> list[T]:
    """Wait for all; when nobody waits any more, those that have not begun are cancelled."""
    return list(await asyncio.gather(*(asyncio.wrap_future(one) for one in futures)))


def _refuse_all(uploads: Sequence[Upload], refused: dict[int, Refused]) -> None:
    """Refuse a request of which no image can be read, or which is too large as a whole.

    Raises:
        HTTPException: with the status of the first such image, naming the first five.
    """
    all_of_it = [i for i, one in refused.items() if one.all]
    if len(refused) == len(uploads) or all_of_it:
        first = (all_of_it or list(refused))[:5]
        more = f" And {len(refused) - 5} more." if len(refused) > 5 and not all_of_it else ""
        said = " ".join(f"{uploads[i].name} {refused[i].why}" for i in (first[:1] if all_of_it else first))
        raise HTTPException(refused[first[0]].status, said + more)


def _work(served: Served, kind: str) -> Callable[[np.ndarray], Any]:
    """Return what to do with a batch; equal for requests that may share one: bound methods of one classifier are."""
    return served.classifier.recognize if kind == "predict" else served.classifier.transform


def _add_predictions(app: FastAPI, pipeline: _Pipeline) -> None:
    @app.post("/predict", response_model=schemas.Predictions, summary="Which class images show", **_POST)
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=1, le=100, description="how many of the likeliest classes")] = 3,
        always_name: Annotated[bool, Query(description="name a class also where the answer would be unknown")] = False,
    ) -> Response:
        found = await pipeline.answer(request, "predict")
        made: list[dict[str, Any]] = []
        for names, rows in found.good:
            entries = answers.predictions(names, rows.result, rows.start, top=top, always_name=always_name)
            places = found.served.plane.places(rows.result.embeddings[rows.start : rows.stop])
            made += [{**entry, "place": at} for entry, at in zip(entries, places, strict=True)]
        return JSONResponse(found.document("predictions", made))

    @app.post("/embed", response_model=schemas.Embeddings, summary="The embeddings of images", **_POST)
    async def embed(request: Request) -> Response:
        found = await pipeline.answer(request, "embed")
        made: list[dict[str, Any]] = []
        for names, rows in found.good:
            made += answers.embeddings(names, rows.result[rows.start : rows.stop])
        return JSONResponse(found.document("embeddings", made))


def _add_facts(app: FastAPI, watched: Watched) -> None:
    def document(name: str) -> Response:
        return Response(watched.served.documents[name], media_type="application/json")

    private = schemas.refusals(401)

    @app.get("/classes", response_model=schemas.Classes, responses=private, summary="All classes")
    async def classes() -> Response:
        return document("classes")

    @app.get("/model", response_model=schemas.ModelFacts, responses=private, summary="What the model is")
    async def model() -> Response:
        return document("model")

    @app.get("/map", response_model=schemas.Map, responses=private, summary="The prototypes after each task, in 2-D")
    async def prototypes() -> Response:
        return document("map")


def _add_health(app: FastAPI, pipeline: _Pipeline) -> None:
    watched = pipeline.watched

    @app.get("/healthz", response_model=schemas.Health, summary="Whether the server lives; needs no token")
    async def healthz() -> Response:
        # Without a token anybody may ask: the reason, which may name paths, goes to the log.
        problem = "a newer version cannot be read" if watched.problem else ""
        return JSONResponse({"status": "ok", "version": watched.served.current.version, "problem": problem})

    @app.get(
        "/readyz",
        response_model=schemas.Ready,
        responses={503: {"model": schemas.Ready, "description": "send requests elsewhere"}},
        summary="Whether it answers photos in time; needs no token",
    )
    async def readyz() -> Response:
        problem = "the server is stopping" if app.state.stopping else pipeline.problem
        body = {"ready": not problem, "version": watched.served.current.version, "problem": problem}
        return JSONResponse(body, 503 if problem else 200)


def _add_teaching(app: FastAPI, pipeline: _Pipeline, teacher: Teacher) -> None:
    refusals = schemas.refusals(400, 401, 403, 408, 413, 415, 422, 429)

    @app.post(
        "/teach",
        response_model=schemas.Accepted,
        status_code=202,
        summary="Teach a class",
        openapi_extra=schemas.IMAGES_BODY,
        responses=refusals,
    )
    async def teach(
        request: Request, name: Annotated[str, Query(alias="class", description="what the photos show")]
    ) -> Response:
        uploads, refused, good = await pipeline.read(request, pipeline.watched.served.size)
        job = _queued(lambda: teacher.teach(name, np.stack(good)))
        errors = [{"file": uploads[i].name, "error": one.why} for i, one in refused.items()]
        return JSONResponse({"job": job.document(), "errors": errors}, 202)

    @app.post(
        "/undo", response_model=schemas.Accepted, status_code=202, summary="Go back one version", responses=refusals
    )
    async def undo(
        version: Annotated[int, Query(description="the version to go back from; refused if it is not the newest")],
    ) -> Response:
        return JSONResponse({"job": _queued(lambda: teacher.undo(version)).document(), "errors": []}, 202)

    @app.get("/jobs", response_model=schemas.Jobs, responses=schemas.refusals(401), summary="What is being learned")
    async def jobs() -> Response:
        version = pipeline.watched.served.current.version
        return JSONResponse({"version": version, "jobs": await asyncio.to_thread(teacher.documents)})


def _queued(add: Callable[[], Job]) -> Job:
    try:
        return add()
    except InputError as error:
        raise HTTPException(422, str(error)) from None
    except Busy as error:
        raise HTTPException(429, str(error), {"retry-after": "1"}) from None


def _add_metrics(app: FastAPI, pipeline: _Pipeline) -> Observe:
    from .metrics import CONTENT_TYPE, Metrics

    connections, batcher, decoders = app.state.connections, pipeline.batcher, pipeline.decoders
    paths = frozenset(route.path for route in app.routes if isinstance(route, APIRoute))
    metrics = Metrics(
        paths,
        {
            "version": ("version that answers", lambda: pipeline.watched.served.current.version),
            "connections": ("open connections", lambda: len(connections.open)),
            "connections_dropped_total": ("connections closed by a limit", lambda: connections.dropped),
            "pictures_waiting": ("pictures that wait for a decoder", lambda: decoders.waiting),
            "decoders_killed_total": ("decoders that a picture ended", lambda: decoders.killed),
            "images_answered_total": ("images with an answer", lambda: pipeline.answered),
            "images_refused_total": ("images that could not be read", lambda: pipeline.refused),
            "batches_total": ("forward passes", lambda: batcher.batches),
            "batched_images_total": ("images in them", lambda: batcher.images),
        },
    )

    @app.get("/metrics", include_in_schema=False)
    async def read() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    return metrics.observe


def _add_page(app: FastAPI, *, teaches: bool) -> None:
    folder = resources.files(__package__).joinpath("page")
    index = folder.joinpath("index.html").read_bytes()
    if teaches:
        index = index.replace(b"<html ", b"<html data-teaches ", 1)
    assets = {name: folder.joinpath(name).read_bytes() for name in ASSETS if name != "style.css"}
    assets["style.css"] = style().encode()  # the report's: one product, one look

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(index, media_type="text/html")

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in assets:
            return JSONResponse({"detail": "there is no such page."}, 404)
        return Response(assets[name], media_type=ASSETS[name], headers={"cache-control": "no-cache"})
