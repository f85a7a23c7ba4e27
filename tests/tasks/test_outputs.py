import pytest
import torch

from scantune import InputError
from scantune.tasks import Segmentation, main_output, task_from_record, task_record
from scantune.tasks.outputs import described

ONE, OTHER = torch.zeros(1, 2, 4, 4), torch.ones(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("output", "choice", "expected"),
    [
        (ONE, None, ONE),
        ((ONE, OTHER), None, ONE),
        ([ONE, OTHER], 1, OTHER),
        ([ONE, OTHER], -1, OTHER),
        ({"aux": ONE, "out": OTHER}, None, OTHER),
        ({"aux": ONE, "logits": OTHER}, None, OTHER),
        ({"aux": ONE, "pred": [OTHER]}, None, OTHER),
        ({"pred": ONE, "logits": ONE, "out": OTHER}, None, OTHER),
        ({"aux": ONE, "out": OTHER}, "aux", ONE),
        ({0: ONE, 1: OTHER}, 1, OTHER),
        ({"heads": [ONE, OTHER]}, lambda output: output["heads"][1], OTHER),
        (torch.return_types.max((ONE, OTHER)), "indices", OTHER),
    ],
)
def test_the_tensor_that_counts_is_found(output, choice, expected):
    assert main_output(output, choice) is expected


@pytest.mark.parametrize("output", [{}, {"scores": ONE}, [], (None, ONE), "text", {"out": "text"}])
def test_what_holds_no_such_tensor_is_refused(output):
    with pytest.raises(InputError, match="out, logits or pred"):
        main_output(output)


def test_outputs_are_described_by_kinds_names_and_shapes():
    assert described({"a": ONE, "b": [ONE]}) == "a dictionary of a: (1, 2, 4, 4), b: list"
    assert described((ONE, 3)) == "a tuple of (1, 2, 4, 4), int"
    assert described([]) == "a list of nothing"
    assert described([ONE] * 8).endswith(", (1, 2, 4, 4) and 2 more")


@pytest.mark.parametrize("output", ["scores", 1, 0, None])
def test_the_choice_of_an_output_survives_the_record(output):
    task = Segmentation(output=output)
    assert task_from_record(task_record(task)) == task


@pytest.mark.parametrize("output", [True, 1.5, ["a"]])
def test_a_damaged_choice_is_refused(output):
    with pytest.raises(InputError, match="key or an index as output"):
        task_from_record({**task_record(Segmentation()), "output": output})


def test_scores_of_half_precision_become_single_before_they_are_probabilities():
    """In half precision, softmax makes equals of scores that differ."""
    logits = torch.tensor([0.25, 0.2502]).half().view(1, 2, 1, 1)
    assert int(logits.softmax(1).argmax(1)) == 0
    assert int(Segmentation().predict(logits)) == int(logits.argmax(1)) == 1
