"""What the operations of a torch.fx graph do to a map of labels, read off one after another.

A node has a step of the plan that gives its labels, or none if it has no place in the image: a gate, a global average,
a size. Sums and products of maps count each of them alike, Norm(Y₁ + Y₂ + …); concatenations count them by their
channels, as a convolution does, whose labels are the mean over its channels.
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.fx
from timm import layers
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from timm.layers.selective_kernel import SelectiveKernelAttn
from torch import nn
from torch.fx import Node

from labelflow.adapters.graph_nodes import argument, channels_of, dims_of, name_of, places_of, window_of
from labelflow.adapters.registry import adapter_of, known_module


class Step(NamedTuple):
    """One operation on maps: what it makes of the results of earlier steps. Step 0 is the module's input."""

    operation: str  # "combine", "module" (one with an adapter), or a key of graph.FUNCTIONS or graph.LAYERS
    inputs: tuple[int, ...]  # earlier steps
    module: str = ""  # the submodule that does it, if one does
    options: tuple[Any, ...] = ()  # what else there is to know; plain data


# Files of torch.nn.modules and of timm.layers whose modules leave every label where it is
TORCH_FILES = "activation batchnorm dropout instancenorm linear normalization"
TIMM_FILES = """activations drop eca evo_norm filter_response_norm global_context grn inplace_abn layer_scale norm
    norm_act squeeze_excite"""
POINTWISE_FILES = {
    *(f"torch.nn.modules.{file}" for file in TORCH_FILES.split()),
    *(f"timm.layers.{file}" for file in TIMM_FILES.split()),
}
POINTWISE_MODULES = (layers.Mlp, layers.ConvMlp)
# Functions and methods that do so
POINTWISE = frozenset(
    """abs celu clamp clone contiguous detach dropout elu exp float gelu hardsigmoid hardswish hardtanh leaky_relu mish
    neg relu relu6 rsqrt selu sigmoid silu softplus sqrt square tanh to type type_as layer_norm batch_norm group_norm
    rms_norm rms_norm2d fast_layer_norm fast_group_norm fast_rms_norm fast_rms_norm2d drop_path""".split()  # noqa: SIM905
)
SUMS = {"add", "iadd", "sub", "isub", "stack", "maximum", "minimum"}
PRODUCTS = {"mul", "imul", "multiply", "div", "truediv", "floordiv", "pow"}
ALONG = {"softmax": None, "normalize": 1, "glu": -1}  # among channels only; the dimension if none is told
REDUCTIONS = {"mean", "amax", "amin", "max", "sum", "var", "std"}
POOLS = nn.AvgPool2d | nn.MaxPool2d | AvgPool2dSame | MaxPool2dSame
GLOBAL = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, layers.SelectAdaptivePool2d, SelectiveKernelAttn)
LAYERS = {
    "convolve": nn.Conv2d,
    "pool": POOLS,
    "blur": layers.BlurPool2d,
    "surround": nn.ConstantPad2d | nn.ZeroPad2d,
    "unshuffle": layers.SpaceToDepth,
}
CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
PASSING = (nn.Identity, nn.Dropout, layers.DropPath, layers.LayerScale2d)  # between a sum and the sum it is part of


def is_pointwise(module: nn.Module) -> bool:
    moves = isinstance(module, nn.MultiheadAttention)
    return not moves and (type(module).__module__ in POINTWISE_FILES or isinstance(module, POINTWISE_MODULES))


