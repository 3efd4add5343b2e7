"""`labelflow explore`: a web page to play with."""

import errno
import ipaddress
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

if TYPE_CHECKING:
    from PIL import Image

    from labelflow.classifier import Classifier

QUICKSTART = "runs/quickstart"
SMALL = "vit_tiny_patch16_224(img_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=3, num_classes=10)"
SCENES = (5, 14, 0, 3, 8, 17, 11, 22)  # of the sample world, of eight classes
SCENE_SIDE = 256


def explore(
    models: Positional[tuple[str, ...]] = (),
    images: tuple[Path, ...] = (),
    weights: str = "",
    port: int = 7860,
    host: str = "127.0.0.1",
) -> None:
    """A web page to play with: mix two images, drag the box, and watch the labels move through a model.

    Args:
        models: Run folders or timm models; default: runs/quickstart if it exists, or a small ViT.
        images: Image files to offer on the page, besides scenes of the sample world.
        weights: For timm models: pretrained (the default), packaged, random, or a file; for runs: best (the default),
            last, or a file. For a single model: deit_tiny_patch16_224=random.
        port: The port; 0: any free port.
        host: The address to listen on. With another than 127.0.0.1, other machines can reach the page,
            and it asks for the token in the address that is printed.
    """
    try:
        import uvicorn

        from labelflow.explore import Shelf, make_app
        from labelflow.explore.connections import Connection
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("anyio", "starlette", "uvicorn"):
            raise
        raise ValueError("labelflow explore needs starlette and uvicorn: pip install starlette uvicorn") from None

    listening = listen(host, port)
    with listening:
        local = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
        token = "" if local else secrets.token_urlsafe()
        names = {host, socket.gethostname()}
        app = make_app(offered(models, weights), Shelf(examples(images)), names, token)
        if token:
            print("labelflow: other machines can reach this page; whoever has the token can use it", file=sys.stderr)
        print(f"Open {' or '.join(addresses(listening, token))} in a browser. Press Ctrl-C to stop.", flush=True)
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            http=Connection,
            timeout_graceful_shutdown=1,
        )
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        except KeyboardInterrupt:
            print()


def offered(names: Sequence[str], weights: str = "") -> "list[Classifier]":
    """The models that the page offers, each tried out: those given, or the quickstart's, or a small one."""
    from labelflow.classifier import load
    from labelflow.explore import try_out

    names = list(dict.fromkeys(names)) or ([QUICKSTART] if (Path(QUICKSTART) / "recipe.json").exists() else [SMALL])
    found = []
    for number, name in enumerate(names, start=1):
        if len(names) > 1:
            print(f"Trying out {name} ({number} of {len(names)})", flush=True)
        small = name == SMALL
        classifier = replace(load(name, "random"), name="a small ViT") if small else load(name, weights)
        try_out(classifier)
        found.append(classifier)
    return found


def examples(files: Sequence[Path] = ()) -> "list[tuple[str, Image.Image]]":
    """Squares and their names: the given files, then scenes of the sample world."""
    from labelflow.data.images import read_or_refuse
    from labelflow.data.world import World
    from labelflow.explore import square

    found = [(path.name, square(read_or_refuse(path))) for path in files]
    world = World("val", max(SCENES) + 1, SCENE_SIDE)
    for index in SCENES:
        image, label = world.load(index)
        found.append((world.classes[label], image))
    return found


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or a ValueError that says what to do."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port must be between 0 and 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; choose another, such as --port {port + 1}") from None
        raise ValueError(f"cannot listen on {host}, port {port}: {error}") from None


def addresses(listening: socket.socket, token: str = "") -> list[str]:
    """What to open in a browser; of a server that listens everywhere, on this machine and on others."""
    host, port = listening.getsockname()[:2]
    hosts = {"0.0.0.0": ["127.0.0.1", socket.gethostname()], "::": ["::1", socket.gethostname()]}.get(host, [host])
    query = f"/?token={token}" if token else ""
    return [f"http://{f'[{one}]' if ':' in one else one}:{port}{query}" for one in hosts]
