"""Ranks as torchrun starts them: equal to one process, killed in the middle, resumed with as many and with others."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from protodrift.distributed.world import STEP_TIMEOUT

pytestmark = pytest.mark.slow

THERE = Path(__file__).parents[1] / "distributed"
SETTINGS = ["--methods", "E-EWC+SDC", "--set", "training.epochs=5", "--set", "tasks=2", "--threads", "1"]


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"distributed_{name}", THERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


ranks, program = load("ranks"), load("program")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return ranks.run(1, tmp_path_factory.mktemp("one"), *program.TRAININGS, "rotations")


@pytest.mark.parametrize("size", [2, 4])
def test_twenty_steps_in_float64_are_those_of_one_process(one, tmp_path, size):
    """All methods: losses, weights, gradients, statistics of every step; importances and memory after each task."""
    many = ranks.run(size, tmp_path, *program.TRAININGS, "rotations")
    for scenario in program.TRAININGS:
        assert f"0/{scenario}/task2/{program.STEPS}/loss" in one
    for name, expected in one.items():
        for rank in range(size):
            found = many[f"{rank}/{name.removeprefix('0/')}"]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-8, msg=f"rank {rank} of {size}: {name}")


def test_no_rank_of_a_run_holds_all_embeddings(tmp_path):
    """200 MB of them in each pass: a rank has blocks of 2 MB, and the first one looks at files."""
    one, two = (ranks.run(size, tmp_path, "large") for size in (1, 2))
    assert float(two["1/large/stages"]) < 60
    assert float(two["0/large/stages"]) < 150
    assert float(two["0/large/read-outs"]) < 80
    assert float(one["0/large/read-outs"]) > 400  # alone all of them are in memory: what is measured can be seen
    for name in ("E-FT", "E-FT+SDC"):
        torch.testing.assert_close(two[f"0/large/{name}"], one[f"0/large/{name}"], rtol=0, atol=0.01, equal_nan=True)


def command(size: int, *arguments: str) -> list[str]:
    """Return the command line of `protodrift` on so many ranks; one rank is a plain process."""
    if size == 1:
        return [sys.executable, "-m", "protodrift", *arguments]
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(size), "--master_port", "0"]
    return [sys.executable, *launcher, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "-m", "protodrift",
            *arguments]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(size: int, *arguments: str) -> str:
    ended = subprocess.run(command(size, *arguments), capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def started(size: int, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(command(size, *arguments), stdout=stream, stderr=stream, env=environment())


def rank_pid(launcher: int, rank: int) -> int:
    """Find a rank among the children of torchrun."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables:
            return int(child)
    raise AssertionError(f"no rank {rank} among the children of {launcher}")


def wait_for(what, process: subprocess.Popen[bytes]) -> None:
    for _ in range(6000):
        if what():
            return
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def kill_in_the_middle(size: int, victim: int, log: Path, there, *arguments: str) -> None:
    """Kill a rank once `there()`; all must end within a minute and say what happened."""
    process = started(size, log, *arguments)
    wait_for(there, process)
    os.kill(rank_pid(process.pid, victim), signal.SIGKILL)
    assert process.wait(timeout=60) == 1
    said = log.read_text()
    assert f"protodrift: error: rank {victim} of {size} ended in the middle" in said
    assert said.count("protodrift: error:") == 1
    assert "run the same command again" in said


