"""Networks that cannot be adapted as they are given: each ends in a sentence on what was found and what to do."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import scantune
from scantune import AdaptableNetwork, FieldOfExperts, InputError
from scantune.tasks import Registration, Segmentation
from tests.adaptation.test_conformity import Giving, PlainUNet, monai

SCAN = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def plain():
    torch.manual_seed(0)
    return PlainUNet()


def refusals(network, scan=SCAN, **told):
    """The sentences of a fit and of an adaptation without a prior."""
    sentences = []
    for act in (
        lambda: FieldOfExperts.fit(network, [scan], **told),
        lambda: scantune.adapt(network, scan, method="entropy", device="cpu", **told),
    ):
        with pytest.raises(InputError) as refused:
            act()
        sentences.append(str(refused.value))
    return sentences


def assert_refused(network, *words, scan=SCAN, **told):
    for sentence in refusals(network, scan, **told):
        for word in words:
            assert word in sentence


class Sessions(nn.Module):
    """A module around a session of another program, as ONNX has them."""

    def forward(self, x):
        return torch.from_numpy(np.repeat(x.numpy(), 3, 1))


class TwoInputs(PlainUNet):
    def forward(self, x, age):
        return super().forward(x) * age


@dataclass
class Answer:
    logits: torch.Tensor


class TestFrozenGraphs:
    EXPECTED = "give the eager network that it was made from"

    def test_torchscript(self, plain):
        traced = torch.jit.trace(plain.eval(), SCAN)
        assert_refused(traced, "frozen graph of TorchScript or torch.export", self.EXPECTED)
        with pytest.raises(InputError, match="frozen graph"):
            FieldOfExperts.fit(traced, [SCAN], layers=["first"])
        with pytest.raises(InputError, match="frozen graph"):
            AdaptableNetwork.around(traced, channels=1, dimensions=2)
        with pytest.raises(InputError, match="frozen graph"):
            FieldOfExperts.fit(plain, [SCAN]).energy(traced, SCAN)

    def test_torchscript_within_a_module(self, plain):
        assert_refused(Giving(torch.jit.trace(plain.eval(), SCAN), lambda y: y), "frozen graph", self.EXPECTED)

    def test_torch_export(self, plain):
        exported = torch.export.export(plain.eval(), (SCAN,))
        assert_refused(exported, "(ExportedProgram) is a frozen graph", self.EXPECTED)
        assert_refused(exported.module(), "is a frozen graph", self.EXPECTED)

    def test_onnx_in_a_module(self):
        assert_refused(Sessions(), "(Sessions) has no weights in PyTorch", "ONNX", self.EXPECTED)

    def test_a_path(self):
        assert_refused("unet.safetensors", "is a str", "scantune.load('unet.safetensors')")

    def test_a_function(self):
        assert_refused(lambda x: x, "must be a torch.nn.Module or a scantune.Model, but is a function.")


class TestInputs:
    def test_another_number_of_channels(self):
        assert_refused(
            PlainUNet(channels=4),
            "The network (PlainUNet) fails on an input of shape (1, 1, 32, 32), float32: RuntimeError: ",
            "expected input[1, 1, 32, 32] to have 4 channels, but got 1 channels instead",
            "Give scans as it was trained on",
        )

    def test_another_number_of_dimensions(self, plain):
        assert_refused(plain, "fails on an input of shape (1, 1, 8, 8, 8)", scan=torch.rand(1, 1, 8, 8, 8))
        assert_refused(monai("UNet", spatial_dims=3, channels=(4, 8), strides=(2,))(), "(1, 1, 32, 32), float32")

    def test_two_arguments(self):
        assert_refused(TwoInputs(), "(TwoInputs) fails", "missing 1 required positional argument: 'age'")

    def test_a_size_that_no_padding_mends(self):
        network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 20 * 20, 9), nn.Unflatten(1, (1, 3, 3)))
        assert_refused(network, "(Sequential) fails on an input of shape (1, 1, 32, 32)")

    def test_a_precision_that_the_network_sets_itself(self, plain):
        network = nn.Sequential(Giving(nn.Conv2d(1, 1, 1), lambda y: y.half()), PlainUNet()).half()
        prior = FieldOfExperts.fit(network, [SCAN])
        with pytest.raises(InputError, match="takes torch.float16. Set no precision within it"):
            scantune.adapt(network, SCAN, prior=prior, device="cpu")

    def test_what_cannot_be_copied(self, plain):
        plain.memory = plain.first.weight * 2
        assert_refused(plain, "(PlainUNet) cannot be copied", "Keep no tensors with a gradient's history")


class TestOutputs:
    def test_a_dictionary_without_a_usual_name(self, plain):
        assert_refused(
            Giving(plain, lambda y: {"features": F.avg_pool2d(y, 2), "scores": y}),
            "gives a dictionary of features: (1, 3, 16, 16), scores: (1, 3, 32, 32), expected a tensor",
            "out, logits or pred",
            "output= takes a key, an index or a function",
        )

    def test_low_resolution_first(self, plain):
        assert_refused(
            Giving(plain, lambda y: [F.avg_pool2d(y, 2), y]),
            "(Giving) gives a list of (1, 3, 16, 16), (1, 3, 32, 32) for an input of shape (1, 1, 32, 32), "
            "expected class scores (1, classes, 32, 32)",
        )

    def test_an_output_that_is_smaller_than_the_scan(self, plain):
        assert_refused(Giving(plain, lambda y: F.avg_pool2d(y, 4)), "gives a tensor (1, 3, 8, 8)", "32 x 32")

    def test_stacked_heads(self, plain):
        stacked = Giving(plain, lambda y: torch.stack([y, y], 1))
        assert_refused(stacked, "gives a tensor (1, 2, 3, 32, 32)", "expected class scores (1, classes, 32, 32)")
        assert_refused(stacked, "has no 1: it is a tensor (1, 2, 3, 32, 32)", output=1)

    def test_labels_in_place_of_scores(self, plain):
        assert_refused(Giving(plain, lambda y: y.argmax(1)), "gives a tensor (1, 32, 32)")

    def test_an_object_with_logits(self, plain):
        for answer in (Answer, lambda y: SimpleNamespace(logits=y)):
            network = Giving(plain, answer)
            assert_refused(network, f"gives {type(answer(SCAN)).__name__}, expected a tensor")
            prior = FieldOfExperts.fit(network, [SCAN], output="logits")
            found = scantune.adapt(network, SCAN, prior=prior, steps=1, guard=False, device="cpu")
            assert torch.equal(found.source_prediction, plain.eval()(SCAN).argmax(1))

    def test_a_key_an_index_and_a_function_that_lead_nowhere(self, plain):
        network = Giving(plain, lambda y: {"out": y})
        assert_refused(network, "has no 'seg': it is a dictionary of out: (1, 3, 32, 32)", output="seg")
        assert_refused(network, "has no 2: it is a dictionary", output=2)
        assert_refused(network, "function output= fails (KeyError: 'seg')", output=lambda y: y["seg"])
        assert_refused(Giving(plain, lambda y: [y]), "has no 2: it is a list of (1, 3, 32, 32)", output=2)
        assert_refused(
            network, "gives a tensor (1, 1, 16, 16), chosen by output=, for", output=lambda y: y["out"][:, :1, ::2, ::2]
        )

    def test_another_output_of_a_registration(self, plain):
        with pytest.raises(InputError, match="output= is for segmentation"):
            FieldOfExperts.fit(plain, [SCAN], task=Registration(), output="out")

    def test_a_function_cannot_be_stored(self, plain, tmp_path):
        prior = FieldOfExperts.fit(plain, [SCAN], output=lambda y: y)
        with pytest.raises(InputError, match="function cannot be stored; give output= as a key or an index"):
            prior.save(tmp_path / "prior.safetensors")


class TestLayers:
    def test_tokens_are_no_channels(self):
        network = monai("UNETR", img_size=(32, 32), feature_size=4, hidden_size=12, mlp_dim=16, num_heads=3)()
        with pytest.raises(InputError, match=r"vit.blocks.0 cannot serve as experts: it gives a tensor \(1, 4, 12\)"):
            FieldOfExperts.fit(network, [SCAN], layers=["vit.blocks.0"])

    def test_a_tuple_is_no_features(self, plain):
        network = nn.Sequential(plain, Giving(nn.Conv2d(3, 3, 1), lambda y: (y, y)))
        with pytest.raises(InputError, match="layer 1 cannot serve as experts: it gives tuple, expected features"):
            FieldOfExperts.fit(network, [SCAN], layers=["1"])

    def test_outputs_of_few_positions_are_left_out(self):
        class Excited(PlainUNet):
            def __init__(self):
                super().__init__()
                self.squeeze, self.excite = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)

            def forward(self, x):
                weight = self.excite(self.squeeze(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
                return super().forward(x * weight)

        prior = FieldOfExperts.fit(Excited(), [SCAN, SCAN**2])
        assert list(prior.families["cnn"].layers) == ["first", "deep", "up"]


class TestWhatCannotBeKnown:
    def test_several_logits_are_remarked_on(self, plain, tmp_path):
        FieldOfExperts.fit(plain, [SCAN]).save(tmp_path / "prior.safetensors")
        prior = FieldOfExperts.load(tmp_path / "prior.safetensors")
        for found in (prior.notes, self.remarks(plain, prior=prior), self.remarks(plain, method="entropy")):
            assert any("softmax was assumed" in remark for remark in found)

    def test_several_probabilities_are_remarked_on(self, plain):
        network = Giving(plain, torch.sigmoid)
        assert any("may overlap were assumed" in remark for remark in self.remarks(network, method="source"))

    def test_what_was_said_is_not_remarked_on(self, plain):
        for task in (Segmentation(), Segmentation(overlapping=True)):
            prior = FieldOfExperts.fit(plain, [SCAN], task=task)
            assert not any("assumed" in remark for remark in (*prior.notes, *self.remarks(plain, prior=prior)))
        assert self.remarks(plain, method="source", task=Segmentation()) == []
        assert self.remarks(Giving(plain, lambda y: y.softmax(1)), method="source") == []

    @staticmethod
    def remarks(network, **told):
        return scantune.adapt(network, SCAN, steps=1, guard=False, device="cpu", **told).facts["remarks"]
