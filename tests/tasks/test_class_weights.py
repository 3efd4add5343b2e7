"""Class weights against their definitions; files and what is wrong with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from labelflow.tasks.class_weights import class_weights

CLASSES = ["cat", "dog", "fox"]
COUNTS = st.lists(st.integers(1, 10_000), min_size=2, max_size=30)


@given(counts=COUNTS)
def test_inverse_is_what_scikit_learn_calls_balanced(counts: list[int]) -> None:
    found = class_weights("inverse", [str(n) for n in range(len(counts))], np.array(counts))
    assert_allclose(found, [sum(counts) / (len(counts) * count) for count in counts])


@given(counts=COUNTS, beta=st.floats(0, 0.99999))
def test_effective_numbers(counts: list[int], beta: float) -> None:
    """E_n = Σ_{k<n} β^k, weights 1/E_n."""
    found = class_weights(f"effective(beta={beta})", [str(n) for n in range(len(counts))], np.array(counts))
    numbers = [np.power(beta, np.arange(count)).sum() for count in counts]
    scale = sum(counts) / sum(count / number for count, number in zip(counts, numbers, strict=True))
    assert_allclose(found, [scale / number for number in numbers], rtol=1e-5)


@given(counts=COUNTS, how=st.sampled_from(["inverse", "effective", "effective(beta=0.9)"]))
def test_the_average_image_has_weight_1(counts: list[int], how: str) -> None:
    found = class_weights(how, [str(n) for n in range(len(counts))], np.array(counts))
    assert_allclose((np.array(counts) * found).sum() / sum(counts), 1)


def test_no_images_no_weight() -> None:
    assert_allclose(class_weights("inverse", CLASSES, np.array([30, 0, 10])), [2 / 3, 0, 2])
    assert class_weights("effective", CLASSES, np.array([30, 0, 10]))[1] == 0


def test_files(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps({"fox": 4, "cat": 1, "dog": 0.5}))
    (tmp_path / "w.csv").write_text('class,weight\nfox,4\n"cat",1\ndog,0.5\n')
    for name in ("w.json", "w.csv"):
        found = class_weights(str(tmp_path / name), CLASSES, np.array([10, 20, 10]))
        assert_allclose(found, np.array([1, 0.5, 4]) * 40 / 60)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("w.json", '{"cat": 1, "dog": 1}', "w.json has no weights for fox"),
        ("w.csv", "class,weight\ncat,1\ndog,1\nfox,1\nwolf,1\n", "classes that the training data lacks: wolf"),
        ("w.json", '{"cat": 1, "dog": -1, "fox": 1}', "weight of dog must be finite and not negative, but is -1"),
        ("w.json", '{"cat": 1, "dog": NaN, "fox": 1}', "weight of dog must be finite and not negative, but is nan"),
        ("w.json", '{"cat": 0, "dog": 0, "fox": 0}', "are 0 for all classes that have training images"),
        ("w.json", "[1, 2, 3]", "should hold a number for each class"),
        ("w.json", "{", "should hold a number for each class"),
        ("w.csv", "name,number\ncat,1\n", "columns class and weight: KeyError"),
        ("w.csv", "class,weight\ncat,\n", "should hold a number for each class"),
    ],
)
def test_files_that_are_wrong(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        class_weights(str(tmp_path / name), CLASSES, np.array([10, 20, 10]))


def test_names_that_are_wrong() -> None:
    for how, message in {
        "inverted": "no class weighting .or file, .json or .csv. 'inverted'; did you mean inverse",
        "effective(beta=1)": "beta must lie in",
        "nowhere.json": "there is no file nowhere.json with class weights",
    }.items():
        with pytest.raises(ValueError, match=message):
            class_weights(how, CLASSES, np.array([10, 20, 10]))
