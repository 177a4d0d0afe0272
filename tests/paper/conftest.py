import pytest

from protodrift.data import Dataset, load_digits


@pytest.fixture(scope="session")
def digits_pair():
    """Twenty-four images of two digits, as a dataset."""
    train = load_digits().train
    rows = [i for label in (3, 8) for i in [j for j, y in enumerate(train.labels) if y == label][:12]]
    return Dataset(train.images[rows], [train.labels[i] for i in rows], name="3 and 8")
