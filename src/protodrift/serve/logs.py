"""Log lines limited in rate: a client that misbehaves a thousand times a second does not fill a disk."""

from __future__ import annotations

import logging


class Rate(logging.Filter):
    """Lets a few lines of each kind through in a while; the next one after that says how many were left out.

    Args:
        lines: of one kind in that time.
        seconds: that time.
    """

    KINDS = 100
    """How many kinds are told apart; others count as one."""

    def __init__(self, lines: int = 5, seconds: float = 10.0) -> None:
        super().__init__()
        self.lines, self.seconds = lines, seconds
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written. Its kind is its text before values are put in."""
        kind = str(record.msg) if str(record.msg) in self._kinds or len(self._kinds) < self.KINDS else ""
        began, count = self._kinds.get(kind, (record.created, 0))
        if record.created - began >= self.seconds:
            left_out = count - self.lines
            began, count = record.created, 0
            if left_out > 0:
                record.msg = f"{record.getMessage()} (and {left_out:,} more such lines were left out)"
                record.args = None
        self._kinds[kind] = (began, count + 1)
        return count < self.lines


def limit_rate() -> None:
    """Limit what this package and uvicorn log."""
    for name in ("uvicorn.error", __package__):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Rate) for one in logger.filters):
            logger.addFilter(Rate())
