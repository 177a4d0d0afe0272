"""The routes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from .. import __version__
from ..common.machine import usable_cpus
from ..model import answers
from ..report.page import style
from . import images, schemas
from .batching import Batcher, Rows
from .guard import Guard
from .limits import Limits
from .watching import Served, Watched

logger = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two reads of CURRENT."""

ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "map.js": "text/javascript", "style.css": "text/css"}

_POST: dict[str, Any] = {
    "openapi_extra": schemas.IMAGES_BODY,
    "responses": schemas.refusals(400, 401, 408, 413, 415, 422, 429, 504),
}


def build_app(
    watched: Watched,
    limits: Limits = Limits(),
    *,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    poll: float = POLL,
) -> FastAPI:
    """Return the application that serves a model.

    Args:
        watched: the model directory.
        limits: how much a client may send.
        token: what clients must know; None: nothing.
        hosts: names that clients may call this server by; None: any.
        poll: seconds between two checks for a new version.
    """
    images.admit(limits)
    pipeline = _Pipeline(watched, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_watch(watched, poll))
        try:
            yield
        finally:
            watcher.cancel()
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
    app.add_middleware(Guard, limits=limits, token=token, hosts=hosts)
    _add_predictions(app, pipeline)
    _add_facts(app, watched)
    _add_page(app)
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


class _Pipeline:
    """Reads the images of a request, has them decoded and computed, and returns the rows of the result."""

    def __init__(self, watched: Watched, limits: Limits) -> None:
        self.watched, self.limits = watched, limits
        self.batcher = Batcher()
        self.decoders = ThreadPoolExecutor(max(2, min(4, usable_cpus())), "decoding")

    async def answer(self, request: Request, kind: str) -> tuple[Served, list[str], Rows]:
        deadline = time.monotonic() + self.limits.seconds
        uploads = await images.read_uploads(request, self.limits)
        served = self.watched.served  # from here on this request belongs to one version, whatever comes after it
        names = [upload.name for upload in uploads]
        decode = functools.partial(images.decode, uploads, served.size, self.limits, deadline)
        pixels = await asyncio.get_running_loop().run_in_executor(self.decoders, decode)
        rows = await asyncio.wrap_future(self.batcher.submit(_work(served, kind), pixels))
        return served, names, rows

    def close(self) -> None:
        self.decoders.shutdown()
        self.batcher.close()


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
        served, names, rows = await pipeline.answer(request, "predict")
        made = answers.predictions(names, rows.result, rows.start, top=top, always_name=always_name)
        return JSONResponse({"version": served.current.version, "predictions": made})

    @app.post("/embed", response_model=schemas.Embeddings, summary="The embeddings of images", **_POST)
    async def embed(request: Request) -> Response:
        served, names, rows = await pipeline.answer(request, "embed")
        made = answers.embeddings(names, rows.result[rows.start : rows.stop])
        return JSONResponse({"version": served.current.version, "embeddings": made})


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

    @app.get("/healthz", response_model=schemas.Health, summary="Whether the server answers; needs no token")
    async def healthz() -> Response:
        # Without a token anybody may ask: the reason, which may name paths, goes to the log.
        problem = "a newer version cannot be read" if watched.problem else ""
        return JSONResponse({"status": "ok", "version": watched.served.current.version, "problem": problem})


def _add_page(app: FastAPI) -> None:
    folder = resources.files(__package__).joinpath("page")
    index = folder.joinpath("index.html").read_bytes()
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
