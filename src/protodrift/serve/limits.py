"""How much one client may ask of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..common.config import Config, Rule, number, whole


@dataclass(frozen=True)
class Limits(Config):
    """What is refused, and with which status.

    Args:
        body: bytes of a request; more is 413.
        pixels: of one image that would be decoded, as its header says; more is 413. A large JPEG is decoded smaller.
        images: in one request; more is 413.
        in_flight: requests with images that are worked on at a time; one more is 429. One client gets 7 of 8 of them.
        seconds: for a whole request. An upload that is not complete by then is 408, an answer that is not ready is 504.
        request_pixels: of all images of a request; more is 413.
        image_seconds: of processor time for decoding one image; then its process is ended.
        held: bytes of all requests together, while they come and are decoded; more is 429.
        connections: open ones. One more closes the oldest that waits for a request; if there is none, it is 503.
        half_open: connections whose request has not come whole for two seconds. One more closes the oldest of the
            client with most.
        head_seconds: until the first line and headers of a request are complete; then 408.
    """

    body: int = 32 * 2**20
    pixels: int = 50_000_000
    images: int = 64
    in_flight: int = 256
    seconds: float = 30.0
    request_pixels: int = 1_000_000_000
    image_seconds: float = 10.0
    held: int = 512 * 2**20
    connections: int = 512
    half_open: int = 128
    head_seconds: float = 10.0
    rules: ClassVar[Mapping[str, Rule]] = {
        "body": whole(1),
        "pixels": whole(1),
        "images": whole(1),
        "in_flight": whole(1),
        "seconds": number(above=0),
        "request_pixels": whole(1),
        "image_seconds": number(above=0),
        "held": whole(1),
        "connections": whole(2),
        "half_open": whole(1),
        "head_seconds": number(above=0),
    }
