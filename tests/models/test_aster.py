"""ASTER: published counts and names, recurrent layers against torch's, the spline, beam search."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_lists import official_shapes, renamed_shapes
from torch import nn

from simfl.errors import ConfigError
from simfl.models.aster import CHECKPOINT_RULES, Aster
from simfl.models.aster_network import AsterNetwork, BiLstm, GruStep
from simfl.models.rectifier import Rectifier, edge_points, spline_matrices
from simfl.protocol import Task

BACK = (  # our names -> those of aster.pytorch, independent of the rules under test
    ("context.", "encoder.rnn."), ("rectifier.convs.", "stn_head.stn_convnet."),
    ("rectifier.dense.", "stn_head.stn_fc1."), ("rectifier.points.", "stn_head.stn_fc2."),
    ("decoder.attention.state.", "decoder.decoder.attention_unit.sEmbed."),
    ("decoder.attention.feature.", "decoder.decoder.attention_unit.xEmbed."),
    ("decoder.attention.score.", "decoder.decoder.attention_unit.wEmbed."),
    ("decoder.embedding.", "decoder.decoder.tgt_embedding."), ("decoder.gru.", "decoder.decoder.gru."),
    ("decoder.fc.", "decoder.decoder.fc."),
)  # fmt: skip
IMAGES = torch.randint(0, 256, (3, 3, 32, 64), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
LABELS = torch.tensor([[3, 7, 94, -100], [5, 94, -100, -100], [1, 2, 3, 94]])


def on_meta(**settings: Any) -> AsterNetwork:
    with torch.device("meta"):
        return Aster(**settings).network()


def count(network: nn.Module, prefix: str = "") -> int:
    return sum(p.numel() for name, p in network.named_parameters() if name.startswith(prefix))


def test_aster_has_the_published_20_99_million_parameters() -> None:
    network = on_meta()
    parts = {name: count(network, name) for name in ("encoder", "context", "decoder", "rectifier")}
    assert parts == {"encoder": 12_994_784, "context": 3_153_920, "decoder": 2_988_130, "rectifier": 1_854_760}
    assert count(network) == 20_991_594


def test_aster_with_shufflenet_has_the_published_13_34_million_parameters() -> None:
    network = on_meta(encoder="shufflenet")
    assert count(network, "encoder") == 5_344_996  # its 7,393,996 of ImageNet less the classifier's 2048·1000 + 1000
    assert count(network) == 13_341_806
    assert count(on_meta(encoder="shufflenet", context=False)) == 13_333_614


def test_group_norm_has_as_many_parameters_as_batch_norm() -> None:
    assert count(on_meta(norm="group")) == 20_991_594


def test_every_tensor_of_aster_pytorch_has_a_counterpart_of_its_shape() -> None:
    own = {name: tuple(t.shape) for name, t in on_meta().state_dict().items()}
    names = official_shapes("aster_pytorch")
    assert len(names) == 384
    assert renamed_shapes(names, CHECKPOINT_RULES) == own


def published(network: AsterNetwork) -> dict[str, torch.Tensor]:
    made = {}
    for name, tensor in network.state_dict().items():
        theirs = name
        for ours, original in BACK:
            theirs = original + theirs.removeprefix(ours) if theirs.startswith(ours) else theirs
        made[f"module.{theirs}"] = tensor.clone()
    return made | {"module.tps.inverse_kernel": torch.zeros(23, 23)}


def test_a_checkpoint_of_aster_pytorch_is_loaded_completely(tmp_path: Path) -> None:
    network = Aster(size="tiny").build(Task(1)).train()
    network(IMAGES, LABELS)  # moves the running statistics
    torch.save({"state_dict": published(network), "best_res": 0.5}, tmp_path / "model_best.pth.tar")
    again = Aster(size="tiny", weights=str(tmp_path)).build(Task(2))
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in network.state_dict().items())


def test_missing_running_statistics_are_named_in_the_error(tmp_path: Path) -> None:
    tensors = published(Aster(size="tiny").build(Task(1)))
    del tensors["module.encoder.layer0.1.running_mean"]
    torch.save(tensors, tmp_path / "model.pth")
    with pytest.raises(ConfigError, match=r"missing \['encoder.layer0.1.running_mean'\]"):
        Aster(size="tiny", weights=str(tmp_path)).build(Task(2))


def test_the_bilstm_equals_torchs() -> None:
    torch.manual_seed(0)
    own, x = BiLstm(5, 4, 2), torch.randn(3, 6, 5)
    assert torch.allclose(own(x), nn.LSTM.forward(own, x)[0], atol=1e-6)


def test_a_gru_step_equals_torchs() -> None:
    torch.manual_seed(0)
    own, x, h = GruStep(5, 4), torch.randn(3, 5), torch.randn(3, 4)
    assert torch.allclose(own(x, h), nn.GRU.forward(own, x[:, None], h[None])[0][:, 0], atol=1e-6)


def test_a_spline_through_its_own_points_is_the_identity() -> None:
    points = edge_points(20, 0.05)
    inverse, basis = (torch.from_numpy(m) for m in spline_matrices(points, (4, 6)))
    source = basis @ (inverse @ nn.functional.pad(torch.from_numpy(points), (0, 0, 0, 3)))
    y, x = torch.meshgrid(torch.linspace(0, 1, 4), torch.linspace(0, 1, 6), indexing="ij")
    assert torch.allclose(source, torch.stack([x.flatten(), y.flatten()], 1), atol=1e-3)


def test_a_shift_of_all_points_shifts_the_image() -> None:
    inverse, basis = (torch.from_numpy(m) for m in spline_matrices(edge_points(20, 0.05), (4, 6)))
    moved = torch.from_numpy(edge_points(20, 0.05)) + torch.tensor([0.1, 0.0])
    source = basis @ (inverse @ nn.functional.pad(moved, (0, 0, 0, 3)))
    assert torch.allclose(source[0], torch.tensor([0.1, 0.0]), atol=1e-3)


def test_an_untrained_rectifier_keeps_nearly_the_whole_image() -> None:
    module = Rectifier((8,) * 6, 16, 20, 0.0, "batch").eval()
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 32, 64)
    row = module(ramp)[0, 0, 16]
    assert torch.allclose(row, torch.linspace(0.01, 0.99, 100), atol=0.02)


def test_letters_do_not_depend_on_later_ones() -> None:
    network = Aster(size="tiny").build(Task(1))
    other = LABELS.clone()
    other[:, 2] = 9
    assert torch.equal(network(IMAGES, LABELS).logits[:, :3], network(IMAGES, other).logits[:, :3])
    assert network(IMAGES, LABELS).mask.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


def test_beam_search_finds_the_most_probable_word(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Aster(size="tiny").build(Task(1))
    torch.manual_seed(4)
    network.decoder.fc.weight.data *= 8.0
    keep = torch.full((97,), -1e4)
    keep[[1, 2, 94]] = 0.0  # letters 1 and 2, and the end
    network.decoder.fc.bias.data = keep
    words = [(*letters, 94) for n in range(3) for letters in product((1, 2), repeat=n)]
    words += list(product((1, 2), repeat=3))
    best = []
    for image in IMAGES:
        scores = []
        for word in words:
            logits = network(image[None], torch.tensor([word])).logits.log_softmax(-1)[0]
            scores.append(sum(logits[k, letter].item() for k, letter in enumerate(word)))
        top = max(range(len(words)), key=scores.__getitem__)
        best.append((list(words[top]), scores[top]))
    letters, probability = network.beam_search(IMAGES, beams=8, max_letters=3)
    for row, (expected, total) in enumerate(best):
        assert letters[row, : len(expected)].tolist() == expected
        assert probability[row].log().item() == pytest.approx(total, abs=1e-3)


def test_aster_is_bit_identical_for_the_same_seed() -> None:
    one, two = (Aster(size="tiny", encoder="shufflenet").build(Task(1)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
