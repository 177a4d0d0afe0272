"""The errors a user meets, and the one place that guesses what was meant.

Every message says what was wrong, what was got, and what to do. The classes derive from the built-in exception that
scikit-learn users already catch (`ValueError`, `FloatingPointError`, ...), so no caller has to know them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError


class ProtodriftError(Exception):
    """Base of all errors of this package; the command line prints them without a traceback."""


class InputError(ProtodriftError, ValueError):
    """Data or an argument that cannot be used."""


class TooLargeError(InputError):
    """An image with more pixels or bytes than are decoded, or that takes too long."""


class UnknownPartError(InputError):
    """A model or run names a part of somebody's own whose module is not imported; nothing is damaged."""


class ModelFileError(ProtodriftError, ValueError):
    """A model directory that is missing, damaged, newer than this version, or not a model at all."""


class StaleError(ModelFileError):
    """A model directory that somebody else wrote to: what was to be written was made from another version."""


class UnreadableError(ModelFileError):
    """A file that the disk did not give (an I/O error, missing permission); its content may be whole."""


class RunError(ProtodriftError, RuntimeError):
    """A run directory that cannot be used or written; what was finished is kept."""


if TYPE_CHECKING:

    class NotLearnedError(ProtodriftError, NotFittedError):  # type: ignore[misc]
        """Something was asked of a model that has not learned a task yet; a NotFittedError of scikit-learn."""


class NotFiniteError(ProtodriftError, FloatingPointError):
    """A part (a network, drift estimator, read-out, penalty) returned NaN or infinity. Nothing was changed."""


class DivergedError(NotFiniteError):
    """Training met a loss that is not finite. The model is what it was before the task."""


class CollapseWarning(RuntimeWarning):
    """All embeddings of a task fell together: the loss sits at its margin and nothing is learned."""


class ImportanceWarning(RuntimeWarning):
    """A penalty's importances are all zero, so it holds nothing."""


class NothingToTrainWarning(UserWarning):
    """A task that gives prototypes but no training signal; the network stays as it is."""


class SkippedImagesWarning(UserWarning):
    """Damaged images were left out of a dataset, as was asked for."""


def did_you_mean(name: object, choices: Iterable[object]) -> str:
    """Return the tail of an error message for an unknown `name`: the nearest choice, then all of them if they are few.

    >>> did_you_mean("E-EWC+SCD", ["E-FT", "E-EWC+SDC"])
    "Did you mean 'E-EWC+SDC'? Choices: 'E-EWC+SDC', 'E-FT'."
    """
    known = sorted(str(choice) for choice in choices)
    lowered = {choice.lower(): choice for choice in known}
    near = difflib.get_close_matches(str(name).lower(), list(lowered), n=3, cutoff=0.5)
    guess = f"Did you mean {lowered[near[0]]!r}? " if near else ""
    if near and len(known) > 30:
        return f"{guess}Near it: {', '.join(repr(lowered[name]) for name in near)}."
    return f"{guess}Choices: {', '.join(map(repr, known))}."


def __getattr__(name: str) -> Any:
    """Make `NotLearnedError` when it is first asked for: importing scikit-learn takes longer than `--help` should."""
    if name != "NotLearnedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError

    doc = "Something was asked of a model that has not learned a task yet; a NotFittedError of scikit-learn."
    made = type(name, (ProtodriftError, NotFittedError), {"__doc__": doc, "__module__": __name__})
    globals()[name] = made
    return made
