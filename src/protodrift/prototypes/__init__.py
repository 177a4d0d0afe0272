"""Every class is its mean embedding (Eq. 3), and what little else a read-out needs."""

from .covariance import Covariance, Tensors
from .store import ClassSums, Prototypes, class_means

__all__ = ["ClassSums", "Covariance", "Prototypes", "Tensors", "class_means"]