def stages(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    files = sorted((run / "stages").glob("*/*.safetensors"))
    return {str(file.relative_to(run)): load_file(file) for file in files}


def accuracies(run: Path) -> torch.Tensor:
    (result,) = json.loads((run / "results.json").read_text())["results"]
    return torch.tensor([[100 * (a or 0) for a in row] for row in result["accuracy_matrix"]])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run undisturbed: by one process, and by two ranks."""
    out = tmp_path_factory.mktemp("runs")
    finished(1, "run", "digits", *SETTINGS, "--out", str(out / "1"))
    finished(2, "run", "digits", *SETTINGS, "--out", str(out / "2"))
    return out


def test_accuracies_in_float32_are_those_of_one_process(runs):
    torch.testing.assert_close(accuracies(runs / "2"), accuracies(runs / "1"), rtol=0, atol=0.5)
    assert json.loads((runs / "2" / "results.json").read_text())["environment"]["ranks"] == 2
    assert "ranks" not in json.loads((runs / "1" / "run.json").read_text())


def test_names_of_stages_tell_the_number_of_ranks(runs):
    assert not set(stages(runs / "1")) & set(stages(runs / "2"))


def test_a_killed_rank_ends_all_and_the_run_goes_on_to_the_same_bits(runs, tmp_path):
    arguments = ["run", "digits", *SETTINGS, "--out", str(tmp_path / "run")]
    epochs = tmp_path / "run" / "epochs"
    kill_in_the_middle(2, 1, tmp_path / "log", lambda: any(epochs.glob("train-*.2")), *arguments)
    assert any(epochs.iterdir())
    finished(2, *arguments)
    undisturbed, resumed = stages(runs / "2"), stages(tmp_path / "run")
    assert resumed.keys() == undisturbed.keys()
    for name, tensors in undisturbed.items():
        for part, value in tensors.items():
            assert torch.equal(resumed[name][part], value), f"{name}: {part}"


@pytest.mark.parametrize("size", [1, 3])
def test_a_run_goes_on_with_another_number_of_ranks(runs, tmp_path, size):
    arguments = ["run", "digits", *SETTINGS, "--out", str(tmp_path / "run")]
    epochs = tmp_path / "run" / "epochs"
    kill_in_the_middle(2, 1, tmp_path / "log", lambda: any(epochs.glob("train-*.3")), *arguments)
    taken = next(epochs.glob("train-*.3"))
    first = load_file(taken / "network.safetensors")
    finished(size, *arguments)
    assert set(stages(tmp_path / "run")) == set(stages(runs / "2"))  # the names that it began with
    torch.testing.assert_close(accuracies(tmp_path / "run"), accuracies(runs / "2"), rtol=0, atol=0.5)
    name = f"stages/{taken.name.rsplit('.', 1)[0]}/network.safetensors"
    end, expected = stages(tmp_path / "run")[name], stages(runs / "2")[name]
    for part, value in expected.items():  # two epochs lie between: it went on from the third, not from the beginning
        if value.is_floating_point():
            assert (end[part] - value).abs().max() <= 0.05 * (first[part] - value).abs().max() + 1e-5, part


def test_a_rank_that_hangs_in_a_step_is_given_up(tmp_path):
    """After five seconds here; else before a minute is over."""
    assert STEP_TIMEOUT.total_seconds() < 60
    first, hanging = ranks.start(2, [str(tmp_path), "hangs"])
    try:
        said = first.communicate(timeout=60)[1]
        assert first.returncode == 1
        assert "error: rank 1 of 2 ended in the middle, or does not answer any more" in said
    finally:
        hanging.kill()
        hanging.communicate()


def test_an_error_on_one_rank_is_told_once_and_ends_all(tmp_path):
    processes = ranks.start(2, [str(tmp_path), "diverge"])
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    assert "error: photos/ is not there (rank 1 of 2)" in said[1]
    assert "error" not in said[0]


def test_a_training_that_diverges_on_all_ranks_is_told_once(tmp_path):
    processes = ranks.start(2, [str(tmp_path), "blows_up"])
    said = "".join(process.communicate(timeout=60)[1] for process in processes)
    assert [process.returncode for process in processes] == [1, 1]
    assert said.count("error: training diverged in task 1") == 1


def test_torchrun_starts_ranks_again_and_the_run_goes_on(runs, tmp_path):
    epochs = tmp_path / "run" / "epochs"
    line = command(2, "run", "digits", *SETTINGS, "--out", str(tmp_path / "run"))
    line[3:3] = ["--max-restarts", "2"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment())
    wait_for(lambda: any(epochs.glob("train-*.2")), process)
    os.kill(rank_pid(process.pid, 0), signal.SIGKILL)
    assert process.wait(timeout=300) == 0, (tmp_path / "log").read_text()
    assert torch.equal(accuracies(tmp_path / "run"), accuracies(runs / "2"))


def test_other_commands_and_engines_are_refused(tmp_path):
    ended = subprocess.run(command(2, "recipes"), capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("only `run` and `learn` share work among them") == 1
    together = command(2, "run", "digits", "--jobs", "2", "--out", str(tmp_path / "run"))
    ended = subprocess.run(together, capture_output=True, text=True, env=environment(), check=False)
    assert ended.returncode == 1
    assert "Use one of them" in ended.stderr
    assert not (tmp_path / "run").exists()


def photos(folder: Path, classes: list[int]) -> None:
    from PIL import Image

    data = program.rows_of_digits(classes, 12)
    for number, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        target = folder / f"digit{label}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = (image[0].float() / image.max() * 255).byte().numpy()
        Image.fromarray(pixels).resize((32, 32)).convert("RGB").save(target / f"{number}.png")


def test_a_killed_task_goes_on_to_the_same_model(tmp_path):
    photos(tmp_path / "first", [0, 1, 2])
    new = ["--train", "--size", "32", "--epochs", "5"]
    arguments = {name: ["learn", str(tmp_path / name), str(tmp_path / "first"), *new] for name in ("calm", "killed")}
    finished(2, *arguments["calm"])
    epochs = tmp_path / "killed.learning" / "epochs"
    kill_in_the_middle(2, 1, tmp_path / "log", lambda: any(epochs.glob("learn-*.2")), *arguments["killed"])
    assert not (tmp_path / "killed" / "CURRENT").exists()
    assert "went on after epoch" in finished(2, *arguments["killed"])
    calm, killed = (
        {file.name: load_file(file) for file in sorted((tmp_path / name / "versions" / "1").glob("*.safetensors"))}
        for name in ("calm", "killed")
    )
    assert calm.keys() == killed.keys()
    for file, tensors in calm.items():
        for name, value in tensors.items():
            assert torch.equal(killed[file][name], value), f"{file}: {name}"
