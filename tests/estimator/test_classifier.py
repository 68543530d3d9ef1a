"""Estimators as people use them: tasks, labels and inputs of all kinds, in whatever order they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, TensorDataset

from scale_cl import ContinualClassifier, ScaleClassifier, streams
from scale_cl.errors import ConfigError, DivergenceError, InputError, UnknownTaskError
from scale_cl.learners import registry
from tests.estimator.problems import blobs, pictures
from tests.learners.representatives import representatives

FIRST, SECOND = ("cat", "dog"), ("oak", "elm", "fir")


def two_tasks(model: Any) -> Any:
    return model.partial_fit(*blobs(FIRST, seed=1), task="animals").partial_fit(*blobs(SECOND, seed=2), task="trees")


@pytest.mark.parametrize("name", registry.names())
def test_every_learner_of_the_catalog_learns_a_task(name: str) -> None:
    x, y = blobs(FIRST)
    model = ContinualClassifier(name)
    if model.learner == "joint":
        with pytest.raises(ConfigError, match=r"all tasks shuffled together; give them at once, fit\(X, y, task=...\)"):
            model.partial_fit(x, y, task="pets")
        model.fit(x, y, task="pets")
    else:
        model.partial_fit(x, y, task="pets")
    assert model.learner_.name == name
    model.learner_.end_task()  # GDumb learns then
    assert model.score(x, y) > 0.9


def test_a_label_that_was_never_learnt_counts_as_wrong_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    x, y = blobs(FIRST)
    model = ContinualClassifier("er").partial_fit(x, y)
    known = model.score(x, y)
    assert not caplog.records
    assert model.score(np.concatenate([x, x]), np.concatenate([y, np.full(len(y), "stranger")])) == known / 2
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == (
        "scale_cl",
        "scale-cl: warning: never learnt: 'stranger'; samples with such labels count as wrong",
    )


@pytest.mark.parametrize(
    "name",
    [name if name in representatives() else pytest.param(name, marks=pytest.mark.soak) for name in registry.names()],
)
def test_default_settings_suit_feature_vectors(name: str) -> None:
    x, y = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    mixed, permuted = random.permutation(len(x)), random.permutation(x.shape[1])
    x, y = x[mixed], y[mixed]
    tasks, labels = {"a": x, "b": x[:, permuted]}, np.concatenate([y[:1000]] * 2)
    model = ContinualClassifier(name, scenario="domain", epochs=1)
    model.fit(np.concatenate([of[:1000] for of in tasks.values()]), labels, task=["a"] * 1000 + ["b"] * 1000)
    least = 0.6 if registry.entry(name).kind.needs_labels else 0.3  # of 50 labels per task
    assert min(model.score(of[1000:], y[1000:], task=task) for task, of in tasks.items()) > least


def test_tasks_and_labels_have_any_name_and_are_not_forgotten() -> None:
    model = two_tasks(ScaleClassifier())
    assert model.tasks_ == ["animals", "trees"]
    assert model.classes_.tolist() == sorted(FIRST + SECOND)
    for task, names, seed in (("animals", FIRST, 1), ("trees", SECOND, 2)):
        x, y = blobs(names, seed=seed)
        assert set(model.predict(x, task=task)) <= set(names)
        assert model.score(x, y, task=task) > 0.9


def test_probabilities_are_over_all_classes_and_zero_outside_the_task() -> None:
    model = two_tasks(ContinualClassifier())
    proba = model.predict_proba(blobs(FIRST)[0], task="animals")
    assert proba.shape == (120, 5)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-5)
    trees = [i for i, label in enumerate(model.classes_) if label in SECOND]
    assert (proba[:, trees] == 0).all()


def test_a_task_comes_back_with_a_new_class() -> None:
    model = two_tasks(ScaleClassifier())
    x, y = blobs((*FIRST, "eel"), seed=1)
    for _ in range(4):
        model.partial_fit(x, y, task="animals")
    assert model.tasks_ == ["animals", "trees"]
    assert model.score(x, y, task="animals") > 0.9
    assert set(model.predict(x, task="animals")) == {*FIRST, "eel"}


def test_domains_share_one_head_in_which_new_classes_appear() -> None:
    model = ContinualClassifier("er", scenario="domain")
    model.partial_fit(*blobs(("a", "b"), seed=1), task="lab").partial_fit(*blobs(("b", "c"), seed=2), task="field")
    assert model.learner_.net.heads.classes == [3]
    x, y = blobs(("a", "b"), seed=1)
    assert set(model.predict(x, task="lab")) == {"a", "b"}
    assert model.score(x, y, task="lab") > 0.7
    x, y = blobs(("b", "c"), seed=2)
    assert model.score(x, y, task="field") > 0.9
    model.partial_fit(*blobs(("c",), seed=3), task="lab")
    assert model.predict_proba(x[:1], task="lab").shape == (1, 3)


def test_one_sample_at_a_time_and_one_task_without_a_name() -> None:
    x, y = blobs(FIRST)
    model = ContinualClassifier()
    for i in range(len(x)):
        model.partial_fit(x[i : i + 1], y[i : i + 1])
    assert model.tasks_ == ["stream"]
    assert model.learner_.steps == len(x)
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("name", ["er", "scale"])
def test_classes_that_arrive_without_a_task_are_protected(name: str) -> None:
    model = ContinualClassifier(name)
    for labels, seed in ((FIRST, 1), (SECOND, 2)):
        x, y = blobs(labels, seed=seed)
        for _ in range(3):
            model.partial_fit(x, y)
    for labels, seed in ((FIRST, 1), (SECOND, 2)):
        x, y = blobs(labels, seed=seed)
        assert model.score(x, y) > 0.8
    with pytest.raises(InputError, match="came without a task"):
        model.partial_fit(x, y, task="pets")
    with pytest.raises(UnknownTaskError, match=r"'pets' was never seen; .* without a task; leave task out"):
        model.predict(x, task="pets")


def test_a_learner_that_needs_tasks_says_so() -> None:
    x, y = blobs(FIRST)
    for given in ((x, y), (iter([(x, y)]),)):
        with pytest.raises(ConfigError, match="gem must be told where tasks begin and end; name them"):
            ContinualClassifier("gem").partial_fit(*given)
    assert ContinualClassifier("gem").fit(x, y).tasks_ == ["default"]  # a data set is one task


@pytest.mark.parametrize("name", ["er", "scale"])
def test_one_head_for_all_classes_needs_no_task_to_predict(name: str) -> None:
    model = two_tasks(ContinualClassifier(name, scenario="class"))
    assert model.predict_proba(blobs(FIRST, seed=1)[0]).shape == (120, len(FIRST) + len(SECOND))
    scores = [model.score(*blobs(labels, seed=seed)) for labels, seed in ((FIRST, 1), (SECOND, 2))]
    assert min(scores) > 0.6
    assert set(model.predict(blobs(SECOND, seed=2)[0], task="trees")) <= {*SECOND, *(FIRST if name == "er" else ())}


def test_tasks_may_be_given_per_row() -> None:
    (x, y), (other, more) = blobs(FIRST, seed=1), blobs(SECOND, seed=2)
    task = ["animals"] * len(x) + ["trees"] * len(other)
    model = ContinualClassifier().partial_fit(np.concatenate([x, other]), np.concatenate([y, more]), task=task)
    assert model.tasks_ == ["animals", "trees"]
    assert model.score(x, y, task="animals") > 0.9


def test_a_call_is_cut_into_batches_and_a_loaders_batches_are_steps() -> None:
    x, y = blobs(FIRST, n=25)
    assert ContinualClassifier(batch_size=10).partial_fit(x, y).learner_.steps == 3
    numbers = torch.from_numpy((y == "dog").astype(np.int64))
    loader = DataLoader(TensorDataset(torch.from_numpy(x), numbers), batch_size=7)
    model = ContinualClassifier(batch_size=10).partial_fit(loader)
    assert model.learner_.steps == 4
    assert model.score(loader) == model.score(x, numbers)
    assert (model.predict(loader) == model.predict(x)).all()


def test_the_same_numbers_in_any_container_give_the_same_model() -> None:
    x, y = blobs(FIRST)
    expected = ContinualClassifier(epochs=1).fit(x, y).predict_proba(x)
    table = pd.DataFrame(x, columns=list("abcdef"))
    for inputs, labels in ((torch.from_numpy(x), list(y)), (x.tolist(), pd.Series(y)), (table, pd.Categorical(y))):
        model = ContinualClassifier(epochs=1).fit(inputs, labels)
        np.testing.assert_array_equal(model.predict_proba(inputs), expected)
    assert model.feature_names_in_.tolist() == list("abcdef")


def test_fit_forgets_and_learns_several_tasks_by_a_name_for_each_sample() -> None:
    (x1, y1), (x2, y2) = blobs(FIRST, seed=1), blobs(SECOND, seed=2)
    x, y, task = np.concatenate([x1, x2]), np.concatenate([y1, y2]), np.repeat([2023, 2024], 120)
    model = two_tasks(ContinualClassifier(epochs=2)).fit(x, y, task=task)
    assert model.tasks_ == ["2023", "2024"]
    assert model.score(x, y, task=task) > 0.9
    assert model.score(x1, y1, task=2023) > 0.9


def test_joint_training_sees_all_tasks_together() -> None:
    (x1, y1), (x2, y2) = blobs(FIRST, seed=1), blobs(SECOND, seed=2)
    x, y, task = np.concatenate([x1, x2]), np.concatenate([y1, y2]), np.repeat(["a", "b"], 120)
    model = ContinualClassifier("joint", epochs=3).fit(x, y, task=task)
    assert model.learner_.steps == 3 * 24
    assert model.score(x, y, task=task) > 0.9


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_every_layout_and_type(channels: int) -> None:
    x, y = pictures(channels=channels)
    model = ContinualClassifier(epochs=3).fit(x, y)
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    assert model.learner_.spec.shape == (channels, 8, 8)
    assert (model.predict(first) == model.predict(x)).all()
    assert (model.predict([torch.from_numpy(i) for i in first]) == model.predict(x)).all()
    assert model.score(x, y) > 0.9
    floats = ContinualClassifier(epochs=3).fit(first / 255.0, y)
    assert floats.learner_.spec.pixel_max is None
    assert floats.score(first / 255.0, y) > 0.9


@pytest.mark.parametrize("name", ["scale", "er"])
def test_unscaled_digits_reach_what_scaled_ones_do(name: str) -> None:
    stream = streams.load("digits", seed=0, tasks=2)
    factors = np.logspace(-9, 6, 64)
    accuracies = []
    for scale, offset in ((1 / 16, 0.0), (1.0, 0.0), (factors, 0.0), (1.0, 1.7e9)):
        model = ContinualClassifier(name, scenario="domain")
        for k in range(2):
            x, y = stream.train_data(k)
            model.partial_fit(x.flatten(1).numpy().astype(float) * scale + offset, y, task=k)
        parts = [stream.test_data(k) for k in range(2)]
        accuracies.append(
            np.mean([model.score(x.flatten(1).numpy() * scale + offset, y, task=k) for k, (x, y) in enumerate(parts)])
        )
    assert min(accuracies) > 0.85
    assert max(accuracies) - min(accuracies) < 0.01


def test_an_untold_task_is_the_only_one_else_an_error_or_inferred() -> None:
    x, y = blobs(FIRST, seed=1)
    model = ScaleClassifier().partial_fit(x, y, task="animals")
    assert (model.predict(x) == model.predict(x, task="animals")).all()
    assert (model.predict(x, task="infer") == model.predict(x)).all()
    model.partial_fit(*blobs(SECOND, seed=2), task="trees")
    with pytest.raises(InputError, match=r"several tasks were seen \('animals', 'trees'\).*task='infer'"):
        model.predict(x)
    with pytest.raises(InputError, match="several tasks were seen"):
        model.partial_fit(x, y)
    with pytest.raises(UnknownTaskError, match="'stones' was never seen; tasks seen: 'animals', 'trees'"):
        model.predict(x, task="stones")


@pytest.mark.parametrize(("name", "least"), [("scale", 0.9), ("er", 0.9), ("finetune", 0.4)])
def test_the_task_is_found_by_the_models_own_evidence(name: str, least: float) -> None:
    model = two_tasks(ContinualClassifier(name))
    (x1, y1), (x2, y2) = blobs(FIRST, seed=1), blobs(SECOND, seed=2)
    x, y = np.concatenate([x1, x2]), np.concatenate([y1, y2])
    assert np.mean(model.infer_task(x) == np.repeat(["animals", "trees"], 120)) >= least
    assert model.score(x, y, task="infer") >= least
    told = model.predict(x, task=model.infer_task(x))
    assert (model.predict(x, task="infer") == told).all()


def test_the_same_random_state_gives_the_same_model_and_another_a_different_one() -> None:
    x, y = blobs(FIRST, n=30)
    one, same, other = (ContinualClassifier(random_state=s, epochs=1).fit(x, y).predict_proba(x) for s in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    generator = np.random.RandomState(0)
    assert ContinualClassifier(random_state=generator).fit(x, y).score(x, y) > 0.9


def test_parameters_are_those_of_scikit_learn() -> None:
    model = ScaleClassifier(memory=7, lambda3=0.1)
    assert model.get_params()["memory"] == 7
    model = clone(model).set_params(inner_lr=0.02).fit(*blobs(FIRST, n=20))
    config = model.learner_.config
    assert (config.memory, config.lambda3, config.inner_lr, config.standardise) == (7, 0.1, 0.02, True)
    assert ContinualClassifier(standardise=False).fit(*blobs(FIRST, n=20)).learner_.config.standardise is False


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ContinualClassifier("scael"), "unknown learner 'scael'; did you mean 'scale'"),
        (ContinualClassifier(memry=9), r"^er has no setting 'memry'; did you mean 'memory'\? its settings are .*, lr"),
        (ContinualClassifier(epoch=9), r"^er has no setting 'epoch'; did you mean 'epochs'\?"),
        (ContinualClassifier(xyzzy=9), r"^er has no setting 'xyzzy'; its settings are backbone, .*, lr"),
        (ContinualClassifier(inner_lr=0.1), r"^er has no setting 'inner_lr'"),
        (ScaleClassifier(learner="er"), r"^scale has no setting 'learner'"),
        (ContinualClassifier(settings={"lr": 1}), r"^settings are parameters of their own: write lr=1, without setti"),
        (ContinualClassifier(memory="many"), r"^memory: 'many' is not a whole number"),
        (ContinualClassifier(threads=0), "threads is 0; it must be a whole number of at least 1"),
        (ContinualClassifier(batch_size=0), "batch_size is 0"),
        (ContinualClassifier(epochs=1.5), "epochs is 1.5"),  # type: ignore[arg-type]
        (ContinualClassifier(scenario="classes"), "scenario is 'classes'"),
        (ContinualClassifier(standardise="yes"), "standardise is 'yes'"),
    ],
)
def test_wrong_parameters_are_named_when_they_are_used(model: ContinualClassifier, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.fit(*blobs(FIRST, n=20))


def test_wrong_data_is_named_and_nothing_is_learnt_of_it() -> None:
    x, y = blobs(FIRST, n=20)
    model = ContinualClassifier()
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(InputError, match="a task cannot be called 'infer'"):
        model.partial_fit(x, y, task="infer")
    with pytest.raises(InputError, match="'dog' is not one of `classes`"):
        model.partial_fit(x, y, classes=["cat", "cow"])
    model.partial_fit(x, y, classes=["cat", "cow", "dog"])
    assert model.classes_.tolist() == ["cat", "cow", "dog"]
    before = model.learner_.steps
    for inputs, labels, message in (
        (x, np.arange(20), "labels are numbers now and were strings before"),
        (x, [None] * 20, "Unknown label type: None"),
        (x[:, :3], y, "3 features"),
        (x[:-1], y, "inconsistent numbers of samples"),
        (x * 1e300, y, r"row 0 of X \(from 0\) holds infinity \(inf\) or a number beyond 1e\+19; fill in"),
        (np.where(np.arange(20)[:, None] == 7, 3e38, x), y, r"row 7 of X \(from 0\) holds infinity"),
        (np.where(np.arange(20)[:, None] > 4, np.nan, x), y, r"row 5 of X \(from 0\) holds NaN; fill in"),
        (pictures()[0][:20], y, "this estimator was trained on floats of shape"),
        (iter([x]), None, "a loader must give batches"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(inputs, labels)
    with pytest.raises(InputError, match="one name, or one for each of 20 samples"):
        model.predict(x, task=["default"] * 3)
    assert model.learner_.steps == before


def test_a_loader_without_a_batch_is_refused_and_the_model_stays() -> None:
    x, y = blobs(FIRST)
    new, model = ContinualClassifier(), ContinualClassifier().fit(x, y)
    before = model.predict_proba(x)
    for call in (new.fit, new.partial_fit, model.fit, model.partial_fit, model.predict, model.score):
        with pytest.raises(InputError, match="the loader gave no batch; at least one sample is needed"):
            call(iter([]))
    assert (model.predict_proba(x) == before).all()


def test_a_loss_that_explodes_is_said() -> None:
    x, y = blobs(FIRST)
    with pytest.raises(DivergenceError, match=r"not a finite number, with lr 1e\+09; lower the rate$"):
        ContinualClassifier("finetune", lr=1e9).fit(x, y)
