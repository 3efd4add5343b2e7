"""What the nodes of a torch.fx graph are given, and how many channels they have, as the modules say that make or take
them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.fx import Node

Modules = Mapping[str, nn.Module]


def name_of(node: Node) -> str:
    """Of a function or a method: `add` for operator.add, torch.add, x.add and x.add_."""
    target = node.target
    return (target if isinstance(target, str) else getattr(target, "__name__", str(target))).strip("_")


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Of a call of a function or a method, on a map that is its first argument."""
    return node.kwargs.get(name, node.args[position] if len(node.args) > position else default)


def dims_of(node: Node) -> tuple[Any, ...]:
    """Of x.permute(0, 2, 3, 1), or of x.permute((0, 2, 3, 1))"""
    return tuple(node.args[1:]) if len(node.args) > 2 else tuple(argument(node, 1, "dims"))


def window_of(node: Node) -> tuple[Any, ...]:
    """kernel, stride, padding and ceil_mode of a functional pool"""
    ceil = 5 if name_of(node) == "max_pool2d" else 4  # behind the dilation
    if ceil == 5 and argument(node, 4, "dilation", 1) not in (1, (1, 1)):
        raise ValueError("labelflow follows pools without holes")
    names = {"kernel_size": 1, "stride": 2, "padding": 3, "ceil_mode": ceil}
    kernel, stride, padding, ceil_mode = (argument(node, position, name) for name, position in names.items())
    return (kernel, stride or kernel, padding or 0, bool(ceil_mode))


def places_of(index: Any, axis: int) -> tuple[Any, ...] | None:
    """Which rows and columns x[index] takes of a map; None: all."""
    if not isinstance(index, tuple):
        return None
    places = [part for dim, part in enumerate(index) if dim not in (0, axis)]
    if Ellipsis in index or not all(isinstance(part, slice) for part in places):
        raise ValueError(f"labelflow does not know which places {index} takes")
    return None if all(part == slice(None) for part in places) else tuple((p.start, p.stop, p.step) for p in places)


def channels_of(node: Node, modules: Modules) -> int:
    channels = _made(node, modules) or _taken(node, modules)
    if channels is None:
        raise ValueError(f"labelflow does not see how many channels {node.name!r} has, which is concatenated")
    return channels


def _made(node: Node, modules: Modules) -> int | None:
    """What a node's origin says."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        return _said(module, "out") or (None if list(module.children()) else _made(node.all_input_nodes[0], modules))
    if node.op != "call_function" and node.op != "call_method":
        return _taken(node, modules)
    name = name_of(node)
    if name in ("cat", "concat"):
        return sum(channels_of(part, modules) for part in argument(node, 0, "tensors"))
    if name == "getitem":
        return _part(node.all_input_nodes[0], node.args[1], modules)
    found = (_made(given, modules) for given in node.all_input_nodes if given.op != "get_attr")
    return next((channels for channels in found if channels), None)


def _part(source: Node, index: Any, modules: Modules) -> int | None:
    """Of one piece of a split, or of a slice."""
    name = name_of(source)
    if isinstance(index, int) and name == "split":
        sizes = argument(source, 1, "split_size_or_sections", source.kwargs.get("split_size"))
        return sizes[index] if isinstance(sizes, Sequence) else sizes
    whole = _made(source.all_input_nodes[0] if name == "chunk" else source, modules)
    if whole is None:
        return None
    if isinstance(index, int) and name == "chunk":
        return whole // argument(source, 1, "chunks")
    if isinstance(index, tuple) and len(index) > 1 and isinstance(index[1], slice):
        return len(range(whole)[index[1]])
    return None


def _taken(node: Node, modules: Modules) -> int | None:
    """What those say that take a node."""
    for user in node.users:
        if user.op == "output" or (user.op != "call_module" and name_of(user) in ("getitem", "split", "chunk")):
            continue
        said = _said(modules[str(user.target)], "in") if user.op == "call_module" else None
        if said or (user.all_input_nodes == [node] and (said := _taken(user, modules))):
            return said
    return None


def _said(module: nn.Module, side: str) -> int | None:
    for name in (f"{side}_channels", f"{side}_features", "num_features", "num_channels"):
        if isinstance(channels := getattr(module, name, None), int):
            return channels
    return None
