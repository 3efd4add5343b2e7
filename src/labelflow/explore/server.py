"""The routes of the page: its files, the pictures, uploads, and answers. Nothing is read from or written to a path that
a client names; what a client sends is checked here, and refused with a sentence."""

import io
import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from labelflow.classifier import Classifier
from labelflow.explore.answer import Box, answer
from labelflow.explore.guard import Guard
from labelflow.explore.uploads import BYTES, Shelf, decode

Value = TypeVar("Value")

QUESTION_BYTES = 4096
REQUEST_SECONDS = 30  # seconds in which a request has to have arrived
PARALLEL_UPLOADS = 4  # uploads that are read at a time
MAX_WAITING = 8  # requests that may wait for their turn
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/stage.js": ("stage.js", "text/javascript"),
    "/curve.js": ("curve.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


UNTRAINED = "Random weights: this model is not trained."


def make_app(models: Sequence[Classifier], shelf: Shelf, hosts: Collection[str] = (), token: str = "") -> ASGIApp:
    """The page's server. hosts: names under which it may be called, besides localhost and addresses in digits.

    token: what visitors have to know; empty: nothing.
    """
    one_answer = anyio.CapacityLimiter(1)  # followers keep state
    few_uploads, one_decoding = anyio.CapacityLimiter(PARALLEL_UPLOADS), anyio.CapacityLimiter(1)  # images are large

    async def setup(request: Request) -> Response:
        offered = [
            {"name": one.name, "note": "" if one.trained else UNTRAINED, "size": one.preprocessing.size}
            for one in models
        ]
        images = [{"id": key, "name": name} for key, name in shelf.names.items()]
        return JSONResponse({"models": offered, "images": images, "megabytes": BYTES // 1_000_000})

    async def picture(request: Request) -> Response:
        image = _checked(partial(shelf.get, request.path_params["image"]), status=404)
        return Response(await anyio.to_thread.run_sync(_jpeg, image), media_type="image/jpeg")

    async def upload(request: Request) -> Response:
        _check_length(request, BYTES)
        _check_crowd(few_uploads)
        async with few_uploads:
            file = await _body(request, BYTES)
            image = await anyio.to_thread.run_sync(_checked, partial(decode, file), limiter=one_decoding)
        return JSONResponse({"id": shelf.add(image)})

    async def ask(request: Request) -> Response:
        _check_length(request, QUESTION_BYTES)
        question = _question(await _body(request, QUESTION_BYTES))
        classifier = _chosen(models, question.get("model"))
        own, other = (_checked(partial(shelf.get, str(question.get(name)))) for name in ("own", "partner"))
        box = _checked(partial(_box, question.get("box")))
        _check_crowd(one_answer)
        async with one_answer:
            if await request.is_disconnected():  # while it waited
                raise ClientDisconnect
            result = await anyio.to_thread.run_sync(_checked, partial(answer, classifier, own, other, box))
        return JSONResponse(result)

    routes = [
        *(Route(path, partial(_file, name, kind)) for path, (name, kind) in FILES.items()),
        Route("/setup", setup),
        Route("/picture/{image}", picture),
        Route("/images", upload, methods=["POST"]),
        Route("/answer", ask, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _refused, ClientDisconnect: _refused, Exception: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts, token)


async def _file(name: str, kind: str, request: Request) -> Response:
    return Response(Path(__file__).with_name(name).read_bytes(), media_type=kind)


async def _refused(request: Request, problem: Exception) -> Response:
    """What was wrong, as JSON."""
    if isinstance(problem, HTTPException):
        return JSONResponse({"error": problem.detail}, problem.status_code, problem.headers)
    return JSONResponse({"error": "the request was cut off"}, 400)


async def _failed(request: Request, problem: Exception) -> Response:
    """Without details, which may be private; uvicorn prints them in the server's terminal."""
    return JSONResponse({"error": "the server failed; its terminal shows the error"}, 500)


async def _body(request: Request, most: int) -> bytes:
    """What was sent, read no further and waited for no longer than is allowed."""
    body = bytearray()
    try:
        with anyio.fail_after(REQUEST_SECONDS):
            async for chunk in request.stream():
                body += chunk
                _check_bytes(len(body), most)
    except TimeoutError:
        late = f"the request did not arrive within {REQUEST_SECONDS} seconds; try a smaller file or a faster connection"
        raise HTTPException(408, late, {"Connection": "close"}) from None  # which ends what is still being sent
    return bytes(body)


def _check_length(request: Request, most: int) -> None:
    """By what the request says of itself, before anything is read."""
    _check_bytes(int(request.headers.get("content-length", 0)), most)


def _check_bytes(count: int, most: int) -> None:
    if count > most:
        large = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most} bytes"
        raise HTTPException(413, f"the request is larger than {large}; choose a smaller file")


def _check_crowd(turns: anyio.CapacityLimiter) -> None:
    if turns.statistics().tasks_waiting >= MAX_WAITING:
        raise HTTPException(503, "the server is busy; try again in a moment")


def _checked(look: Callable[[], Value], status: int = 400) -> Value:
    """What a function returns; the ValueError that it raises, as an answer."""
    try:
        return look()
    except ValueError as error:
        raise HTTPException(status, str(error)) from None


def _question(body: bytes) -> dict[str, Any]:
    try:
        question = json.loads(body)
    except (ValueError, RecursionError):
        question = None
    if not isinstance(question, dict):
        raise HTTPException(400, "the request must be a JSON object with model, own, partner and box")
    return question


def _chosen(models: Sequence[Classifier], number: Any) -> Classifier:
    if type(number) is not int or not 0 <= number < len(models):
        raise HTTPException(400, f"model must be an index from 0 to {len(models) - 1}")
    return models[number]


def _box(values: Any) -> Box:
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != 4 or not all(0 <= value <= 1 for value in values):
        raise ValueError("box must be four fractions of the image, from 0 to 1: left, top, right, bottom")
    box = Box(*map(float, values))
    if box.left > box.right or box.top > box.bottom:
        raise ValueError("box must have left <= right and top <= bottom")
    return box


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()
