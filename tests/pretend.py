"""A pretend device: tensors that say they lie on it, and compute on the CPU.

On a GPU the host runs ahead of the device, and that is fast only as long as nothing makes it wait. Without a GPU,
`pretending` shows where it would:

    with pretending() as log:
        model, images = model.to(DEVICE), images.to(DEVICE)
        model(images).sum().backward()
    log.waits          # where the host waits: .item(), .tolist(), boolean masks, copies that block, ...
    log.meetings       # where tensors of two devices meet, which a GPU refuses
    log.host_scalars   # where tensors of one number on the host meet them: a GPU allows it, a CUDA graph freezes it
    log.casts          # copies in another dtype
    log.doubles        # tensors of doubles there, which Apple GPUs refuse
    log.attention      # calls of scaled_dot_product_attention
    log.launches       # how many kernels each operator would launch

Each has a place, the function that called torch, and its line. `launches` is for those who only count.

torch has one device for what it does not know, PrivateUse1, to which gradients and autocast extend. It is registered
when it is needed first, and stays; but other tests in this process see no device, since it is available inside
`pretending` only. What other threads do is not seen.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import labelflow

DEVICE = "pretend"
TORCH = f"{Path(torch.__file__).parent}/"
HOMES = [f"{Path(package.__file__).parent.parent}/" for package in (labelflow, torch)]  # of packages
STAGED = 64 * 1024  # bytes that CUDA takes from memory that is not pinned without a look at what the device does
DOUBLES = (torch.float64, torch.complex128)
aten = torch.ops.aten

WAITING = {  # operators whose result, or its size, the host has to know
    *(aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.bincount.default),
    *(aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default),
    *(aten.unique_consecutive.default, aten.unique_dim_consecutive.default, aten.allclose.default),
}
INDEXING = {  # operators that take indices
    *(aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.index_put_.default),
    *(aten._unsafe_index_put.default, aten._index_put_impl_.default),
}
NO_KERNEL = {  # operators that launch none, besides views
    *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default),
    *(aten.new_empty_strided.default, aten._unsafe_view.default, aten.lift_fresh.default),
}
# What autocast runs in half precision, and in float32, as far as vision transformers have it.
HALF = (
    *("conv1d", "conv2d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
    "scaled_dot_product_attention",
)
SINGLE = (
    *("softmax.int", "log_softmax.int", "layer_norm", "group_norm", "exp", "log", "rsqrt", "pow.Tensor_Scalar"),
    *("cumsum", "linalg_vector_norm", "binary_cross_entropy_with_logits", "kl_div", "nll_loss", "mse_loss"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
)


class Place(NamedTuple):
    function: str  # such as "labelflow/mixers/base.py:partners" or "timm/layers/drop.py:drop_path"
    line: int


class Note(NamedTuple):
    place: Place
    what: str


class Cast(NamedTuple):
    """A copy in another dtype."""

    place: Place
    shape: tuple[int, ...]
    before: torch.dtype
    after: torch.dtype


class Attention(NamedTuple):
    """A call of scaled_dot_product_attention: what it got, autocast included. The tensors are to be looked at only."""

    place: Place
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None


class Log:
    """What was noticed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.waits: list[Note] = []
        self.meetings: list[Note] = []
        self.host_scalars: list[Note] = []
        self.casts: list[Cast] = []
        self.doubles: list[Note] = []
        self.attention: list[Attention] = []
        self.launches: Counter[str] = Counter()

    def large_casts(self, size: int) -> list[Cast]:
        """Copies in another dtype of at least so many numbers, those that labelflow itself makes."""
        own = [cast for cast in self.casts if cast.place.function.startswith("labelflow/")]
        return [cast for cast in own if math.prod(cast.shape) >= size]

    def notice(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What an operator that takes or makes tensors on the device means to the host."""
        if func in (aten._to_copy.default, aten.copy_.default):
            self._notice_copy(func, args, kwargs)
        elif func in INDEXING:
            self._notice_indices(func, args)
        elif func in WAITING or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
            self.waits.append(Note(_place(), str(func)))
        else:
            self._notice_company(func, args, kwargs)
        if not func.is_view and func not in NO_KERNEL:
            self.launches[str(func)] += args[0].shape[0] if func is aten.im2col.default else 1  # CUDA's has a loop

    def _notice_copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        into, source = args[:2] if func is aten.copy_.default else (None, args[0])
        was = isinstance(source, OnDevice)
        is_now = _goes_to_device((source,), kwargs) if into is None else isinstance(into, OnDevice)
        blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if was and not is_now:
            self.waits.append(Note(_place(), "a copy to the host"))
        elif is_now and not was and blocks:
            self.waits.append(Note(_place(), "a copy to the device that blocks"))
        elif is_now and not was and not _is_pinned(source) and source.nbytes > STAGED:
            self.waits.append(Note(_place(), f"a copy of {source.nbytes} bytes from memory that is not pinned"))
        after = (kwargs.get("dtype") or source.dtype) if into is None else into.dtype
        if was and is_now and after != source.dtype:
            self.casts.append(Cast(_place(), tuple(source.shape), source.dtype, after))

    def _notice_indices(self, func: Any, args: tuple[Any, ...]) -> None:
        values = args[2] if len(args) > 2 else None
        fills = isinstance(values, Tensor) and values.numel() == 1 and not isinstance(values, OnDevice)
        if not isinstance(args[0], OnDevice):
            self.meetings.append(Note(_place(), f"{func} of a tensor on the host"))
        for index in args[1]:
            if isinstance(index, Tensor) and not isinstance(index, OnDevice):
                self.waits.append(Note(_place(), f"{func} with indices on the host"))
            elif isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) and not fills:
                self.waits.append(Note(_place(), f"{func} with a mask"))

    def _notice_company(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Generator) for leaf in leaves):  # there are none of the device
            self.meetings.append(Note(_place(), f"{func} with a generator on the host"))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        on_host = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
        shapes = [tuple(tensor.shape) for tensor in on_host if tensor.ndim]
        if len(on_host) in (0, len(tensors)):
            return
        if shapes:
            self.meetings.append(Note(_place(), f"{func} with {shapes} on the host"))
        elif func is aten.where.self:  # the one that copies it, and waits
            self.waits.append(Note(_place(), f"{func} with a number on the host"))
        else:
            self.host_scalars.append(Note(_place(), str(func)))


class OnDevice(Tensor):
    """A tensor that says it lies on the pretend device."""

    host: Tensor  # its values

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnDevice":
        tensor = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(DEVICE, 0),
        )
        tensor.host = host
        return tensor

    def __repr__(self) -> str:
        return f"OnDevice({self.host!r})"

    def tolist(self) -> Any:
        for log in _logs[-1:]:
            log.waits.append(Note(_place(), "tolist"))
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


_logs: list[Log] = []  # of the blocks that are open, the innermost last; none: nothing is noticed
_pinned: dict[int, Tensor] = {}  # by address, as long as a block is open


@contextmanager
def pretending() -> Iterator[Log]:
    """Inside, there is a pretend device, and what happens on it is noticed."""
    if not hasattr(torch._C, "_acc"):
        pytest.skip("this torch takes no devices written in Python")  # torch 2.8
    _register()
    log, lifted = Log(), torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifted)
        torch._C._set_only_lift_cpu_tensors(True)  # tensors made of Python's numbers are seen on their way
        stack.enter_context(mock.patch.object(_Hook, "available", True))
        # Parameters stay the same objects when their module goes to the device, and optimizers take them together.
        stack.enter_context(mock.patch.object(torch.__future__, "_swap_module_params_on_conversion", True))
        stack.enter_context(mock.patch.object(optimizer, "_foreach_supported_types", [Tensor, nn.Parameter, OnDevice]))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # another thread would see no device
        stack.enter_context(_noticing([log]))
        stack.enter_context(_Watch())
        stack.callback(_pinned.clear)
        yield log


def launches(call: Callable[..., object], *inputs: Tensor) -> int:
    """How many kernels a call launches on the pretend device. The inputs, and the call if it is a module, go there.

    >>> launches(torch.add, torch.ones(2), torch.ones(2))
    1
    """
    with pretending() as log:
        if isinstance(call, nn.Module):
            call.to(DEVICE)
        inputs = tuple(tensor.to(DEVICE) for tensor in inputs)
        log.clear()
        call(*inputs)
        return log.launches.total()


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator, on the CPU, whose results are on the device if they would be."""
    if func in (aten._pin_memory.default, aten.is_pinned.default):
        return _pin(args[0]) if func is aten._pin_memory.default else _is_pinned(args[0])
    leaves = tree_leaves((args, kwargs))
    given = {id(leaf.host): leaf for leaf in leaves if isinstance(leaf, OnDevice)}
    goes = _goes_to_device(leaves, kwargs)
    if not given and not goes:
        pinned = kwargs.pop("pin_memory", False)
        made = func(*args, **kwargs)
        return _pin(made) if pinned else made
    for log in _logs[-1:]:
        log.notice(func, args, kwargs)
    args, kwargs = tree_map(lambda leaf: leaf.host if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    made = func(*args, **kwargs)
    if goes and any(isinstance(leaf, Tensor) and leaf.dtype in DOUBLES for leaf in tree_leaves(made)):
        for log in _logs[-1:]:
            log.doubles.append(Note(_place(), str(func)))
    return tree_map(lambda leaf: _sent(leaf, given), made) if goes else made


def _sent(leaf: Any, given: dict[int, OnDevice]) -> Any:
    """The same on the device: one of those that were given, if it was changed in place."""
    return given.get(id(leaf), OnDevice(leaf)) if isinstance(leaf, Tensor) else leaf


def _goes_to_device(leaves: Any, kwargs: dict[str, Any]) -> bool:
    """Whether what an operator makes is on the device."""
    device = kwargs.get("device")
    return any(isinstance(leaf, OnDevice) for leaf in leaves) if device is None else device.type == DEVICE


def _pin(tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    _pinned[copy.untyped_storage().data_ptr()] = copy
    return copy.view_as(copy)


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


@contextmanager
def _noticing(logs: list[Log]) -> Iterator[None]:
    with mock.patch.object(sys.modules[__name__], "_logs", logs):
        yield


def _place() -> Place:
    """The function nearest to here that is neither torch's nor this file's."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    path, function = frame.f_code.co_filename, frame.f_code.co_qualname.split(".<locals>")[0]
    home = next((home for home in HOMES if path.startswith(home)), f"{Path(path).parent}/")
    return Place(f"{path.removeprefix(home)}:{function}", frame.f_lineno)


class _Hook(torch._C._acc.PrivateUse1Hooks if hasattr(torch._C, "_acc") else object):
    """What torch asks of a device."""

    available = False

    def is_available(self) -> bool:
        return self.available

    def has_primary_context(self, device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Module(getattr(backend_registration, "_DummyBackendModule", object)):
    """What `torch.cuda` is to CUDA."""

    def is_available(self) -> bool:
        return _Hook.available

    def device_count(self) -> int:
        return int(_Hook.available)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def _register() -> list[torch.library.Library]:
    """Makes the device known to torch, once in a process: its name, autocast, and attention as one kernel."""
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, _Module(), _Hook())
    anything, library = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    anything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in HALF:
        library.impl(name, _cast(name, None), "AutocastPrivateUse1")
    for name in SINGLE:
        library.impl(name, _cast(name, torch.float32), "AutocastPrivateUse1")
    library.impl("scaled_dot_product_attention", _attend, "AutogradPrivateUse1")
    return [anything, library]  # which stay as long as they are referred to


def _cast(name: str, dtype: torch.dtype | None) -> Callable[..., Any]:
    """An operator under autocast; None: in its half precision."""
    name, _, overload = name.partition(".")
    operator = getattr(getattr(aten, name), overload or "default")
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def call(*args: Any, **kwargs: Any) -> Any:
        after = dtype or torch.get_autocast_dtype(DEVICE)
        is_cast = lambda leaf: isinstance(leaf, OnDevice) and leaf.is_floating_point()  # noqa: E731
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            args, kwargs = tree_map(lambda leaf: leaf.to(after) if is_cast(leaf) else leaf, (args, kwargs))
            return operator(*args, **kwargs)

    return call


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    for log in _logs[-1:]:
        log.attention.append(Attention(_place(), query.detach(), key.detach(), value.detach(), bias))
        log.launches["scaled_dot_product_attention"] += 1
    with _noticing([]), torch.autocast(DEVICE, enabled=False):
        return aten._scaled_dot_product_attention_math(
            query, key, value, bias, dropout, causal, scale=scale, enable_gqa=enable_gqa
        )[0]
