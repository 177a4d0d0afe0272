"""The metrics against naive loops and scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from protodrift import metrics


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


def test_confusion_matrix_agrees_with_scikit_learn():
    rng = np.random.default_rng(2)
    labels = [30, 2, 100]
    y_true, y_pred = rng.choice(labels, 80).tolist(), rng.choice(labels, 80).tolist()
    expected = sklearn.metrics.confusion_matrix(y_true, y_pred, labels=labels)
    np.testing.assert_array_equal(metrics.confusion_matrix(y_true, y_pred, labels), expected)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(T, T\)"):
        metrics.average_accuracy(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="2 true labels but 1"):
        metrics.confusion_matrix(["a", "b"], ["a"], ["a", "b"])
