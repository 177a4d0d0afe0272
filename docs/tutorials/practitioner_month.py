# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # A practitioner's month
#
# You sort pictures into folders, one folder per class. Each month new classes come, and last month's pictures are
# gone. This notebook goes through two months: learn, ask, look at mistakes, put them right, go back. It ran while
# this page was built.
#
# The "photos" are scikit-learn's handwritten digits, written to disk as PNG files, so that the notebook needs no
# download. With your own photos the commands are the same.

# %%
import tempfile
from pathlib import Path

from PIL import Image

from protodrift.data import load_digits

here = Path(tempfile.mkdtemp())
digits = load_digits()


def write(folder: str, part, classes, first: int, last: int) -> None:
    """Write images first to last of each class as folder/<class>/<number>.png, 64 x 64."""
    for label in classes:
        images = part.of_classes([label]).images[first:last]
        (here / folder / f"digit-{label}").mkdir(parents=True)
        for number, image in enumerate(images):
            pixels = Image.fromarray((image.squeeze().numpy() * (255 / 16)).astype("uint8"))
            pixels.resize((64, 64), Image.Resampling.BICUBIC).save(
                here / folder / f"digit-{label}" / f"{number:03}.png"
            )


write("january", digits.train, range(4), 0, 30)
write("february", digits.train, range(4, 8), 0, 30)
write("test", digits.test, range(8), 0, 20)
write("strangers", digits.test, range(8, 10), 0, 20)
sorted(str(path.relative_to(here)) for path in here.glob("*/*"))[:6]

# %% [markdown]
# ## January: the first folder
#
# `learn` makes a model. With the extra `pretrained` it takes a network that was trained on ImageNet, and leaves it as
# it is.

# %%
# %cd -q {here}
# !protodrift learn model january

# %% [markdown]
# One picture, asked about:

# %%
# !protodrift predict model test/digit-2/000.png

# %% [markdown]
# ## February: new classes
#
# January's pictures are not needed any more. To show it, they are deleted.

# %%
import shutil

shutil.rmtree(here / "january")

# %%
# !protodrift learn model february

# %% [markdown]
# ## What it gets wrong
#
# `evaluate` takes pictures that the model has not learned from, in class folders. Classes it was never taught count
# as strangers.

# %%
# !cp -r test all && cp -r strangers/* all/
# !protodrift evaluate model all

# %% [markdown]
# Read the table from left to right: how many pictures, how often right, how far its confidence is from the truth, and
# how many known pictures it called unknown. `--html report.html` writes a page with every mistake.
#
# ## Putting it right
#
# More pictures of a class that it knows:

# %%
write("more", digits.train, [3], 30, 60)
# !protodrift learn model more --known refresh

# %% [markdown]
# Every change is a version. `undo` goes back, `inspect` says what is there, and that no picture is.

# %%
# !protodrift undo model
# !protodrift inspect model

# %% [markdown]
# ## The same from Python

# %%
from protodrift import IncrementalClassifier

clf = IncrementalClassifier.load(here / "model")
answer = clf.recognize([here / "test/digit-5/001.png", here / "strangers/digit-8/001.png"])
print("class      ", list(clf.classes_[answer.probabilities.argmax(axis=1)]))
print("how sure   ", [f"{p:.0%}" for p in answer.probabilities.max(axis=1)])
print("is unknown ", answer.unknown.tolist())

# %% [markdown]
# Next: [the guide for practitioners](../guide_practitioner.md), [serving a model](../serving.md), [how sure an answer
# is](../calibration.md).
