"""A device that is not the CPU, for machines that have no GPU: tests name it 'elsewhere'.

What it is asked it computes on the CPU, but an operation on one of its tensors and one of the CPU
fails, as it does on a GPU. It needs torch's experimental support for devices in Python.
"""

import torch
import torch.utils._device
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from transformers import PreTrainedModel

NAME = 'elsewhere'


class Elsewhere(torch.Tensor):
    "A tensor of that device; `here` holds its numbers."

    @staticmethod
    def __new__(cls, here, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )

    def __init__(self, here, requires_grad=False):
        self.here = here

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = twin = Elsewhere(self.here.clone(), self.requires_grad)
            twin._is_param = getattr(self, '_is_param', False)
        return memo[id(self)]

    def tolist(self):
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return fallback(op, *args, **(kwargs or {}))


def is_ours(x):
    return isinstance(x, Elsewhere)


def away(x):
    return Elsewhere(x) if isinstance(x, torch.Tensor) and not is_ours(x) else x


def unwrapped(x):
    return x.here if is_ours(x) else x


class TwoDevices(RuntimeError):
    "What a GPU answers with an error too."


COPIES = ('aten::_to_copy', 'aten::copy_', 'aten::_copy_from')


def fallback(op, *args, **kwargs):
    "What an operation gives, computed on the CPU."
    name = op._schema.name
    flat, spec = tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    foreign = [x for x in tensors if not is_ours(x) and x.dim() > 0]
    if name in COPIES:
        return copied(op, name, args, kwargs)
    if foreign and not may_mix(name, args):
        raise TwoDevices(f'{name}: tensors on {NAME} and on the CPU')
    flat = [unwrapped(x) for x in flat]
    flat = ['cpu' if isinstance(x, torch.device) else x for x in flat]
    here_args, here_kwargs = tree_unflatten(flat, spec)
    found = op(*here_args, **here_kwargs)
    return wrapped_like(op, args, kwargs, found)


def may_mix(name, args):
    "Whether a GPU takes CPU tensors here: as the indices of one of its own tensors."
    return name in ('aten::index', 'aten::index_put', 'aten::index_put_') and is_ours(args[0])


def wrapped_like(op, args, kwargs, found):
    "What an operation gives; what it changed in place is given as it came in."
    mine = {id(x.here): x for x in tree_flatten((args, kwargs))[0] if is_ours(x)}

    def back(x):
        if not isinstance(x, torch.Tensor):
            return x
        return mine.get(id(x)) if id(x) in mine else Elsewhere(x)

    return tree_map(back, found)


def copied(op, name, args, kwargs):
    "Copies are what may go from one device to the other."
    if name == 'aten::_to_copy':
        kwargs = dict(kwargs)
        device = kwargs.pop('device', None)
        x = args[0]
        here = torch.ops.aten._to_copy(unwrapped(x), **kwargs)
        to_here = device is not None and torch.device(device).type == 'cpu'
        if to_here:
            return here
        return Elsewhere(here) if is_ours(x) or device is not None else here
    if name == 'aten::_copy_from':
        source, target = args[:2]
        unwrapped(target).copy_(unwrapped(source))
        return target
    unwrapped(args[0]).copy_(unwrapped(args[1]))
    return args[0]


_LIBRARY = []
MAKERS = ('tensor', 'as_tensor', 'arange', 'full', 'zeros', 'ones', 'empty', 'eye', 'linspace')


def made_here_first(maker):
    "A factory as `torch.tensor`: what is meant for that device is made on the CPU and taken there."

    def made(*args, device=None, **how):
        if args and is_ours(args[0]):
            moved = {name: x for name, x in dict(how, device=device).items() if x is not None}
            return args[0].to(**moved) if moved else args[0]
        if device is None:
            return maker(*args, **how)
        if torch.device(device).type != NAME:
            return maker(*args, device=device, **how)
        return maker(*args, **how).to(device)

    return made


def tied_again(to):
    "`model.to`, which gives two modules that share a weight one each for a device like ours."

    def moved(model, *where, **how):
        found = to(model, *where, **how)
        found.tie_weights()
        return found

    return moved


def install():
    "Make the device known to torch; its name."
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    if _LIBRARY:
        return NAME
    _setup_privateuseone_for_python_backend(NAME)
    torch.utils._device._device_constructors()  # it is asked once, and wants the real ones
    for maker in MAKERS:
        setattr(torch, maker, made_here_first(getattr(torch, maker)))
    PreTrainedModel.to = tied_again(PreTrainedModel.to)
    every = torch.library.Library('_', 'IMPL')
    every.fallback(fallback, 'PrivateUse1')
    _LIBRARY.append(every)
    return NAME