class Tracer(torch.fx.Tracer):
    """Traces into everything but modules with a rule, or an adapter, of their own; into those that are followed along
    their graph, too, unless `whole_blocks`."""

    def __init__(self, method: str = "forward", whole_blocks: bool = False) -> None:
        super().__init__(autowrap_functions=tuple(layers.get_notrace_functions()))
        self.traced_func_name = method
        self.whole_blocks = whole_blocks

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        adapter = adapter_of(m)
        if adapter is not None:
            return self.whole_blocks or adapter.plan is None
        ruled = isinstance(m, (*GLOBAL, layers.SplitAttn, *layers.get_notrace_modules()))
        return ruled or is_pointwise(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_module(m, m.forward, args, kwargs)  # without its hooks

    def read(self, module: nn.Module) -> list[Step]:
        """The steps that lead from a module's first argument to its output; others have their defaults."""
        name = type(module).__name__
        arguments = list(inspect.signature(getattr(module, self.traced_func_name)).parameters.values())[1:]
        given = {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}
        checkpointed = [m for m in module.modules() if getattr(m, "grad_checkpointing", False)]
        try:
            for part in checkpointed:  # computes the same
                part.grad_checkpointing = False  # type: ignore[assignment]
            graph = self.trace(module, given)
        except Exception as error:
            raise ValueError(f"labelflow cannot read the graph of {name}: {type(error).__name__}: {error}") from error
        finally:
            for part in checkpointed:
                part.grad_checkpointing = True  # type: ignore[assignment]
        return _Reader(dict(module.named_modules()), name).read(graph)


class _Reader:
    def __init__(self, modules: dict[str, nn.Module], owner: str) -> None:
        self.modules, self.owner = modules, owner
        self.steps = [Step("input", ())]
        self.place: dict[Node, int | None] = {}  # the step that gives a node's labels
        self.axis: dict[Node, int] = {}  # where a node has its channels: 1 of (B, C, h, w), 3 of (B, h, w, C)
        self.length: dict[Node, int] = {}  # of the longest way to a node

    def read(self, graph: torch.fx.Graph) -> list[Step]:
        axis = 3 if self._begins_with_channels_last(graph) else 1
        for node in graph.nodes:
            maps = self._maps(node)
            self.length[node] = 1 + max((self.length[given] for given in maps), default=0)
            self.axis[node] = self.axis[maps[0]] if maps else axis
            if node.op == "output":
                ends = {self.place[given] for given in maps}
                if len(ends) != 1:
                    raise ValueError(f"labelflow follows labels to one map, but {self.owner} returns {len(ends)}")
                return _used(self.steps, ends.pop() or 0)
            if node.op == "placeholder":
                self.place[node] = None if any(other.op == "placeholder" for other in self.place) else 0
            else:
                self.place[node] = self._follow(node, maps) if maps else None
        raise AssertionError("a graph ends with its output")

    def _begins_with_channels_last(self, graph: torch.fx.Graph) -> bool:
        """As a permutation tells; or linear layers, where there are no others."""
        for node in graph.nodes:
            if node.op == "call_method" and node.target == "permute":
                return dims_of(node) == CHANNELS_FIRST
        called = [self.modules[str(node.target)] for node in graph.nodes if node.op == "call_module"]
        flat = [isinstance(module, nn.Linear | layers.Mlp) for module in called]
        return any(flat) and not any(isinstance(module, nn.Conv2d | POOLS) for module in called)

    def _maps(self, node: Node) -> list[Node]:
        return [given for given in node.all_input_nodes if self.place[given] is not None]

    def _add(self, operation: str, inputs: Sequence[Node], module: str = "", options: tuple[Any, ...] = ()) -> int:
        computed: list[Node] = []
        torch.fx.node.map_arg(options, computed.append)
        if computed:
            raise self._unknown(f"{operation!r} with numbers that are only known when it runs")
        self.steps.append(Step(operation, tuple(self.place[node] or 0 for node in inputs), module, options))
        return len(self.steps) - 1

    def _unknown(self, what: str) -> ValueError:
        return ValueError(f"labelflow does not know what {what} in {self.owner} does to labels")

    def _follow(self, node: Node, maps: list[Node]) -> int | None:
        """The step that gives a node's labels, a new one unless they are those of a node before it."""
        same = self.place[maps[0]]
        if node.op == "call_module":
            return self._follow_module(str(node.target), maps[0])
        name = name_of(node)
        if name in POINTWISE:
            return same
        if name in SUMS | PRODUCTS | {"cat", "concat"}:
            return self._combine(node, name)
        if name in ALONG:
            self._check_axis(node, argument(node, 2 if name == "normalize" else 1, "dim", ALONG[name]))
            return same
        if name in ("getattr", "size", "dim", "adaptive_avg_pool2d", "adaptive_max_pool2d"):
            return None
        if name in REDUCTIONS:
            return same if self._keeps_places(node, name) else None
        if name in ("chunk", "split"):
            self._check_axis(node, argument(node, 2, "dim", 0))
            return same
        if name == "permute":
            if {1: CHANNELS_LAST, 3: CHANNELS_FIRST}[self.axis[node]] != dims_of(node):
                raise self._unknown(f"permute{dims_of(node)}")
            self.axis[node] = 4 - self.axis[node]
            return same
        if name == "getitem":
            places = places_of(node.args[1], self.axis[node])
            return same if places is None else self._add("crop", maps[:1], options=places)
        if name in ("avg_pool2d", "max_pool2d"):
            return self._add("window", maps[:1], options=window_of(node))
        if name == "pad":
            sides, mode = argument(node, 1, "pad"), argument(node, 2, "mode", "constant")
            if len(sides) != 4 or self.axis[node] != 1 or mode != "constant":
                raise self._unknown(f"padding {sides} ({mode})")
            return self._add("pad", maps[:1], options=tuple(sides))
        if name == "interpolate":
            return self._resize(node, maps[0])
        raise self._unknown(repr(name))

    def _follow_module(self, name: str, given: Node) -> int | None:
        module = self.modules[name]
        if isinstance(module, GLOBAL):
            if getattr(module, "output_size", 1) not in (1, (1, 1), None):
                raise self._unknown(str(module))
            return None
        if isinstance(module, layers.SplitAttn):  # a convolution and gates among its channels
            return self._follow_module(f"{name}.conv", given)
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride == (1, 1) and not any(module.padding):
            return self.place[given]
        for operation, kinds in LAYERS.items():
            if isinstance(module, kinds):
                known_module(module)  # a subclass with a forward of its own is an error that says so
                return self._add(operation, [given], name)
        if is_pointwise(module):
            linear = isinstance(module.fc1 if isinstance(module, layers.Mlp) else module, nn.Linear)
            if linear and self.axis[given] == 1:
                raise self._unknown(f"a linear layer along columns, {name!r},")
            return self.place[given]
        if isinstance(module, nn.Upsample):
            how = (module.size, module.scale_factor, module.mode, module.align_corners)
            return self._add("resize", [given], options=how)
        known_module(module)  # or it is an error that says so
        return self._add("module", [given], name)

    def _check_axis(self, node: Node, dim: Any) -> None:
        if not isinstance(dim, int) or dim % 4 != self.axis[node]:
            raise self._unknown(f"{name_of(node)!r} along {dim}")

    def _keeps_places(self, node: Node, name: str) -> bool:
        """Whether a reduction is one over channels; if not, it has to be one over all places."""
        dims = argument(node, 1, "dim")
        axes = {dim % 4 for dim in (dims if isinstance(dims, Sequence) else [dims]) if isinstance(dim, int)}
        if axes == {self.axis[node]}:
            return True
        if dims is None or axes >= {1, 2, 3} - {self.axis[node]}:
            return False
        raise self._unknown(f"{name!r} over {dims}")

    def _combine(self, node: Node, name: str) -> int | None:
        """Norm(Σ wᵢYᵢ). A second set of weights leaves the shortcut out: the term that came the shortest way."""
        terms, counts = self._terms(node) if name in SUMS else self._maps(node), None
        if name in ("cat", "concat"):
            self._check_axis(node, argument(node, 1, "dim", 0))
            terms = [part for part in argument(node, 0, "tensors") if self.place[part] is not None]
            counts = [channels_of(term, self.modules) for term in terms] if len(set(terms)) > 1 else None
        lengths = [self.length[term] for term in terms]
        has_shortcut = name in SUMS and len(terms) > 1 and lengths.count(min(lengths)) == 1
        weights = dict.fromkeys((self.place[term] or 0 for term in terms), 0)
        without = dict(weights)
        for term, length, count in zip(terms, lengths, counts or [1] * len(terms), strict=True):
            weights[self.place[term] or 0] += count
            without[self.place[term] or 0] += 0 if has_shortcut and length == min(lengths) else count
        if len(weights) == 1:
            return self.place[terms[0]]
        if not node.users:
            raise ValueError(f"labelflow cannot follow {name!r} in {self.owner}, which changes a map in place")
        self.steps.append(Step("combine", tuple(weights), options=(tuple(weights.values()), tuple(without.values()))))
        return len(self.steps) - 1

    def _terms(self, node: Node) -> list[Node]:
        """What is summed; a sum inside a sum, which nothing else reads, is part of it."""
        terms = []
        for given in self._maps(node):
            inner = given
            while inner.op == "call_module" and len(inner.users) == 1:
                if not isinstance(self.modules[str(inner.target)], PASSING):
                    break
                inner = inner.all_input_nodes[0]
            is_sum = inner.op != "call_module" and name_of(inner) in SUMS and len(inner.users) == 1
            terms.extend(self._terms(inner) if is_sum else [given])
        return terms

    def _resize(self, node: Node, given: Node) -> int:
        """By a factor, to a size, or to that of another map, which the size has been taken from."""
        size, scale = argument(node, 1, "size"), argument(node, 2, "scale_factor")
        how = (argument(node, 3, "mode", "nearest"), argument(node, 4, "align_corners"))
        behind = [one for one in node.all_input_nodes if one is not given]
        while behind and self.place[behind[0]] is None and name_of(behind[0]) in ("getattr", "size", "getitem"):
            behind = behind[0].all_input_nodes
        if behind and self.place[behind[0]] is not None:
            return self._add("resize", [given, behind[0]], options=(None, None, *how))
        return self._add("resize", [given], options=(size, scale, *how))


def _used(steps: list[Step], last: int) -> list[Step]:
    """The steps that lead to the last one, numbered anew."""
    wanted = {0, last}
    for place in range(last, 0, -1):
        if place in wanted:
            wanted.update(steps[place].inputs)
    numbers = {place: number for number, place in enumerate(sorted(wanted))}
    return [steps[place]._replace(inputs=tuple(numbers[i] for i in steps[place].inputs)) for place in numbers]
