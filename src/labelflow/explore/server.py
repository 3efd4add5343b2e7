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
PATIENCE = 30  # seconds in which a request has to have arrived
UPLOADING = 4  # uploads that are read at a time
WAITING = 8  # requests that may wait for their turn
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/stage.js": ("stage.js", "text/javascript"),
    "/curve.js": ("curve.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


UNTRAINED = "Its weights are random: it has learnt nothing yet."


def make_app(models: Sequence[Classifier], shelf: Shelf, hosts: Collection[str] = ()) -> ASGIApp:
    """The page's server. hosts: names under which it may be called, besides localhost and addresses in digits."""
    one_answer = anyio.CapacityLimiter(1)  # followers keep state
    few_uploads, one_decoding = anyio.CapacityLimiter(UPLOADING), anyio.CapacityLimiter(1)  # images are large

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
        asked = _question(await _body(request, QUESTION_BYTES))
        classifier = _chosen(models, asked.get("model"))
        own, other = (_checked(partial(shelf.get, str(asked.get(name)))) for name in ("own", "partner"))
        box = _checked(partial(_box, asked.get("box")))
        _check_crowd(one_answer)
        async with one_answer:
            if await request.is_disconnected():  # while it waited
                raise ClientDisconnect
            told = await anyio.to_thread.run_sync(_checked, partial(answer, classifier, own, other, box))
        return JSONResponse(told)

    routes = [
        *(Route(path, partial(_file, name, kind)) for path, (name, kind) in FILES.items()),
        Route("/setup", setup),
        Route("/picture/{image}", picture),
        Route("/images", upload, methods=["POST"]),
        Route("/answer", ask, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _told, ClientDisconnect: _told, Exception: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)


async def _file(name: str, kind: str, request: Request) -> Response:
    return Response(Path(__file__).with_name(name).read_bytes(), media_type=kind)


async def _told(request: Request, problem: Exception) -> Response:
    """What was wrong, in words."""
    if isinstance(problem, HTTPException):
        return JSONResponse({"error": problem.detail}, problem.status_code, problem.headers)
    return JSONResponse({"error": "the request broke off"}, 400)


async def _failed(request: Request, problem: Exception) -> Response:
    """No details, which may be nobody's business; uvicorn prints them where the server runs."""
    return JSONResponse({"error": "the server could not work this out; it has printed why, where it runs"}, 500)


async def _body(request: Request, most: int) -> bytes:
    """What was sent, read no further and waited for no longer than is allowed."""
    body = bytearray()
    try:
        with anyio.fail_after(PATIENCE):
            async for chunk in request.stream():
                body += chunk
                _check_bytes(len(body), most)
    except TimeoutError:
        late = f"that did not arrive within {PATIENCE} seconds; choose a smaller file, or a faster connection"
        raise HTTPException(408, late, {"Connection": "close"}) from None  # which ends what is still being sent
    return bytes(body)


def _check_length(request: Request, most: int) -> None:
    """By what the request says of itself, before anything is read."""
    _check_bytes(int(request.headers.get("content-length", 0)), most)


def _check_bytes(count: int, most: int) -> None:
    if count > most:
        large = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most} bytes"
        raise HTTPException(413, f"that is more than {large}; choose a smaller file")


def _check_crowd(turns: anyio.CapacityLimiter) -> None:
    if turns.statistics().tasks_waiting >= WAITING:
        raise HTTPException(503, "too many others are waiting for their turn; try again in a moment")


def _checked(look: Callable[[], Value], status: int = 400) -> Value:
    """What a function returns; the ValueError that it raises, as an answer."""
    try:
        return look()
    except ValueError as error:
        raise HTTPException(status, str(error)) from None


def _question(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise HTTPException(400, "a question is a JSON object with model, own, partner and box")
    return asked


def _chosen(models: Sequence[Classifier], number: Any) -> Classifier:
    if type(number) is not int or not 0 <= number < len(models):
        raise HTTPException(400, f"model must be a number from 0 to {len(models) - 1}, of the models that are offered")
    return models[number]


def _box(values: Any) -> Box:
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != 4 or not all(0 <= value <= 1 for value in values):
        raise ValueError("box must be four numbers from 0 to 1: left, top, right and bottom, in parts of the image")
    box = Box(*map(float, values))
    if box.left > box.right or box.top > box.bottom:
        raise ValueError("box must have its left before its right, and its top above its bottom")
    return box


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()
