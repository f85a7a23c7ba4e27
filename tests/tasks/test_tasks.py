import pytest
import torch
from torch import nn

from scantune import InputError
from scantune.tasks import TASKS, Segmentation, main_output, soft_dice_loss

LOGITS, ONE_LOGIT = Segmentation("softmax", True), Segmentation("sigmoid", False)
CLASS_PROBABILITIES, PROBABILITIES = Segmentation("none", True), Segmentation("none", False)
OVERLAPPING = Segmentation("none", overlapping=True)


@pytest.mark.parametrize(
    ("channels", "activation", "expected"),
    [
        (3, nn.Identity(), LOGITS),
        (3, nn.Softmax(1), CLASS_PROBABILITIES),
        (3, nn.Sigmoid(), OVERLAPPING),
        (3, nn.ReLU(), LOGITS),
        (1, nn.Identity(), ONE_LOGIT),
        (1, nn.Sigmoid(), PROBABILITIES),
        (1, nn.Hardtanh(0, 1), PROBABILITIES),
    ],
)
@pytest.mark.parametrize("size", [3.0, 0.01])
def test_logits_probabilities_and_sigmoids_are_told_apart(channels, activation, expected, size, rng):
    """Small logits all lie between 0 and 1 on the scan, as probabilities do, and still are logits."""
    classify = nn.Conv2d(1, channels, 1)
    nn.init.normal_(classify.weight, 0, size, generator=rng)
    nn.init.constant_(classify.bias, 0.3)
    images = torch.rand(2, 1, 9, 9, generator=rng)
    if size < 1:
        assert 0 < classify(images).min() < classify(images).max() < 1
    assert Segmentation.detect(nn.Sequential(classify, activation), images) == expected


def test_probabilities_are_recognised_where_noise_leads_to_nan(rng):
    def network(images):
        return (images.exp() / images.exp().sum()).sigmoid()

    images = torch.rand(1, 1, 9, 9, generator=rng)
    assert network(1e4 * images).isnan().any()
    assert Segmentation.detect(network, images) == PROBABILITIES


def test_detection_is_repeatable_and_leaves_random_numbers_and_gradients_alone(rng):
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Sigmoid())
    images, seen = torch.rand(1, 1, 9, 9, generator=rng), []
    network.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output.requires_grad)))
    before = torch.get_rng_state()
    for _ in range(2):
        Segmentation.detect(network, images)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(seen[1][0], seen[3][0])
    assert not any(needs for _, needs in seen)


def test_foreground_is_one_minus_background(rng):
    logits = torch.randn(2, 3, 5, 5, generator=rng)
    assert torch.allclose(Segmentation().foreground(logits), logits.softmax(1)[:, 1:].sum(1, keepdim=True))
    assert torch.allclose(Segmentation(structures=(2,)).foreground(logits), logits.softmax(1)[:, 2:])


def test_foreground_of_independent_channels_is_any_of_them(rng):
    p = torch.rand(2, 2, 5, 5, generator=rng)
    expected = p[:, :1] + p[:, 1:] - p[:, :1] * p[:, 1:]
    assert torch.allclose(Segmentation("none", False).foreground(p), expected)


def test_independent_channels_become_labels_from_one(rng):
    p = torch.tensor([[0.2, 0.9, 0.6], [0.3, 0.1, 0.7]]).view(1, 2, 3, 1)
    assert Segmentation("none", False).predict(p).flatten().tolist() == [0, 1, 2]


def test_the_first_tensor_of_nested_outputs_counts():
    tensor = torch.zeros(1, 2, 3, 3)
    assert main_output((tensor, None)) is tensor
    assert main_output([[tensor], tensor]) is tensor
    assert main_output({"aux": None, "out": tensor}) is tensor
    with pytest.raises(InputError, match="gives str"):
        main_output("no tensor")


def test_soft_dice_loss_is_a_plain_loop_over_images_and_classes(rng):
    p = torch.randn(3, 4, 6, 6, generator=rng).softmax(1)
    labels = torch.randint(0, 3, (3, 6, 6), generator=rng)  # class 3 is absent everywhere
    scores = []
    for image in range(3):
        for value in range(4):
            target = (labels[image] == value).float()
            scores.append(2 * (p[image, value] * target).sum() / (p[image, value].sum() + target.sum()))
    assert soft_dice_loss(p, labels) == pytest.approx(1 - float(torch.stack(scores).mean()), abs=1e-6)


def test_soft_dice_agrees_with_monai_where_every_class_is_present(rng):
    from monai.losses import DiceLoss

    p = torch.randn(2, 3, 8, 8, generator=rng).softmax(1)
    labels = torch.randint(0, 3, (2, 8, 8), generator=rng)
    monai = DiceLoss(to_onehot_y=True, smooth_nr=0, smooth_dr=1e-10)(p, labels.unsqueeze(1))
    assert soft_dice_loss(p, labels) == pytest.approx(float(monai), abs=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_survives_its_record(name):
    task = TASKS[name]()
    assert type(task).from_record(task.record()) == task


def test_a_foreground_function_works_but_is_not_stored(rng):
    logits = torch.randn(1, 3, 4, 4, generator=rng)
    task = Segmentation.detect(nn.Conv2d(1, 3, 1), logits[:, :1], lambda output: output[:, :1] * 0 + 0.5)
    assert float(task.foreground(logits).mean()) == 0.5
    with pytest.raises(InputError, match="cannot be stored"):
        task.record()


def test_an_unknown_activation_is_refused():
    with pytest.raises(InputError, match="softmax, sigmoid, none"):
        Segmentation("tanh")
