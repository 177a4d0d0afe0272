"""The answers of the API for its OpenAPI description, with examples."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

Label = str | int


class Ranked(BaseModel):
    """A class that an image may show."""

    label: Label = Field(alias="class", examples=["robin"])
    confidence: float | None = Field(description="calibrated, 0 to 1; all classes together give 1", examples=[0.93])
    distance: float | None = Field(description="Euclidean, to the prototype of the class", examples=[0.31])


class Prediction(BaseModel):
    """What one image shows."""

    file: str = Field(examples=["garden.jpg"])
    label: Label | None = Field(alias="class", description="null if unknown", examples=["robin"])
    best: Label = Field(description="the likeliest class, also of an image that is unknown", examples=["robin"])
    unknown: bool = Field(description="whether it is probably none of the classes", examples=[False])
    novelty: float | None = Field(
        description="how far from the class, over the limit that the unknown rate sets; above 1: unknown",
        examples=[0.62],
    )
    top: list[Ranked] = Field(description="the likeliest classes, the likeliest first")
    place: list[float] | None = Field(description="x and y on the map", examples=[[0.12, -0.3]])


class Unread(BaseModel):
    """Why an image of a request has no answer; the others have one all the same."""

    file: str = Field(examples=["notes.txt"])
    error: str = Field(examples=["cannot be read as an image (not an image, or damaged)."])


class Counted(BaseModel):
    """How many images of a request have an answer. If none has, the request is refused."""

    version: int = Field(examples=[3])
    answered: int = Field(examples=[2])
    refused: int = Field(examples=[1])


class Predictions(Counted):
    """Answers, all of one version of the model, in the order of the images."""

    predictions: list[Prediction | Unread]


class Embedding(BaseModel):
    """The embedding of one image."""

    file: str = Field(examples=["garden.jpg"])
    embedding: list[float] = Field(examples=[[0.12, -0.08, 0.31]])


class Embeddings(Counted):
    """Embeddings, all of one version of the model: those of different versions must not be compared."""

    embeddings: list[Embedding | Unread]


class Moved(BaseModel):
    """How far drift compensation moved a prototype in a task, and how far it may be off after that."""

    task: int = Field(examples=[2])
    distance: float | None = Field(examples=[0.11])
    uncertainty: float | None = Field(examples=[0.05])


class ClassFacts(BaseModel):
    """What is known about a class."""

    label: Label = Field(alias="class", examples=["robin"])
    task: int = Field(description="in which it was learned, counted from 1", examples=[1])
    images: int = Field(examples=[48])
    held_out_images: int = Field(description="images behind its confidence", examples=[9])
    moved: list[Moved]


class Classes(BaseModel):
    """All classes."""

    version: int = Field(examples=[3])
    classes: list[ClassFacts]


class TaskFacts(BaseModel):
    """What a task brought. Accuracy was measured when it was learned, among all classes known by then."""

    task: int = Field(examples=[2])
    source: str = Field(examples=["2026-11"])
    classes: int = Field(examples=[4])
    images: int = Field(examples=[190])
    refreshed: int = Field(description="known classes that got more images", examples=[0])
    epochs: int = Field(examples=[10])
    note: str = Field(examples=[""])
    held_out_images: int = Field(examples=[38])
    held_out_accuracy: float | None = Field(examples=[0.92])
    mean_moved: float | None = Field(examples=[0.1])
    mean_uncertainty: float | None = Field(examples=[0.04])


class ModelFacts(BaseModel):
    """What the model is."""

    name: str = Field(examples=["birds"])
    version: int = Field(examples=[3])
    classes: int = Field(examples=[12])
    backbone: str = Field(examples=["resnet18"])
    parameters: int = Field(examples=[11_440_000])
    embedding_dim: int = Field(examples=[512])
    image_size: int = Field(examples=[64])
    drift: str | None = Field(examples=["SDC"])
    readout: str = Field(examples=["NearestClassMean"])
    tasks: list[TaskFacts]


class MapStep(BaseModel):
    """All prototypes after a task; lists have one value per class, null where it was not learned yet."""

    task: int = Field(examples=[2])
    x: list[float | None]
    y: list[float | None]
    moved: list[float | None]
    uncertainty: list[float | None]


class Map(BaseModel):
    """Prototypes on one plane, after each task whose version is kept."""

    version: int = Field(examples=[3])
    classes: list[Label]
    learned_in: list[int]
    images: list[int]
    variance_shown: float = Field(description="share of the variance that the plane shows", examples=[0.61])
    steps: list[MapStep]
    total_moved: list[float]


class Health(BaseModel):
    """Whether the server answers, and with which version."""

    status: str = Field(examples=["ok"])
    version: int = Field(examples=[3])
    problem: str = Field(description="why a newer version is not served; empty if there is none", examples=[""])


class Ready(BaseModel):
    """Whether photos are answered in time."""

    ready: bool = Field(examples=[True])
    version: int = Field(examples=[3])
    problem: str = Field(description="why they are not; empty if they are", examples=[""])


class Change(BaseModel):
    """A change of the model: photos of a class that are learned, or a version that is undone."""

    number: int = Field(examples=[7])
    what: str = Field(description="teach or undo", examples=["teach"])
    label: Label | None = Field(alias="class", examples=["robin"])
    images: int = Field(examples=[5])
    state: str = Field(description="waiting, learning, done or failed", examples=["learning"])
    epoch: int = Field(description="of the training; 0 of 0 where the network is left as it is", examples=[0])
    epochs: int = Field(examples=[0])
    version: int | None = Field(description="that the model is after it", examples=[4])
    why: str = Field(description="it failed; nothing has changed then", examples=[""])
    seconds: float = Field(examples=[0.8])


class Accepted(BaseModel):
    """A change that waits in the queue; `GET /jobs` says how it goes. No photo is kept after it."""

    job: Change
    errors: list[Unread] = Field(description="photos that could not be read")


class Jobs(BaseModel):
    """The changes that are remembered, the newest first."""

    version: int = Field(description="that answers now", examples=[4])
    jobs: list[Change]


class Refused(BaseModel):
    """Why a request was refused."""

    detail: str = Field(examples=["more than 64 images in one request. Send several requests."])


_WHY = {
    400: "malformed multipart/form-data",
    401: "the token is missing or wrong",
    403: "a page of another site sent it",
    408: "the upload took too long",
    413: "too many bytes, images or pixels",
    415: "neither an image nor multipart/form-data",
    422: "no image at all, or none that can be read",
    429: "too many requests are in work; try again",
    504: "the answer took too long",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of refusals."""
    return {status: {"model": Refused, "description": _WHY[status]} for status in statuses}


IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image as the body, or one or many as files of a form. Examples: "
        "curl --data-binary @a.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict and "
        "curl -F images=@a.jpg -F images=@b.jpg http://127.0.0.1:8000/predict",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                    "required": ["images"],
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
"""The body of `POST /predict` and `POST /embed`."""
