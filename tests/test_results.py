"""What results/ claims is what its data says."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import drift_readouts, drift_table, equal_rates
from benchmarks.compare import Cell, summarize
from protodrift.report import not_learned, summaries
from protodrift.report.claims import TOLERANCE, by_recipe, claims_markdown, claims_of, judge_all

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def digits():
    document = json.loads((RESULTS / "digits.json").read_text())
    table = {}
    for entry in document["results"]:
        table.setdefault(entry["method"], []).append(entry)
    assert all(sorted(entry["seed"] for entry in entries) == [0, 1, 2, 3, 4] for entries in table.values())
    return table


def final(entries, key="average_accuracy"):
    return np.mean([entry[key][-1] for entry in entries])


def test_sdc_brings_old_prototypes_nearer_in_every_seed(digits):
    for plain, moved in zip(digits["E-FT"], digits["E-FT+SDC"], strict=True):
        assert moved["old_prototype_distance"][-1] < plain["old_prototype_distance"][-1]


@pytest.mark.parametrize("name", ["E-FT", "E-EWC", "E-MAS", "E-SI"])
def test_sdc_gains_and_the_oracle_gains_more(digits, name):
    assert final(digits[name]) < final(digits[f"{name}+SDC"]) < final(digits[f"{name}+oracle"])


def test_joint_training_is_on_top(digits):
    best = max(final(entries) for name, entries in digits.items() if name != "Joint")
    assert final(digits["Joint"]) > best


@pytest.mark.parametrize("name", ["iCaRL-CNN", "iCaRL-NME", "Rebalance"])
def test_exemplars_are_above_fine_tuning(digits, name):
    assert final(digits[name]) > final(digits["FT"])


def test_the_relation_that_fails_is_reported_as_it_is(digits):
    assert final(digits["E-FT"]) < final(digits["FT"])
    assert "E-FT above FT | **no**: 51.6 against 77.4" in (RESULTS / "digits.md").read_text()


def test_every_printed_accuracy_is_the_measured_one(digits):
    lines = (RESULTS / "digits.md").read_text().splitlines()
    printed = {}
    for line in lines:
        if line.startswith("|") and "±" in line:
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            name = name.replace(r"\*", "\0").strip("*").replace("\0", "*")  # emphasis off, the star of FT* kept
            printed[name] = cells[4].strip("*").split(" ±")[0]
    assert printed == {name: f"{100 * final(entries):.1f}" for name, entries in digits.items()}


def targets_of(name, heading=""):
    """The table of a page in results/, or the one below a heading: method -> cells."""
    text = (RESULTS / f"{name}.md").read_text()
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {method.replace("\\", ""): values for method, *values in cells}


@pytest.fixture(scope="module")
def eleven():
    """Method -> seed -> what was measured."""
    found: dict[str, dict] = {}
    for entry in json.loads((RESULTS / "cifar100_eleven.json").read_text())["results"]:
        found.setdefault(entry["method"], {})[entry["seed"]] = entry
    return found


@pytest.fixture(scope="module")
def birds():
    document = json.loads((RESULTS / "cub200_six.json").read_text())
    return {entry["method"]: entry for entry in document["results"]}


@pytest.mark.parametrize(
    ("page", "heading", "data"),
    [
        ("cifar100_eleven", "", "cifar100_eleven"),
        ("cifar100_ten", "", "cifar100_ten"),
        ("cub200_six", "", "cub200_six"),
        ("cub200_losses", "Multi-similarity", "cub200_multi_similarity"),
        ("cub200_losses", "Angular", "cub200_angular"),
        ("photos", "CUB-200-2011", "cub200_frontier"),
        ("photos", "Flowers-102", "flowers102_frontier"),
        ("photos", "Caltech-101", "caltech101_frontier"),
        ("mnist_2d", "", "mnist_2d"),
        ("flowers102_six", "", "flowers102_six"),
        ("photos", "Seventy classes that nothing was chosen on", "cub200_frontier_untuned"),
    ],
)
def test_a_page_is_what_was_measured(page, heading, data):
    table = targets_of(page, heading)
    measured: dict[str, list] = {}
    for entry in json.loads((RESULTS / f"{data}.json").read_text())["results"]:
        measured.setdefault(entry["method"], []).append(entry)
    assert set(table) == set(measured)
    for name, (overall, _, average, new, first, later, forgetting, distance) in table.items():
        entries = measured[name]
        matrices = np.array([entry["accuracy_matrix"][-1] for entry in entries])
        last = {key: [entry[key][-1] for entry in entries] for key in ("overall_accuracy", "average_forgetting")}
        for cell, values in (
            (overall, last["overall_accuracy"]),
            (average, matrices.mean(axis=1)),
            (new, [np.mean(np.diag(entry["accuracy_matrix"])[1:]) for entry in entries]),
            (first, matrices[:, 0]),
            (later, matrices[:, 1:].mean(axis=1)),
            (forgetting, last["average_forgetting"]),
        ):
            mean, _, spread = cell.partition(" ± ")
            assert float(mean) == pytest.approx(100 * np.mean(values), abs=0.051)
            assert bool(spread) == (len(entries) > 1)
            if spread:
                assert float(spread) == pytest.approx(100 * np.std(values, ddof=1), abs=0.051)
        if distance != "–":
            there = [entry["old_prototype_distance"][-1] for entry in entries]
            assert float(distance) == pytest.approx(np.mean(there), abs=0.00051)


def test_what_the_page_of_photos_claims():
    page = (RESULTS / "photos.md").read_text()
    gains = []
    for data in ("cub200", "flowers102", "caltech101"):
        document = json.loads((RESULTS / f"{data}_frontier.json").read_text())
        last = {entry["method"]: 100 * entry["overall_accuracy"][-1] for entry in document["results"]}
        gains.append(f"{round(last['Learned+ridge'], 1) - round(last['Frozen'], 1):+.1f}")
        assert last["Learned+ridge"] > last["Learned"]
    assert "{} points on CUB, {} on Flowers and {} on Caltech".format(*gains) in page


@pytest.mark.parametrize(
    ("page", "named"), [("cifar100_eleven", ["FT", "LwF", "EWC", "MAS"]), ("cub200_six", ["LwF", "EWC", "MAS"])]
)
def test_rows_that_did_not_learn_are_named_on_their_page(page, named):
    """What `report` warns of stands on the page, as `report` says it."""
    warning = not_learned(summaries([json.loads((RESULTS / f"{page}.json").read_text())]))
    text = (RESULTS / f"{page}.md").read_text()
    told = warning.split("learned, ")[1].split("\u00a0%")[0]
    assert [part.rsplit(" ", 1)[0] for part in told.split(", ")] == named
    assert told in text


RUNS = [
    "cub200_six",
    "cifar100_eleven",
    "cifar100_joint",
    "cub200_multi_similarity",
    "cub200_angular",
    "mnist_2d",
    "flowers102_six",
]


@pytest.fixture(scope="module")
def judged():
    documents = by_recipe(json.loads((RESULTS / f"{name}.json").read_text()) for name in RUNS)
    return judge_all(claims_of("all"), documents)


def test_the_page_of_claims_prints_what_was_measured(judged):
    page = (RESULTS.parent / "docs" / "reproduction.md").read_text()
    assert claims_markdown(judged) in page
    assert "--runs " + " ".join(f"results/{name}.json" for name in RUNS) in page
    assert TOLERANCE in page


def test_no_claim_rests_on_a_row_that_did_not_learn(judged):
    told = {one.claim.text: one for one in judged}
    for text, row in (("CIFAR-100: E-FT above FT", 14.0), ("CIFAR-100: E-EWC+SDC above EWC", 5.8)):
        assert told[text].verdict.startswith("not shown: ")
        assert f" has {row} % on tasks just learned" in told[text].verdict
    for one in judged:
        compared = {row for _, row in one.claim.rows} & {"FT", "FT*", "LwF", "EWC", "MAS", "iCaRL-CNN", "Rebalance"}
        if compared and one.claim.recipe != "cifar100-joint":
            assert one.verdict.startswith(("not shown", "not run"))
    gain = told["CUB-200: SDC gains on E-FT"]
    assert gain.cells[1:] == ("+11.9", "+9.3 (1 seed)", "pass")
    assert told["CIFAR-100: SDC gains on E-FT"].cells[2].endswith("(3 seeds)")
    assert told["CUB-200: E-EWC above E-FT"].verdict == "sign only"
    assert told["CIFAR-100: joint training above all"].verdict == "pass"
    assert told["Cars-196: SDC gains on E-FT"].verdict == "not run: `protodrift reproduce TABLE4`, needs Cars-196"


def test_the_page_of_the_equal_search_prints_what_was_measured():
    document = json.loads((RESULTS / "cub200_rates.json").read_text())
    page = (RESULTS / "cub200_rates.md").read_text()
    assert equal_rates.table(document) in page
    assert equal_rates.crossed(document) in page
    rows = document["rows"]
    for row in rows.values():
        tried = {entry["rate"]: entry["task_mean"] for entry in row["tried"]}
        if row["rate"] is not None:
            assert {1e-5, 3e-5, 1e-4, 3e-4, 1e-3} <= set(tried)
            assert tried[row["rate"]] == max(tried.values())
    tried = {name: {entry["rate"]: entry["task_mean"] for entry in row["tried"]} for name, row in rows.items()}
    assert all(tried["E-FT"][rate] > tried["FT*"][rate] for rate in tried["E-FT"])  # at matched rates
    assert all(tried["E-FT+SDC"][rate] > tried["E-FT"][rate] for rate in tried["E-FT+SDC"])
    test = {name: row["test"]["task_mean"] for name, row in rows.items()}
    assert f"{test['E-FT'] - test['FT*']:+.1f}; above FT {test['E-FT'] - test['FT']:+.1f}" in page


def test_what_the_cifar_page_claims(eleven):
    printed = {"E-Fix": 46.3, "E-FT": 37.4, "E-FT+SDC": 44.8, "E-EWC": 40.8, "E-EWC+SDC": 46.1, "E-MAS": 43.1}
    printed |= {"E-MAS+SDC": 46.3, "E-LwF": 46.1, "E-LwF+SDC": 46.1}
    seeds = sorted(eleven["E-FT"])
    for name, number in printed.items():
        assert sorted(eleven[name]) == seeds
        assert all(100 * entry["overall_accuracy"][-1] >= number for entry in eleven[name].values())
    beside: list[float] = []  # plain rows against E-Fix on the later tasks
    for seed in seeds:
        last = {name: np.array(by[seed]["accuracy_matrix"][-1]) for name, by in eleven.items() if seed in by}
        for name in ("E-FT", "E-EWC", "E-MAS"):
            plain, moved = (eleven[row][seed]["overall_accuracy"][1:] for row in (name, f"{name}+SDC"))
            assert (np.array(moved) > np.array(plain)).all()
            beside.append(100 * (last[name][1:].mean() - last["E-Fix"][1:].mean()))
            there = [eleven[row][seed]["old_prototype_distance"][-1] for row in (name, f"{name}+SDC")]
            assert there[1] < there[0]
        for name in ("E-FT", "E-EWC", "E-MAS", "E-LwF"):  # the networks really learned the later tasks
            for prototypes in ("SDC", "oracle"):
                assert last[f"{name}+{prototypes}"][1:].mean() > last["E-Fix"][1:].mean()

    def mean(key, name):
        return np.mean([entry[key][-1] for entry in eleven[name].values()])

    assert max(eleven, key=lambda name: mean("overall_accuracy", name)) == "E-Pre"
    free = [name for name in eleven if "iCaRL" not in name and name != "Rebalance"]
    assert max(free, key=lambda name: mean("average_accuracy", name)) == "E-FT+SDC"
    for name in ("iCaRL-CNN", "Rebalance"):
        assert mean("average_accuracy", name) > mean("average_accuracy", "E-FT+SDC")
    forgotten = [100 * eleven[name][0]["average_forgetting"][-1] for name in ("Rebalance", "E-EWC+SDC")]
    assert f"{forgotten[0] - forgotten[1]:.1f}" == "18.7"
    first = {name: 100 * by[0]["overall_accuracy"][-1] for name, by in eleven.items()}
    told = [first["E-FT"] - first["FT"], first["E-FT"] - first["FT*"]]
    told += [first["E-EWC+SDC"] - first[name] for name in ("EWC", "iCaRL-CNN", "iCaRL-NME")]
    assert [f"{gain:+.1f}" for gain in told] == ["+42.5", "+41.5", "+33.8", "+10.4", "+9.0"]  # docs/reproduction.md
    page = (RESULTS / "cifar100_eleven.md").read_text()
    assert f"by seed {-min(beside):.1f} points below it to {max(beside):.1f} above" in page
    at_the_end = {n: np.mean([e["accuracy_matrix"][-1] for e in by.values()], axis=0) for n, by in eleven.items()}
    plain, moved = (int((at_the_end[n] > at_the_end["E-Fix"])[1:].sum()) for n in ("E-EWC", "E-EWC+SDC"))
    assert f"E-EWC is above E-Fix on {plain} of tasks 2 to 11, E-EWC+SDC on {moved} " in page
    gains = [mean("overall_accuracy", f"{n}+SDC") - mean("overall_accuracy", n) for n in ("E-FT", "E-EWC", "E-MAS")]
    assert "{:+.1f}, {:+.1f} and {:+.1f} points over all classes".format(*(100 * gain for gain in gains)) in page


def test_what_the_page_of_ten_tasks_claims():
    document = json.loads((RESULTS / "cifar100_ten.json").read_text())
    ten = {entry["method"]: entry for entry in document["results"]}
    last = {name: 100 * entry["overall_accuracy"][-1] for name, entry in ten.items()}
    gains = {name: last[f"{name}+SDC"] - last[name] for name in ("E-FT", "E-EWC", "E-MAS", "E-LwF")}
    assert [round(gain, 1) for gain in gains.values()] == [5.2, 3.7, 2.9, 0.7]
    for name in ("E-FT", "E-EWC", "E-MAS"):
        assert last[name] < last["E-Fix"]
    for name in ("E-EWC", "E-MAS", "E-LwF"):
        assert last[f"{name}+SDC"] > last["E-Fix"]
    for name in gains:
        later = np.mean(ten[f"{name}+SDC"]["accuracy_matrix"][-1][1:])
        assert later > np.mean(ten["E-Fix"]["accuracy_matrix"][-1][1:])


def test_what_the_cub_page_claims(birds):
    fixed = np.array(birds["E-Fix"]["accuracy_matrix"][-1])
    for name in ("E-FT", "E-EWC", "E-MAS"):
        plain, moved, oracle = birds[name], birds[f"{name}+SDC"], birds[f"{name}+oracle"]
        assert (np.array(moved["average_accuracy"][1:]) > np.array(plain["average_accuracy"][1:])).all()
        assert oracle["average_accuracy"][-1] - moved["average_accuracy"][-1] < 0.0055
    for name in ("E-FT", "E-EWC", "E-MAS", "E-LwF"):
        moved = birds[f"{name}+SDC"]
        assert moved["old_prototype_distance"][-1] < birds[name]["old_prototype_distance"][-1]
        assert moved["average_accuracy"][-1] > fixed.mean() > birds["E-Pre"]["average_accuracy"][-1]
        assert np.mean(moved["accuracy_matrix"][-1][1:]) > fixed[1:].mean()
    assert birds["E-EWC"]["average_accuracy"][-1] > birds["E-FT"]["average_accuracy"][-1]
    last = {name: 100 * entry["average_accuracy"][-1] for name, entry in birds.items()}
    page = (RESULTS / "cub200_six.md").read_text()
    assert "{:+.1f} and {:+.1f} points".format(*(last["E-FT"] - last[name] for name in ("FT", "FT*"))) in page
    assert "{:.1f} and {:.1f} above them".format(*(last["E-FT"] - last[name] for name in ("EWC", "MAS"))) in page
    assert f"{last['LwF'] - last['E-FT']:.1f} points above E-FT ({last['LwF']:.1f})" in page
    classifiers = max(last[name] for name in ("FT", "FT*", "LwF", "EWC", "MAS"))
    assert f"at least {min(last[name] for name in last if '+SDC' in name) - classifiers:.1f} points above all" in page
    free = [name for name in last if "oracle" not in name and name != "Joint"]
    assert f"{last['Joint']:.1f}: {last['Joint'] - max(last[name] for name in free):.1f} points above" in page
    best = max(birds[name]["average_accuracy"][-1] for name in free)
    assert round(1000 * birds["E-LwF+SDC"]["average_accuracy"][-1]) == round(1000 * best)


def test_what_the_page_of_losses_claims(birds):
    page = (RESULTS / "cub200_losses.md").read_text()
    every = {"triplet": {name: entry["average_accuracy"] for name, entry in birds.items()}}
    for loss in ("multi_similarity", "angular"):
        found = json.loads((RESULTS / f"cub200_{loss}.json").read_text())["results"]
        every[loss] = {entry["method"]: entry["average_accuracy"] for entry in found}
    for loss, rows in every.items():
        for name in ("E-FT", "E-FT+SDC", "E-EWC", "E-EWC+SDC"):
            values = " | ".join(f"{100 * value:.1f}" for value in rows[name])
            assert f"| {name}, {loss.replace('_', '-')} | {values} |" in page
            if name.endswith("SDC"):  # after every task
                assert (np.array(rows[name][1:]) > np.array(rows[name[:-4]][1:])).all()

    def gain(loss, name, task):
        return f"{100 * (every[loss][name][task] - every['triplet'][name][task]):+.1f}"

    def gains(loss):
        moved = [100 * (every[loss][f"{name}+SDC"][-1] - every[loss][name][-1]) for name in ("E-FT", "E-EWC")]
        return "{:+.1f} and {:+.1f}".format(*moved)

    assert f"{gain('multi_similarity', 'E-FT', 0)} points over triplets in task 1" in page
    assert f"{gain('multi_similarity', 'E-FT', -1)} for E-FT after task 6" in page
    assert f"{gain('multi_similarity', 'E-FT+SDC', -1)} for E-FT+SDC" in page
    assert f"by {gain('angular', 'E-FT', 0)[1:]} points" in page
    assert f"E-FT is {gain('angular', 'E-FT', -1)[1:]} points above" in page
    assert f"E-FT+SDC {gain('angular', 'E-FT+SDC', -1)[1:]} below" in page
    assert f"{gains('multi_similarity')} points with multi-similarity" in page
    assert f"{gains('angular')} with angular" in page


def test_joint_training_is_above_all_rows_of_eleven_tasks(eleven):
    entry = json.loads((RESULTS / "cifar100_joint.json").read_text())["results"][0]
    joint = 100 * entry["overall_accuracy"][-1]
    best = max(100 * np.mean([e["overall_accuracy"][-1] for e in by.values()]) for by in eleven.values())
    page = (RESULTS / "cifar100_eleven.md").read_text()
    assert f"**{joint:.1f}** over all classes" in page
    assert f"The best row above is {joint - best:.1f} points below" in page


@pytest.fixture(scope="module")
def drift():
    """The cells of results/drift.json: those that were chosen on, and those that are reported."""
    cells = [Cell(**one) for one in json.loads((RESULTS / "drift.json").read_text())]
    chosen = [c for c in cells if drift_table.chosen_on(c, ["cifar100-ten", "cifar100-eleven:E-FT,E-LwF"])]
    return chosen, [c for c in cells if c not in chosen]


def test_the_drift_page_prints_what_was_measured(drift):
    chosen, reported = drift
    page = (RESULTS / "drift.md").read_text()
    for part in (drift_table.narrow(chosen, large=True), drift_table.narrow(reported, large=True)):
        assert part in page
    assert drift_table.narrow(reported, large=False) in page
    assert drift_table.against(reported, "gated local linear", "SDC 0.3") in page


def test_what_the_drift_page_claims(drift):
    chosen, reported = drift
    assert {c.seed for c in chosen} == {0}
    told = {one.estimator: one for one in summarize(reported)}
    ours, sdc = told["gated local linear"], told["SDC 0.3"]
    page = (RESULTS / "drift.md").read_text()
    assert f"gated, closes {ours.gap_closed:.2f} of the gap, SDC {sdc.gap_closed:.2f}**" in page
    assert ours.gap_closed > sdc.gap_closed
    assert ours.gap_closed < 1.3 * sdc.gap_closed  # the aim that is not met
    assert ours.relative_error < 0.7 * sdc.relative_error
    for setting in ("cifar100-ten", "cifar100-eleven"):
        part = {one.estimator: one for one in summarize(c for c in reported if c.setting == setting)}
        assert part["gated local linear"].gap_closed > 1.3 * part["SDC 0.3"].gap_closed
    gated = [c.gain for c in (*chosen, *reported) if c.estimator.startswith("gated")]
    assert min(gated) > -0.0013


def test_the_drift_pages_of_full_trainings_and_read_outs_print_what_was_measured():
    cells = [Cell(**one) for one in json.loads((RESULTS / "drift_cpu.json").read_text())]
    page = (RESULTS / "drift_cpu.md").read_text()
    for part in (drift_table.narrow(cells, large=True), drift_table.narrow(cells, large=False)):
        assert part in page
    assert drift_table.against(cells, "gated local linear", "SDC 0.3") in page
    told = {one.estimator: one for one in summarize(cells)}
    ours, sdc = told["gated local linear"], told["SDC 0.3"]
    assert f"closes {ours.gap_closed:.2f} of the gap, SDC {sdc.gap_closed:.2f}**" in page
    assert min(c.gain for c in cells if c.estimator.startswith("gated")) > -0.0022
    assert f"closes {told['ADC 25'].gap_closed:.2f}: nearly as much as SDC on CUB" in page
    assert len(cells) == 12 * len(told)
    readouts = json.loads((RESULTS / "drift_readouts.json").read_text())
    assert drift_readouts.tables(readouts) in (RESULTS / "drift.md").read_text()
    for setting in ("cifar100-ten", "cifar100-eleven", "cub200-six"):
        own = {(r["readout"], r["drift"]): r["overall"] for r in readouts if r["setting"] == setting}
        for readout in ("ridge", "Mahalanobis"):
            assert own[readout, "gated local linear"] > own[readout, "SDC 0.3"]
        assert max(own, key=lambda pair: own[pair] * (pair[1] == "gated local linear"))[0] == "ridge"


def test_the_gap_closed_by_adc_and_by_estimators_that_keep_covariances(drift):
    page = (RESULTS / "drift.md").read_text()
    chosen, reported = drift
    rows = page.split("## ADC")[1].split("## ")[0].splitlines()
    for cell in json.loads((RESULTS / "drift_adc.json").read_text()):
        closed = (cell["accuracy"] - cell["none"]) / (cell["oracle"] - cell["none"])
        name = {"ADC": "ADC, ", "ADC 25": "ADC 25, "}.get(cell["estimator"], cell["estimator"])
        line = next(line for line in rows if line.startswith(f"| {name}"))
        column = {"cifar100-ten": 2, "cifar100-eleven": 3}[cell["setting"]]
        assert line.split("|")[column].strip() == f"{closed:.2f}"
    told = {one.estimator: one for one in summarize(reported)}
    assert f"ADC closes {told['ADC 25'].gap_closed:.2f} of the gap, SDC {told['SDC 0.3'].gap_closed:.2f}**" in page
    for setting in ("cifar100-ten", "cifar100-eleven", "cub200-six"):
        part = {one.estimator: one for one in summarize([c for c in reported if c.setting == setting])}
        assert part["ADC 25"].gap_closed < part["SDC 0.3"].gap_closed
    cells = {(c.setting, c.method, c.seed, c.estimator): c for c in (*chosen, *reported)}
    for row in json.loads((RESULTS / "drift_readouts.json").read_text()):  # both files tell of the same trainings
        cell = cells.get((row["setting"], row["method"], row["seed"], row["drift"]))
        if cell is not None and row["readout"] == "nearest mean":
            assert cell.accuracy == pytest.approx(row["overall"], abs=1e-6)
    trainings = {key[:3] for key in cells}
    assert len(trainings) == 36
    assert all((*one, name) in cells for one in trainings for name in {key[3] for key in cells})
