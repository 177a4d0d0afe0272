"""The metrics against naive loops and scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from protodrift import metrics
from protodrift.metrics import auroc, expected_calibration_error, mean_average_precision, recall_at


@pytest.fixture
def acc():
    rng = np.random.default_rng(0)
    matrix = rng.random((5, 5))
    matrix[np.triu_indices(5, 1)] = np.nan
    return matrix


def test_an_accuracy_matrix_is_its_rows_and_nothing_above_the_diagonal(acc):
    np.testing.assert_array_equal(metrics.accuracy_matrix([acc[k, : k + 1] for k in range(5)]), acc)
    with pytest.raises(ValueError, match="row 2 of an accuracy matrix has 2 accuracies, got 1"):
        metrics.accuracy_matrix([[0.9], [0.5]])


def test_average_accuracy_is_the_mean_over_tasks(acc):
    naive = [sum(acc[k][j] for j in range(k + 1)) / (k + 1) for k in range(5)]
    assert metrics.average_accuracy(acc).tolist() == pytest.approx(naive)


def test_overall_accuracy_is_the_share_of_right_images(acc):
    counts = [50, 5, 5, 20, 1]
    naive = [sum(acc[k][j] * counts[j] for j in range(k + 1)) / sum(counts[: k + 1]) for k in range(5)]
    assert metrics.overall_accuracy(acc, counts).tolist() == pytest.approx(naive)


def test_average_forgetting_is_the_drop_from_the_best_earlier_accuracy(acc):
    f = metrics.average_forgetting(acc)
    assert np.isnan(f[0])
    for k in range(1, 5):
        drops = [max(acc[i][j] - acc[k][j] for i in range(j, k)) for j in range(k)]
        assert f[k] == pytest.approx(sum(drops) / k)


def test_a_task_that_became_better_has_negative_forgetting():
    assert metrics.average_forgetting(np.array([[0.5, np.nan], [0.7, 0.9]]))[1] == pytest.approx(-0.2)


def test_a_task_without_test_images_does_not_count():
    acc = np.array([[0.9, np.nan], [0.5, np.nan]])
    assert metrics.overall_accuracy(acc, [10, 0]).tolist() == [0.9, 0.5]
    assert np.isnan(metrics.overall_accuracy(np.array([[np.nan]]), [0])).all()


def test_a_row_of_the_matrix_and_overall_accuracy_agree_with_scikit_learn():
    rng = np.random.default_rng(1)
    tasks = [["a", "b"], ["c"], ["d", "e", "f"]]
    labels = [label for task in tasks for label in task]
    y_true, y_pred = rng.choice(labels, 300).tolist(), rng.choice(labels, 300).tolist()
    row = metrics.task_accuracies(y_true, y_pred, tasks)
    counts = []
    for j, task in enumerate(tasks):
        rows = [i for i, y in enumerate(y_true) if y in task]
        counts.append(len(rows))
        expected = sklearn.metrics.accuracy_score([y_true[i] for i in rows], [y_pred[i] for i in rows])
        assert row[j] == pytest.approx(expected)
    acc = np.full((3, 3), np.nan)
    acc[2] = row
    acc[0, 0] = acc[1, 0] = acc[1, 1] = 0
    overall = metrics.overall_accuracy(acc, counts)[2]
    assert overall == pytest.approx(sklearn.metrics.accuracy_score(y_true, y_pred))


@pytest.mark.parametrize("labels", [[30, 2, 100], ["b", "a", "c"], [1, 2**63 + 5, 2**63 + 7]])
def test_a_confusion_matrix_counts_pairs_in_the_order_of_the_classes(labels):
    rng = np.random.default_rng(2)
    y_true, y_pred = ([labels[i] for i in rng.integers(0, 3, 80)] for _ in range(2))
    expected = [[sum((t, p) == pair for pair in zip(y_true, y_pred, strict=True)) for p in labels] for t in labels]
    assert metrics.confusion_matrix(y_true, y_pred, labels).tolist() == expected


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(T, T\)"):
        metrics.average_accuracy(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="2 true labels but 1"):
        metrics.confusion_matrix(["a", "b"], ["a"], ["a", "b"])


def test_auroc_and_calibration_error_against_others():
    from sklearn.metrics import roc_auc_score

    rng = np.random.RandomState(0)
    positive, negative = rng.randint(0, 20, 70) + 2.0, rng.randint(0, 20, 50) * 1.0  # with ties
    truth = np.repeat([1, 0], [70, 50])
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(truth, np.concatenate([positive, negative])))
    assert np.isnan(auroc(positive, np.array([])))
    assert auroc(np.array([np.inf, 2.0]), np.array([1.0, np.inf])) == 0.625
    confidence = rng.rand(200)
    right = rng.rand(200) < confidence**2
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    assert expected_calibration_error(confidence, right) == pytest.approx(total)


def test_retrieval_against_scikit_learn():
    from sklearn.metrics import average_precision_score
    from sklearn.neighbors import NearestNeighbors

    rng = np.random.RandomState(1)
    labels = np.array(list("aaabbbbccd"))
    z = rng.randn(10, 3) + 100  # far from the origin, where squares cancel
    nearest = NearestNeighbors(n_neighbors=10).fit(z).kneighbors(z)[1][:, 1:]
    shared = [i for i in range(10) if labels[i] != "d"]
    for k in (1, 2, 4):
        expected = np.mean([(labels[nearest[i, :k]] == labels[i]).any() for i in shared])
        assert recall_at(z, labels, [k])[k] == pytest.approx(expected)
    precisions = []
    for i in shared:
        others = [j for j in range(10) if j != i]
        distance = np.linalg.norm(z[others] - z[i], axis=1)
        precisions.append(average_precision_score(labels[others] == labels[i], -distance))
    assert mean_average_precision(z, labels) == pytest.approx(np.mean(precisions))
    assert np.isnan(mean_average_precision(z[:2], np.array(["a", "b"])))
