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
        pixels: of one image, as its header says, before anything is decoded; more is 413.
        images: in one request; more is 413.
        in_flight: requests with images that are worked on at a time; one more is 429.
        seconds: for a whole request. An upload that is not complete by then is 408, an answer that is not ready is 504.
    """

    body: int = 32 * 2**20
    pixels: int = 50_000_000
    images: int = 64
    in_flight: int = 64
    seconds: float = 30.0
    rules: ClassVar[Mapping[str, Rule]] = {
        "body": whole(1),
        "pixels": whole(1),
        "images": whole(1),
        "in_flight": whole(1),
        "seconds": number(above=0),
    }
