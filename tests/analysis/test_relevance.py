"""Relevance maps against closed forms, against naive versions of all three methods, and against TL-Align's labels."""

import copy
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from helpers import box_mix, build, images_for, sharpen
from labelflow.analysis.relevance import METHODS, relevance, upsampled

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3}
LVVIT = {**TINY, "patch_size": None, "img_size": 32, "stem_width": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", TINY),
    "oblong, registers": ("vit_tiny_patch16_224", {**TINY, "img_size": (16, 24), "reg_tokens": 1, "qk_norm": True}),
    "averaged": ("vit_tiny_patch16_224", {**TINY, "global_pool": "avg", "class_token": False}),
    "layer scale": ("vit_tiny_patch16_224", {**TINY, "init_values": 0.3, "act_layer": "quick_gelu"}),
    "distilled": ("deit_tiny_distilled_patch16_224", TINY),
    "lvvit": ("lvvit_s", {key: value for key, value in LVVIT.items() if value is not None}),
}


def tiny(kind: str = "vit", **arguments: Any) -> VisionTransformer:
    name, defaults = MODELS[kind]
    return sharpen(timm.create_model(name, **{**defaults, **arguments})).eval().double()


def images(model: VisionTransformer, batch: int = 2) -> Tensor:
    shape = (batch, 3, *model.patch_embed.img_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


# One block and one head, in which everything is a number


def scalar_model(start: float, query_key: float, value: float, projection: float, head: list[float]) -> nn.Module:
    """Tokens are numbers: the class token's is `start`, a patch's the mean of its pixels. The MLP adds nothing."""
    model = timm.create_model(
        "vit_tiny_patch16_224",
        **{**TINY, "embed_dim": 1, "depth": 1, "num_heads": 1, "num_classes": len(head), "final_norm": False},
    ).double()
    block = model.blocks[0]
    block.norm1 = block.norm2 = nn.Identity()
    weights = {
        model.cls_token: start,
        model.patch_embed.proj.weight: 1 / (3 * 8 * 8),
        block.attn.qkv.weight: torch.tensor([[query_key], [1.0], [value]]),
        block.attn.proj.weight: projection,
        model.head.weight: torch.tensor(head).unsqueeze(1),
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.as_tensor(weights.get(parameter, 0.0)))
    return model.eval()


def test_closed_form_of_one_block() -> None:
    start, query_key, value, projection, head = 1.0, 0.4, 0.7, 1.5, [0.8, -0.6]
    model = scalar_model(start, query_key, value, projection, head)
    patches = torch.tensor([[2.0, -1.0], [0.5, 3.0]], dtype=torch.float64)
    picture = patches.repeat_interleave(8, 0).repeat_interleave(8, 1).expand(1, 3, 16, 16)
    tokens = torch.cat([torch.tensor([start]), patches.flatten()])

    attention = (query_key * start * tokens).softmax(0)
    values = value * tokens
    mixed = (attention * values).sum()
    branch = projection * mixed
    assert_close(relevance(model, picture, method="rollout")[0].flatten(), attention[1:] / 2)
    for chosen, weight in enumerate(head):
        gradient = weight * projection * values  # of the logit by the class token's row of the attention
        found = relevance(model, picture, torch.tensor([chosen]), "gradient")[0].flatten()
        assert_close(found, (gradient * attention).clamp(min=0)[1:])
        # Relevance 1 of the logit reaches the sum of start and branch if that raises the logit, and is divided there.
        arrives = branch.abs() / (abs(start) + branch.abs()) if weight * (start + branch) > 0 else 0.0
        of_attention = attention * values / mixed * arrives / 2
        found = relevance(model, picture, torch.tensor([chosen]), "lrp")[0].flatten()
        assert_close(found, (gradient * of_attention).clamp(min=0)[1:])
        assert (found > 0).all() == (chosen == 0)


# Naive versions, for one image: a forward pass by hand, and every rule spelled out


def norm(module: Any, x: Tensor) -> Tensor:
    if isinstance(module, nn.Identity):
        return x
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def linear(module: Any, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def run_block(block: Any, x: Tensor) -> dict[str, Any]:
    """All that happens in a block to tokens (N, D); heads in lists."""
    heads = block.attn.num_heads
    qkv = linear(block.attn.qkv, norm(block.norm1, x))
    parts = [list(third.chunk(heads, -1)) for third in qkv.chunk(3, -1)]
    queries = [norm(block.attn.q_norm, query) for query in parts[0]]
    keys = [norm(block.attn.k_norm, key) for key in parts[1]]
    scores = [query @ key.T / key.shape[1] ** 0.5 for query, key in zip(queries, keys, strict=True)]
    attention = [score.exp() / score.exp().sum(1, keepdim=True) for score in scores]
    mixed = torch.cat([a @ v for a, v in zip(attention, parts[2], strict=True)], 1)
    branch = block.ls1(linear(block.attn.proj, mixed))
    between = x + branch
    hidden = block.mlp.act(linear(block.mlp.fc1, norm(block.norm2, between)))
    second = block.ls2(linear(block.mlp.fc2, hidden))
    seen = {"x": x, "queries": queries, "keys": keys, "values": parts[2], "attention": attention, "mixed": mixed}
    return {**seen, "branch": branch, "between": between, "hidden": hidden, "second": second, "out": between + second}


def linear_rule(module: Any, x: Tensor, relevance: Tensor) -> Tensor:
    """Each input of each output gets its part of what raises that output, if anything does."""
    result = torch.zeros_like(x)
    for token in range(len(x)):
        for output in range(len(module.weight)):
            raising = (module.weight[output] * x[token]).clamp(min=0)
            if raising.sum() > 1e-9:
                result[token] += raising / raising.sum() * relevance[token, output]
    return result


def matmul_rule(left: Tensor, right: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Of left (N, M) @ right (M, D)."""
    of_left, of_right = torch.zeros_like(left), torch.zeros_like(right)
    for row in range(left.shape[0]):
        for column in range(right.shape[1]):
            parts = left[row] * right[:, column]
            given = parts / parts.sum() * relevance[row, column] / 2
            of_left[row] += given
            of_right[:, column] += given
    return of_left, of_right


def add_rule(left: Tensor, right: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    a, b = left * relevance / (left + right), right * relevance / (left + right)
    size = a.sum().abs() + b.sum().abs()
    return (
        a / a.sum() * relevance.sum() * a.sum().abs() / size,
        b / b.sum() * relevance.sum() * b.sum().abs() / size,
    )


def block_rule(block: Any, seen: dict[str, Any], relevance: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The relevance of a block's input, and of its heads' attention."""
    to_between, to_second = add_rule(seen["between"], seen["second"], relevance)
    to_hidden = linear_rule(block.mlp.fc2, seen["hidden"], to_second)
    to_between = to_between + linear_rule(block.mlp.fc1, norm(block.norm2, seen["between"]), to_hidden)
    to_x, to_branch = add_rule(seen["x"], seen["branch"], to_between)
    to_mixed = linear_rule(block.attn.proj, seen["mixed"], to_branch)
    of_attention, to_queries, to_keys, to_values = [], [], [], []
    for head, given in enumerate(to_mixed.chunk(block.attn.num_heads, 1)):
        to_attention, to_value = matmul_rule(seen["attention"][head], seen["values"][head], given)
        to_query, to_key = matmul_rule(seen["queries"][head], seen["keys"][head].T, to_attention)
        of_attention.append(to_attention)
        to_queries.append(to_query)
        to_keys.append(to_key.T)
        to_values.append(to_value)
    to_qkv = torch.cat([*to_queries, *to_keys, *to_values], 1)
    return to_x + linear_rule(block.attn.qkv, norm(block.norm1, seen["x"]), to_qkv), of_attention


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """From tokens after the last block, (N, D): of the class token alone for an LV-ViT."""
    tokens = norm(model.norm, tokens)
    if hasattr(model, "head_dist"):
        return (linear(model.head, tokens[0]) + linear(model.head_dist, tokens[1])) / 2
    pooled = tokens.mean(0) if model.global_pool == "avg" else tokens[0]
    return linear(model.head, norm(model.fc_norm, pooled))


def head_rule(model: Any, tokens: Tensor, chosen: int) -> Tensor:
    """The relevance of the tokens after the last block: norms pass it on."""
    start = torch.zeros(1, model.num_classes, dtype=tokens.dtype)
    start[0, chosen] = 1
    tokens, result = norm(model.norm, tokens), torch.zeros_like(tokens)
    if hasattr(model, "head_dist"):
        scores = linear(model.head, tokens[:1]), linear(model.head_dist, tokens[1:2])
        starts = add_rule(*scores, start)
        result[:1] = linear_rule(model.head, tokens[:1], starts[0])
        result[1:2] = linear_rule(model.head_dist, tokens[1:2], starts[1])
    elif model.global_pool == "avg":
        to_pooled = linear_rule(model.head, norm(model.fc_norm, tokens.mean(0, keepdim=True)), start)
        result = tokens / tokens.sum(0) * to_pooled
    else:
        result[:1] = linear_rule(model.head, tokens[:1], start)
    return result


def naive(model: Any, image: Tensor, chosen: int, method: str) -> Tensor:
    """(h·w,)"""
    x = model._pos_embed(model.patch_embed(image.unsqueeze(0)))[0]
    blocks = []
    for block in model.blocks:
        blocks.append(run_block(block, x))
        x = blocks[-1]["out"]
    flat = [attention for seen in blocks for attention in seen["attention"]]
    gradients = list(torch.autograd.grad(logits_of(model, x)[chosen], flat))
    with torch.no_grad():
        given, relevances = head_rule(model, x, chosen), []
        for block, seen in zip(reversed(model.blocks), reversed(blocks), strict=True):
            given, of_attention = block_rule(block, seen, given)
            relevances = of_attention + relevances
        total, heads = torch.eye(len(x), dtype=x.dtype), model.blocks[0].attn.num_heads
        for layer in range(len(blocks)):
            here = range(layer * heads, (layer + 1) * heads)
            if method == "rollout":
                mixing = sum(flat[i] for i in here) / heads + torch.eye(len(x), dtype=x.dtype)
                total = mixing / mixing.sum(1, keepdim=True) @ total
            else:
                weights = flat if method == "gradient" else relevances
                total = total + sum((gradients[i] * weights[i]).relu() for i in here) / heads @ total
    prefix = model.num_prefix_tokens
    rows = total if model.global_pool == "avg" else total[: 2 if hasattr(model, "head_dist") else 1]
    return rows.mean(0)[prefix:]


@pytest.mark.parametrize("kind", MODELS)
def test_two_blocks_against_a_naive_version(kind: str) -> None:
    model = tiny(kind)
    pictures, classes = images(model), torch.tensor([2, 0])
    for method in METHODS:
        found = relevance(model, pictures, classes, method)
        assert found.shape[1:] == model.patch_embed.grid_size
        for picture, chosen, result in zip(pictures, classes.tolist(), found, strict=True):
            expected = naive(model, picture, chosen, method)
            assert_close(result.flatten(), expected, rtol=1e-6, atol=1e-12)
            assert expected.std() > 1e-6


# Laws


@pytest.mark.parametrize("family", ["vit", "vit, oblong", "vit, registers", "vit, average", "deit distilled", "lvvit"])
def test_rollout_is_how_labels_flow(family: str) -> None:
    model, pictures = build(family), images_for(family)
    mix = box_mix(pictures)
    mixed = mix.apply(pictures)
    found = relevance(model, mixed, method="rollout")
    patches = (found * mix.tokens(found.shape[1:])).sum((1, 2))
    others = (1 - found.sum((1, 2))) * mix.lam  # tokens without a place start with the image's ratio
    assert_close(patches + others, lf.Aligned(model)(mixed, mix.share)[1])


@pytest.mark.parametrize("method", ["gradient", "lrp"])
def test_nothing_is_relevant_to_a_class_without_weights(method: str) -> None:
    model = tiny()
    nn.init.zeros_(model.head.weight[1])
    maps = relevance(model, images(model), torch.tensor([1, 2]), method)
    assert (maps[0] == 0).all()
    assert (maps[1] > 0).any()


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_its_samples_one_by_one(method: str) -> None:
    model = tiny()
    pictures, classes = images(model, 3), torch.tensor([0, 2, 2])
    alone = [relevance(model, pictures[[i]], classes[[i]], method) for i in range(3)]
    assert_close(relevance(model, pictures, classes, method), torch.cat(alone))


@pytest.mark.parametrize("kind", ["vit", "lvvit"])
def test_classes_have_maps_of_their_own(kind: str) -> None:
    model = tiny(kind)
    pictures = images(model)
    first, second = model(pictures).topk(2).indices.unbind(1)
    for method in METHODS:
        maps = [relevance(model, pictures, classes, method) for classes in (None, first, second)]
        assert torch.equal(maps[0], maps[1])
        assert torch.equal(maps[1], maps[2]) == (method == "rollout")
        assert (maps[1] >= 0).all()


def test_sums_that_cancel_do_not_spoil_a_map_in_single_precision() -> None:
    model = tiny("lvvit", embed_dim=24, depth=6, num_heads=3, img_size=64)
    pictures, classes = images(model, 6).float(), torch.arange(6) % 3
    exact = relevance(model, pictures.double(), classes)
    single = relevance(model.float(), pictures, classes)
    assert single.dtype == torch.float32
    assert_close(single.double(), exact, rtol=1e-4, atol=1e-5 * exact.amax().item())


@pytest.mark.parametrize("method", METHODS)
def test_fused_or_not(method: str) -> None:
    model = tiny()
    maps = []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        maps.append(relevance(model, images(model), method=method))
    assert_close(*maps)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["vit", "lvvit"])
def test_the_model_is_left_as_it_was(kind: str, method: str) -> None:
    model = tiny(kind, drop_rate=0.5, attn_drop_rate=0.5, drop_path_rate=0.5).float()
    pictures = images(model).float()
    logits = model(pictures)
    before = relevance(model, pictures, method=method)
    model.train()
    model.blocks[0].eval()
    model.pos_embed.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    attributes = [repr(vars(module)) for module in model.modules()]
    parameters, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    chance = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu"):
        assert_close(relevance(model, pictures * 1, method=method), before)
    assert attributes == [repr(vars(module)) for module in model.modules()]
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert [name for name, parameter in parameters.items() if not parameter.requires_grad] == ["pos_embed"]
    assert [name for name, parameter in parameters.items() if parameter.grad is not None] == ["head.weight"]
    assert (model.head.weight.grad == 1).all()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)
    assert not pictures.requires_grad
    assert not before.requires_grad
    assert torch.equal(model.eval()(pictures), logits)


def test_weights_that_are_frozen() -> None:
    model = tiny()
    trained = relevance(model, images(model))
    assert torch.equal(relevance(model.requires_grad_(False), images(model)), trained)


def test_upsampled() -> None:
    maps = torch.tensor([[[1.0, 3.0], [1.0, 3.0]], [[0.3, 0.3], [0.3, 0.3]], [[-2e-12, 0.0], [0.0, 0.0]]])
    large = upsampled(maps, (4, 4))
    assert_close(large[0], torch.tensor([0, 0.25, 0.75, 1]).expand(4, 4))
    assert (large[1] == 0).all()
    assert (large[2].min(), large[2].max()) == (0, 1)


# Refusals


@pytest.mark.parametrize("family", ["swin", "convnext", "mixer", "vit, siglip", "vit, differential", "vit, parallel"])
def test_models_without_attention_to_be_seen(family: str) -> None:
    with pytest.raises(ValueError, match="a ViT, a DeiT or an LV-ViT"):
        relevance(build(family), images_for(family))


def test_bad_input() -> None:
    model = tiny()
    pictures = images(model)
    with pytest.raises(ValueError, match="no method 'cam'; there are lrp, gradient, rollout"):
        relevance(model, pictures, method="cam")
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\), not \(3, 16, 16\)"):
        relevance(model, pictures[0])
    with pytest.raises(ValueError, match="refused images of 8×16 pixels"):
        relevance(model, pictures[:, :, :8])
    for classes in (torch.tensor([1]), torch.tensor([1.0, 2.0]), torch.tensor(1)):
        with pytest.raises(ValueError, match="2 whole numbers"):
            relevance(model, pictures, classes)
    for classes in (torch.tensor([0, 3]), torch.tensor([-1, 0])):
        with pytest.raises(ValueError, match="0 to 2"):
            relevance(model, pictures, classes)
    with pytest.raises(ValueError, match=r"\(B, h, w\), not \(2, 2\)"):
        upsampled(torch.zeros(2, 2), (4, 4))


def test_models_that_cannot_be_explained_as_they_are() -> None:
    model = tiny(act_layer="hard_swish")
    assert (relevance(model, images(model), method="gradient") > 0).any()
    with pytest.raises(ValueError, match="no relevance rule for torch's 'hardswish'"):
        relevance(model, images(model))
    model.set_grad_checkpointing()
    with pytest.raises(ValueError, match="set_grad_checkpointing"):
        relevance(model, images(model))
    with pytest.raises(ValueError, match="no classifier"):
        relevance(tiny(num_classes=0), images(model))
    with pytest.raises(ValueError, match="global_pool='max'"):
        relevance(tiny(global_pool="max"), images(model))
