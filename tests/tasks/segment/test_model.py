"""Backbones with levels, necks, heads and whole segmenters, against naive versions and the papers' sizes."""

import copy
import json
import math
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from labelflow.models.create import create
from labelflow.spec import parse
from labelflow.tasks.dense.backbone import PADDED, Backbone, Levels, make_levels, resolve
from labelflow.tasks.dense.layers import fcn_side_layers, multi_level_neck, side_layers
from labelflow.tasks.segment.heads import FCNHead, UperHead
from labelflow.tasks.segment.model import Scores, Segmenter, enlarge, make_segmenter

SWIN = "swin_tiny_patch4_window7_224(depths=(2, 2, 2, 2), embed_dim=8, num_heads=(1, 1, 2, 2))"
PVT = "pvt_tiny(depths=(1, 1, 1, 2), embed_dims=(8, 8, 16, 16), num_heads=(1, 1, 2, 2), img_size=64)"
DEIT = "deit_tiny_patch16_224(depth=5, embed_dim=12, num_heads=2, img_size=64)"
FAMILIES = [
    SWIN,
    "swinv2_tiny_window8_256(depths=(2, 2, 1, 1), embed_dim=8, num_heads=(1, 1, 2, 2), window_size=4)",
    PVT,
    "pvt_v2_b0(depths=(1, 1, 1, 1), embed_dims=(8, 8, 16, 16), num_heads=(1, 1, 2, 2))",
    "convnext_atto(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))",
    DEIT,
    "deit_tiny_distilled_patch16_224(depth=4, embed_dim=12, num_heads=2)",
    "vit_tiny_patch16_224(depth=4, embed_dim=12, num_heads=2, patch_size=14, class_token=False, global_pool='avg')",
    "lvvit_t(depth=4, embed_dim=12, num_heads=2, stem_width=4)",
]
SWINS = [f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base")]


def name_of(spec: object) -> str:
    return str(spec).partition("(")[0]


def on_meta(backbone: str, head: str = "upernet", image_size: int = 512) -> Segmenter:
    with torch.device("meta"):
        return make_segmenter(backbone, head, image_size=image_size).eval()


@pytest.mark.parametrize(
    ("backbone", "head", "millions", "paper"),
    [
        *zip(SWINS, ["upernet"] * 3, (59.94, 81.26, 121.28), (60, 81, 121), strict=True),
        ("deit_small_patch16_224", "upernet", 57.995, 58),
        ("lvvit_s", "upernet", 44.45, 44),
        ("lvvit_m", "upernet", 77.27, 77),
        ("lvvit_l(img_size=448)", "upernet", 208.55, 209),
        ("lvvit_s", "fcn", 30.06, 30),
    ],
)
def test_parameters(backbone: str, head: str, millions: float, paper: int) -> None:
    found = sum(parameter.numel() for parameter in on_meta(backbone, head).parameters()) / 1e6
    assert found == pytest.approx(millions, rel=1e-3)
    assert round(found) == paper


@pytest.mark.parametrize(
    ("backbone", "billions", "paper"),
    [*zip(SWINS, (944.4, 1037.4, 1187.4), (945, 1038, 1188), strict=True), ("deit_small_patch16_224", 1215.7, 1032)],
)
def test_multiply_adds(backbone: str, billions: float, paper: int) -> None:
    """At 512×2048, without the auxiliary head. The paper's number for DeiT leaves attention out."""
    segmenter = on_meta(backbone)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        segmenter(torch.empty(1, 3, 512, 2048, device="meta"))
    assert counter.get_total_flops() / 2e9 == pytest.approx(billions, rel=1e-3)
    parts = counter.get_flop_counts()
    attention = sum(sum(counts.values()) for name, counts in parts.items() if name.endswith(".attn"))
    left_out = attention if backbone.startswith("deit") else 0
    assert (counter.get_total_flops() - left_out) / 2e9 == pytest.approx(paper, rel=2e-3)


@pytest.mark.parametrize(
    ("backbone", "indices", "strides", "auxiliary"),
    [
        ("deit_small_patch16_224", [2, 5, 8, 11], [4, 8, 16, 32], 3),
        ("lvvit_t", [2, 5, 8, 11], [4, 8, 16, 16], 2),
        ("lvvit_s", [6, 9, 12, 15], [4, 8, 16, 16], 2),
        ("lvvit_m", [10, 13, 16, 19], [4, 8, 16, 16], 2),
        ("lvvit_l", [14, 17, 20, 23], [4, 8, 16, 16], 2),
        (SWINS[0], [0, 1, 2, 3], [4, 8, 16, 32], 2),
        ("resnet18", [1, 2, 3, 4], [4, 8, 16, 32], 2),
    ],
)
def test_where_levels_come_from(backbone: str, indices: list[int], strides: list[int], auxiliary: int) -> None:
    segmenter = on_meta(backbone)
    assert (segmenter.levels.indices, segmenter.levels.strides) == (indices, strides)
    assert segmenter.auxiliary_level == auxiliary


def test_fcn_of_a_plain_vit_sees_cells_of_eight_pixels() -> None:
    assert on_meta("lvvit_s", "fcn").levels.strides == [16, 8]
    assert on_meta("lvvit_s", "fcn").levels.indices == [12, 15]


@pytest.mark.parametrize("head", ["upernet", "fcn"])
@pytest.mark.parametrize("backbone", FAMILIES, ids=name_of)
def test_any_size_and_gradients(backbone: str, head: str) -> None:
    """Scores have the image's size, odd ones too, and every parameter that is there is trained."""
    torch.manual_seed(0)
    segmenter = make_segmenter(backbone, head, classes=3, width=4)
    for name, parameter in segmenter.named_parameters():
        if backbone.startswith("swinv2") and ".norm" in name and name.endswith("weight"):
            nn.init.ones_(parameter)  # which start with 0, so that blocks do nothing
    for size in ((37, 150), (64, 64), (131, 65)):
        images = torch.randn(2, 3, *size)
        scores = segmenter(images)
        assert scores.auxiliary is not None
        assert scores.logits.shape == scores.auxiliary.shape == (2, 3, *size)
        for features, channels, stride in zip(
            segmenter.levels(images), segmenter.levels.channels, segmenter.levels.strides, strict=True
        ):
            assert features.shape[1] == channels
            unit = max(segmenter.levels.strides)
            shown = [math.ceil(side / unit) * unit for side in size]
            assert [cells * stride for cells in features.shape[2:]] == shown  # the same on all levels
        labels = torch.randint(3, (2, *size))
        (F.cross_entropy(scores.logits, labels) + F.cross_entropy(scores.auxiliary, labels)).backward()
    assert not [name for name, one in segmenter.named_parameters() if one.grad is None or not one.grad.any()]


def test_the_auxiliary_head_is_for_training() -> None:
    segmenter = make_segmenter(DEIT, classes=3, width=4).eval()
    segmenter.auxiliary.register_forward_hook(lambda *_: pytest.fail("it ran"))
    scores = segmenter(torch.zeros(1, 3, 64, 64))
    assert isinstance(scores, Scores)
    assert scores.auxiliary is None


def test_weight_decay_reaches_the_backbone() -> None:
    segmenter = make_segmenter(DEIT, classes=3, width=4)
    names = dict(segmenter.named_parameters())
    assert {"levels.model.pos_embed", "levels.model.cls_token"} <= segmenter.no_weight_decay()
    assert {"levels.model.pos_embed", "levels.model.cls_token"} <= names.keys()


@pytest.mark.parametrize("backbone", FAMILIES, ids=name_of)
def test_checkpointing_keeps_less_and_computes_the_same(backbone: str) -> None:
    torch.manual_seed(0)
    levels = make_levels(backbone)
    images = torch.randn(1, 3, 64, 96)

    def kept_and_gradient(checkpointing: bool) -> tuple[int, Tensor]:
        kept: list[int] = []
        levels.set_grad_checkpointing(checkpointing)
        levels.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
            total = sum(features.square().sum() for features in levels(images))
        before = sum(kept)
        total.backward()
        return before, torch.cat([one.grad.flatten() for one in levels.parameters() if one.grad is not None])

    (plain, expected), (checkpointed, found) = kept_and_gradient(False), kept_and_gradient(True)
    assert checkpointed < plain
    assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_one_image_is_enough_where_norms_need_no_more() -> None:
    images = torch.randn(1, 3, 64, 64)
    segmenter = make_segmenter(PVT, classes=3, width=4)
    with pytest.raises(ValueError, match="at least two images"):
        segmenter(images)
    assert segmenter.eval()(images).logits.shape == (1, 3, 64, 64)
    segmenter.train()
    for norm in segmenter.head.pools.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
    assert segmenter(images).auxiliary is not None
    assert make_segmenter(PVT, "fcn", classes=3, width=4)(images).auxiliary is not None


def test_scores_are_enlarged_in_full_precision() -> None:
    segmenter = make_segmenter(PVT, "fcn", classes=3, width=4)
    with torch.autocast("cpu", torch.bfloat16):
        scores = segmenter(torch.randn(2, 3, 64, 64))
    assert (scores.logits.dtype, scores.auxiliary.dtype) == (torch.float32, torch.float32)


# Heads and necks, as recipes write them, in loops


def naive_resize(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, align_corners=False: the centre of an output pixel, in the input's pixels."""
    out = x.new_zeros(*x.shape[:2], height, width)
    for row in range(height):
        for column in range(width):
            y = min(max((row + 0.5) * x.shape[2] / height - 0.5, 0), x.shape[2] - 1)
            z = min(max((column + 0.5) * x.shape[3] / width - 0.5, 0), x.shape[3] - 1)
            top, left = int(y), int(z)
            bottom, right = min(top + 1, x.shape[2] - 1), min(left + 1, x.shape[3] - 1)
            upper = x[:, :, top, left] * (1 - z + left) + x[:, :, top, right] * (z - left)
            lower = x[:, :, bottom, left] * (1 - z + left) + x[:, :, bottom, right] * (z - left)
            out[:, :, row, column] = upper * (1 - y + top) + lower * (y - top)
    return out


def naive_conv_norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Convolution without bias, batch norm, ReLU."""
    kernel = weights[f"{name}.0.weight"]
    pad = kernel.shape[-1] // 2
    padded = F.pad(x, (pad, pad, pad, pad))
    out = torch.zeros(len(x), len(kernel), *x.shape[2:])
    for i in range(kernel.shape[-1]):
        for j in range(kernel.shape[-1]):
            shifted = padded[:, :, i : i + x.shape[2], j : j + x.shape[3]]
            out = out + torch.einsum("oc,bchw->bohw", kernel[:, :, i, j], shifted)
    return naive_norm(weights, f"{name}.1", out)


def naive_norm(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    mean, variance, scale, shift = (
        weights[f"{name}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return ((x - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)


def naive_scores(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    kernel, bias = weights["classify.1.weight"][:, :, 0, 0], weights["classify.1.bias"]
    return torch.einsum("oc,bchw->bohw", kernel, x) + bias.view(-1, 1, 1)


def naive_pool(x: Tensor, cells: int) -> Tensor:
    """Means of cells that begin at ⌊i·h/n⌋ and end at ⌈(i+1)·h/n⌉."""
    height, width = x.shape[2:]
    out = x.new_zeros(*x.shape[:2], cells, cells)
    for i in range(cells):
        for j in range(cells):
            rows = slice(i * height // cells, -(-(i + 1) * height // cells))
            columns = slice(j * width // cells, -(-(j + 1) * width // cells))
            out[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    return out


def stirred(module: nn.Module) -> nn.Module:
    """In evaluation, with norms that do something."""
    torch.manual_seed(1)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)  # type: ignore[arg-type]
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias)
    return module.eval()


@torch.no_grad()
def test_uper_head_against_a_naive_one() -> None:
    head = stirred(UperHead([3, 4, 5, 6], classes=7, width=2))
    weights = head.state_dict()
    sizes = [(11, 9), (6, 5), (3, 3), (2, 2)]
    levels = [torch.randn(2, c, *size) for c, size in zip((3, 4, 5, 6), sizes, strict=True)]
    pools = [
        naive_resize(naive_conv_norm(weights, f"pools.{i}.1", naive_pool(levels[3], n)), 2, 2)
        for i, n in enumerate((1, 2, 3, 6))
    ]
    p4 = naive_conv_norm(weights, "pooled", torch.cat([levels[3], *pools], 1))
    p3 = naive_conv_norm(weights, "laterals.2", levels[2]) + naive_resize(p4, 3, 3)
    p2 = naive_conv_norm(weights, "laterals.1", levels[1]) + naive_resize(p3, 6, 5)
    p1 = naive_conv_norm(weights, "laterals.0", levels[0]) + naive_resize(p2, 11, 9)
    smooth = [naive_conv_norm(weights, f"smooth.{i}", level) for i, level in enumerate((p1, p2, p3))]
    fused = naive_conv_norm(weights, "fuse", torch.cat([naive_resize(one, 11, 9) for one in (*smooth, p4)], 1))
    assert_close(head(levels), naive_scores(weights, fused), atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("depth", [1, 2])
def test_fcn_head_against_a_naive_one(depth: int) -> None:
    head = stirred(FCNHead(5, classes=3, width=4, depth=depth))
    x = maps = torch.randn(2, 5, 6, 7)
    for i in range(depth):
        maps = naive_conv_norm(head.state_dict(), f"convs.{i}", maps)
    assert_close(head(x), naive_scores(head.state_dict(), maps), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_multi_level_neck_against_a_naive_one() -> None:
    neck = multi_level_neck(4)
    x = torch.randn(2, 4, 5, 6)
    for layer, scale in zip(neck.layers, (4, 2, 1, 0.5), strict=True):
        stirred(layer)
        point = torch.einsum("oc,bchw->bohw", layer.point.weight[:, :, 0, 0], x) + layer.point.bias.view(-1, 1, 1)
        resized = naive_resize(point, {4: 20, 2: 10, 1: 5, 0.5: 3}[scale], int(6 * scale))
        assert_close(layer(x), F.conv2d(resized, layer.conv.weight, layer.conv.bias, padding=1), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("make", "scales"), [(side_layers, (4, 2, 1, 1)), (fcn_side_layers, (1, 2))])
def test_side_layers_against_naive_ones(make, scales: tuple[int, ...]) -> None:
    neck = make(3, out=5)
    assert neck.channels == [3] * (len(scales) - 1) + [5]
    x = torch.randn(2, 3, 2, 3)
    for layer, scale in zip(neck.layers, scales, strict=True):
        weights = stirred(layer).state_dict()
        maps = x
        if scale > 1:  # each cell becomes scale × scale cells of its own
            maps = torch.einsum("bchw,coij->bohiwj", x, weights["0.weight"]).flatten(2, 3).flatten(3, 4)
            maps = naive_norm(weights, "1", maps)
        assert_close(layer(x), naive_conv_norm(weights, str(len(layer) - 1), maps), atol=1e-5, rtol=1e-4)


def test_enlarging_keeps_places_and_leaves_padding_away() -> None:
    ramp = torch.arange(4.0).view(1, 1, 1, 4).expand(1, 1, 3, 4)
    large = enlarge(ramp, 8, (20, 27))
    assert large.shape == (1, 1, 20, 27)
    centres = (torch.arange(27) + 0.5) / 8 - 0.5  # of pixels, in cells
    assert_close(large[0, 0, 5], centres.clamp(0, 3))


# Backbones


def saved_classifier(spec: str, folder: Path) -> tuple[nn.Module, str]:
    torch.manual_seed(2)
    classifier = create(spec, num_classes=6).eval()
    save_file(classifier.state_dict(), folder / "classifier.safetensors")
    return classifier, str(folder / "classifier.safetensors")


@torch.no_grad()
@pytest.mark.parametrize("backbone", FAMILIES, ids=name_of)
def test_a_classifiers_weights_load(backbone: str, tmp_path: Path) -> None:
    classifier, file = saved_classifier(backbone, tmp_path)
    levels = make_levels(backbone, init=file)
    given = classifier.state_dict()
    assert not {name for name, value in levels.model.state_dict().items() if not torch.equal(value, given[name])}
    left = {name.split(".")[0] for name in given.keys() - levels.model.state_dict().keys()}
    assert left <= {"norm", "fc_norm", "head", "head_dist", "aux_head", "norm_pre"}


@torch.no_grad()
@pytest.mark.parametrize("backbone", [PVT, DEIT, FAMILIES[-1]], ids=name_of)
def test_features_are_the_classifiers_own(backbone: str, tmp_path: Path) -> None:
    classifier, file = saved_classifier(backbone, tmp_path)
    levels = make_levels(backbone, init=file).eval()
    levels.outs = nn.ModuleList(nn.Identity() for _ in levels.outs)
    side = 64 if "img_size" in backbone else 224
    images = torch.randn(2, 3, side, side)
    last = classifier.norm(levels(images)[-1].flatten(2).transpose(1, 2))
    assert_close(last, classifier.forward_features(images)[:, 1:], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_levels_of_swin_are_its_stages_with_a_norm(tmp_path: Path) -> None:
    classifier, file = saved_classifier(SWIN, tmp_path)
    levels = make_levels(SWIN, init=file).eval()
    images = torch.randn(2, 3, 224, 224)
    found = levels(images)
    for i, (stage, out) in enumerate(zip(classifier.forward_intermediates(images)[1][:3], levels.outs, strict=False)):
        tokens = F.layer_norm(stage.permute(0, 2, 3, 1), (stage.shape[1],), out.weight, out.bias, out.eps)
        assert_close(found[i], tokens.permute(0, 3, 1, 2), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("backbone", [PVT, DEIT], ids=name_of)
def test_positions_are_interpolated(backbone: str, tmp_path: Path) -> None:
    """A model made for larger images, with weights that timm fits to it, computes the same."""
    _, file = saved_classifier(backbone, tmp_path)
    levels = make_levels(backbone, init=file).eval()
    larger = make_levels(backbone.replace("img_size=64", "img_size=(96, 128)"), init=file).eval()
    larger.outs = levels.outs
    position = "pos_embed1" if backbone == PVT else "pos_embed"
    assert getattr(larger.model, position).shape != getattr(levels.model, position).shape
    images = torch.randn(1, 3, 96, 128)
    for found, expected in zip(levels(images), larger(images), strict=True):
        assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("block", PADDED, ids=lambda block: block.__name__)
def test_windows_do_not_reach_around_the_border(block: type[nn.Module]) -> None:
    """A map of 9×9 in windows of 4, shifted by 2: a token sees those of its window, which begins at 2 + 4·k."""
    torch.manual_seed(0)
    made = block(4, (9, 9), num_heads=1, window_size=4, shift_size=2, always_partition=True, dynamic_mask=True)
    made.__class__ = PADDED[block]
    x = torch.randn(1, 9, 9, 4, requires_grad=True)
    window = [(place - 2) // 4 for place in range(9)]
    for row, column in ((0, 0), (1, 8), (8, 1), (4, 6), (8, 8)):
        (seen,) = torch.autograd.grad(made._attn(x)[0, row, column].sum(), x)
        expected = [[window[i] == window[row] and window[j] == window[column] for j in range(9)] for i in range(9)]
        assert (seen[0].abs().sum(-1) > 1e-12).tolist() == expected


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple sequence")  # in timm
def test_tables_of_smaller_windows_are_fitted(tmp_path: Path) -> None:
    """Of a classifier whose images were too small for whole windows."""
    classifier, file = saved_classifier(f"{SWIN[:-1]}, img_size=64)", tmp_path)
    tables = {n: v for n, v in classifier.state_dict().items() if n.endswith("bias_table")}
    fitted = make_levels(SWIN, init=file).model.state_dict()
    assert {len(table) for table in tables.values()} == {13 * 13, 7 * 7, 3 * 3}
    for name, table in tables.items():
        assert fitted[name].shape == (13 * 13, table.shape[1])
        assert_close(fitted[name][6 * 13 + 6], table[len(table) // 2])  # no distance stays no distance


@torch.no_grad()
def test_a_copy_is_as_good() -> None:
    segmenter = make_segmenter(SWIN, "fcn", classes=3, width=4).eval()
    copied = copy.deepcopy(segmenter)
    images = torch.randn(1, 3, 50, 70)
    assert_close(copied(images).logits, segmenter(images).logits)
    for parameter in segmenter.parameters():
        parameter.zero_()
    assert copied(images).logits.any()


def test_drop_path_is_what_is_asked_for() -> None:
    assert not any(drop_paths(make_levels(SWIN)))
    assert max(drop_paths(make_levels(SWIN, drop_path=0.3))) == pytest.approx(0.3)


# Runs


ARGUMENTS = {
    "num_classes": 6,
    "drop_path_rate": 0.1,
    "img_size": 48,
    "depth": 4,
    "embed_dim": 12,
    "num_heads": 2,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a classifier's run."""
    folder = tmp_path / "run"
    folder.mkdir()
    torch.manual_seed(3)
    classifier = create("deit_tiny_patch16_224", **ARGUMENTS)
    save_file(classifier.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": "deit_tiny_patch16_224", "model_args": ARGUMENTS}))
    return folder


def drop_paths(levels: Levels) -> list[float]:
    return [module.drop_prob for module in levels.modules() if isinstance(module, timm.layers.DropPath)]


def test_a_run_is_a_backbone(run: Path) -> None:
    given = load_file(run / "model.safetensors")
    for levels in (make_levels(str(run)), make_levels("deit_tiny_patch16_224", init=str(run))):
        assert all(torch.equal(value, given[name]) for name, value in levels.model.state_dict().items())
        assert not any(drop_paths(levels))  # not that of the classifier
    assert max(drop_paths(make_levels(str(run), drop_path=0.3))) == pytest.approx(0.3)
    fitted = make_levels(str(run), image_size=80)
    assert fitted.model.pos_embed.shape == (1, 1 + 5 * 5, 12)
    deeper = resolve("deit_tiny_patch16_224(img_size=32, depth=5)", str(run), image_size=80)
    assert deeper == Backbone(
        "deit_tiny_patch16_224",
        {"img_size": 32, "depth": 5, "embed_dim": 12, "num_heads": 2},
        str(run / "model.safetensors"),
    )


@torch.no_grad()
@pytest.mark.parametrize("backbone", [*FAMILIES, "run"], ids=name_of)
def test_a_spec_makes_the_same_architecture(backbone: str, run: Path) -> None:
    """Without the run, from what a file in JSON can hold."""
    made = make_segmenter(str(run) if backbone == "run" else backbone, classes=3, width=4, image_size=96).eval()
    spec = json.loads(json.dumps(made.levels.spec))
    assert str(run) not in spec
    again = make_segmenter(spec, classes=3, width=4).eval()
    assert again.levels.spec == spec
    again.load_state_dict(made.state_dict())
    images = torch.randn(1, 3, 70, 96)
    assert torch.equal(again(images).logits, made(images).logits)


def test_lists_of_a_runs_config_are_as_good_as_tuples(tmp_path: Path) -> None:
    name, arguments = parse(SWIN)
    save_file(create(SWIN, num_classes=2).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": name, "model_args": {**arguments, "num_classes": 2}})
    )
    assert make_levels(str(tmp_path)).channels == make_levels(SWIN).channels


def test_runs_that_do_not_fit_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a run of deit_tiny_patch16_224, not of deit_small.*run itself as --back"):
        make_levels("deit_small_patch16_224", init=str(run))
    with pytest.raises(ValueError, match="brings its own weights: omit --init"):
        make_levels(str(run), init="pretrained")
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.json"):
        make_levels(str(tmp_path))
    with pytest.raises(ValueError, match=r"is not a run: it has no config\.json"):
        make_levels("deit_small_patch16_224", init=str(tmp_path))
    with pytest.raises(ValueError, match="there is no folder runs/none; a backbone is a timm model or the folder"):
        make_levels("runs/none")
    for task in ("segment", "detect"):
        (run / "config.json").write_text(json.dumps({"task": task, "model": "deit_tiny_patch16_224(depth=4)"}))
        for arguments in ((str(run), ""), ("deit_tiny_patch16_224", str(run))):
            with pytest.raises(ValueError, match="only a classifier's weights can be used"):
                make_levels(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "cait_xxs24_224"}, "cait_xxs24_224 takes images of one size only"),
        ({"backbone": "no_such_model"}, "timm has no model"),
        ({"backbone": "convmixer_768_32"}, "has no maps at strides 4, 8, 16 and 32"),
        ({"backbone": "deit_tiny_patch16_224(depth=3)"}, "need at least four blocks; this model has 3"),
        ({"head": "segformer"}, "there is no head 'segformer'; there are upernet, fcn"),
        ({"classes": 1}, "at least two classes, not 1"),
    ],
)
def test_errors_say_what_would_be_right(arguments: dict[str, object], message: str) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        make_segmenter(**arguments)  # type: ignore[arg-type]
