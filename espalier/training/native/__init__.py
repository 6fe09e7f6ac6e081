"""Native kernels for linear layers, small convolutions, norms, attention: optional, built where there is a compiler.

`setup.py` compiles ``kernels.cpp`` into one shared library per level of the processor's architecture, beside this file;
the best one that the processor has is used. ``ESPALIER_NATIVE=avx2`` asks for another, ``ESPALIER_NATIVE=0`` for none.
Without kernels everything runs in plain PyTorch. All give the same results up to rounding.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.training.host import ROOM

_VERSION = 10
"""Of the library's functions; a library of another version, left from another build, is not used."""

#: from the least that a processor of an architecture has to the most
LEVELS = ("baseline", "avx2", "avx512")


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


class ChainLink(ctypes.Structure):
    """A layer of a chain: ``struct Link`` of chain.h."""

    _fields_ = [
        *_fields(ctypes.c_int64, "conv", "weight", "bias", "trains_weight", "trains_bias", "relu", "pooled"),
        *_fields(ctypes.c_int64, "in_", "height", "width", "out", "kh", "kw", "ph", "pw"),
    ]


class ChainTraining(ctypes.Structure):
    """What one client trains: ``struct Training`` of chain.h."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "vector", "momentum", "anchor", "correction", "offset", "x"),
        *_fields(ctypes.c_void_p, "labels", "sizes", "spans"),
        ("links", ctypes.POINTER(ChainLink)),
        *_fields(ctypes.c_int64, "n_links", "n_spans", "size", "steps", "width"),
        *_fields(ctypes.c_double, "lr", "mu", "decay", "momentum_rate"),
        ("nesterov", ctypes.c_int64),
        ("loss", ctypes.c_double),
    ]


class StridedTensor(ctypes.Structure):
    """A tensor ``[sample, head, place, number]``: ``struct Strided`` of attention.h."""

    _fields_ = [("at", ctypes.c_void_p), *_fields(ctypes.c_int64, "row", "head", "place")]


class Kernels:
    """The library's functions, for contiguous float32 tensors on the CPU.

    Attributes:
        linear_rows: Rows of one client up to which linear layers are faster here than in PyTorch.
        lanes: Numbers of a vector: channels of a normalisation must be a multiple.
        last_weights: Weights of one client up to which convolutions of images with channels last are faster here.
        scores: Queries times keys up to which attention is faster here.
        half: Whether convolutions take images in bfloat16.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in ("espalier_pool_forward", "espalier_pool_backward"):
            getattr(library, name).argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3]
            getattr(library, name).restype = None
        library.espalier_conv_forward.argtypes = [ctypes.c_void_p] * 6
        library.espalier_conv_backward.argtypes = [ctypes.c_void_p] * 8
        sizes = [ctypes.c_int64] * 4
        library.espalier_linear_forward.argtypes = [*[ctypes.c_void_p] * 4, *sizes]
        library.espalier_linear_backward.argtypes = [*[ctypes.c_void_p] * 6, *[ctypes.c_int] * 2, *sizes]
        for name in ("espalier_linear_forward", "espalier_linear_backward"):
            getattr(library, name).restype = None
        flags = [ctypes.c_int] * 2
        library.espalier_norm_forward.argtypes = [*[ctypes.c_void_p] * 6, ctypes.c_double, *flags]
        library.espalier_norm_backward.argtypes = [*[ctypes.c_void_p] * 9, *flags]
        for name in ("espalier_attention_forward", "espalier_attention_backward"):
            getattr(library, name).argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_double]
        self.lanes: int = library.espalier_lanes()
        self.scores: int = library.espalier_attention_scores()
        self.half = bool(library.espalier_conv_half())
        self.linear_rows: int = library.espalier_linear_rows()
        self.last_weights: int = library.espalier_last_weights()
        # levels without fused multiply-add have none
        self._weighted_sum = getattr(library, "espalier_weighted_sum", None)
        if self._weighted_sum is not None:
            arrays = [ctypes.c_void_p] * 4
            self._weighted_sum.argtypes = [*arrays[:2], ctypes.c_int64, *arrays, ctypes.c_int64]
            self._weighted_sum.restype = None
        self._library = library

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x [K, B, in]`` times ``weight [K, out, in]`` transposed, plus ``bias [K, out]``: ``[K, B, out]``."""
        y = x.new_empty(*x.shape[:2], weight.shape[1])
        self._library.espalier_linear_forward(*map(_at, (x, weight, bias, y)), *x.shape, weight.shape[1])
        return y

    def linear_backward(
        self,
        x: Tensor,
        weight: Tensor,
        g: Tensor,
        gw: Tensor | None,
        gb: Tensor | None,
        *,
        add: tuple[bool, bool] = (False, False),
        wants_x: bool,
    ) -> Tensor | None:
        """Put the gradients of a linear layer where they belong.

        Args:
            x: Inputs ``[K, B, in]``.
            weight: Weights ``[K, out, in]``.
            g: The result's gradient ``[K, B, out]``.
            gw: Where the weights' gradient goes; the weights themselves are accepted.
            gb: Where the biases' gradient goes, ``[K, out]``.
            add: Whether the weights' and the biases' gradients are added to what is there.
            wants_x: Whether the input's gradient is wanted.

        Returns:
            The input's gradient ``[K, B, in]``, by the weights as they were given.
        """
        gx = torch.empty_like(x) if wants_x else None
        tensors = (x, weight, g, gx, gw, gb)
        self._library.espalier_linear_backward(*map(_at, tensors), *add, *x.shape, weight.shape[1])
        return gx

    def conv(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], *, stride: int = 1, pooled: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve with ``weight [K, O, C, kh, kw]`` per client.

        Args:
            x: Images ``[K, B, C, H, W]``; or ``[K·B, C, H, W]``, channels last, with an O that is a multiple of lanes,
                also in bfloat16 (the result is, too) with an even C. Any O will do for a 1×1 kernel and a stride of 1,
                if nothing is pooled.
            weight: Weights; with channels last also ``[K, C, 1, kh, kw]``: each channel by itself, C like O above.
            bias: ``[K, O]``.
            padding: Rows and columns of zeros around an image, each smaller than the kernel.
            stride: Of images with channels last.
            pooled: ReLU and 2×2 max-pooling follow.

        Returns:
            ``[…, O, h, w]`` and, for the backward pass, which number of each window was taken (if pooled), in
            the kernels' own order.
        """
        height, width = ((x.shape[i] + 2 * padding[i] - weight.shape[i]) // stride + 1 for i in (-2, -1))
        size = (*x.shape[:-3], weight.shape[1], *((height // 2, width // 2) if pooled else (height, width)))
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        y = torch.empty(size, dtype=x.dtype, memory_format=layout)
        where = torch.empty(size, dtype=torch.uint8, memory_format=layout) if pooled else None
        tensors, shape = (x, weight, bias, y, where), _shape(x, weight, padding, stride)
        self._checked(self._library.espalier_conv_forward(*map(_at, tensors), shape), x)
        return y, where

    def conv_backward(
        self, x: Tensor, weight: Tensor, g: Tensor, where: Tensor | None, padding: list[int], *,
        stride: int = 1, wants_x: bool, wants_w: bool = True,
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:  # fmt: skip
        """Return the gradients of ``x`` (if wanted; C is then as O must be), weights (also), biases."""
        gx, gw = torch.empty_like(x) if wants_x else None, torch.empty_like(weight) if wants_w or x.dim() == 5 else None
        gb = weight.new_empty(weight.shape[:2])
        tensors, shape = (x, weight, g, where, gx, gw, gb), _shape(x, weight, padding, stride)
        self._checked(self._library.espalier_conv_backward(*map(_at, tensors), shape), x)
        return gx, gw, gb

    def norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, *, relu: bool
    ) -> tuple[Tensor, Tensor]:
        """Group normalisation of ``x [K·B, C, H, W]`` (channels last; float32 or bfloat16).

        ``weight`` and ``bias`` are ``[K, C]`` and float32, as is all arithmetic.

        Returns:
            The result (ReLU applied if asked for), and what the backward pass wants to know.
        """
        y, stats = torch.empty_like(x), weight.new_empty(x.shape[0], groups, 2)
        at, sizes = [*map(_at, (x, weight, bias, y, stats))], _norm_sizes(x, weight, groups)
        self._checked(self._library.espalier_norm_forward(*at, sizes, eps, relu, x.dtype == torch.bfloat16), x)
        return y, stats

    def norm_backward(
        self, x: Tensor, weight: Tensor, bias: Tensor, g: Tensor, stats: Tensor, *, relu: bool, wants_x: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the gradients of ``x`` (if wanted), the weights and the biases from that of the result."""
        gx = torch.empty_like(x) if wants_x else None
        gw, gb = torch.empty_like(weight), torch.empty_like(bias)
        at, sizes = [*map(_at, (x, weight, bias, g, stats, gx, gw, gb))], _norm_sizes(x, weight, stats.shape[1])
        self._checked(self._library.espalier_norm_backward(*at, sizes, relu, x.dtype == torch.bfloat16), x)
        return gx, gw, gb

    def attention(self, qkv: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        """Mix values by the softmax of ``scale`` times queries times keys, plus a mask.

        Args:
            qkv: Queries, keys and values ``[samples, heads, places, numbers]``. Of these and of the mask only the last
                axis must be contiguous.
            mask: ``[samples, heads, queries, keys]``, or None. Where it is -inf for all keys the result is 0.
            scale: A factor.

        Returns:
            The result (in memory ``[samples, queries, heads, numbers]``), and what the backward pass wants to know.
        """
        (samples, heads, queries, numbers), keys = qkv[0].shape, qkv[1].shape[2]
        y = qkv[0].new_empty(samples, queries, heads, numbers).transpose(1, 2)
        stats = y.new_empty(samples, heads, 2, -(-queries // self.lanes) * self.lanes)
        sizes = (ctypes.c_int64 * 5)(samples, heads, queries, keys, numbers)
        self._checked(self._library.espalier_attention_forward(_strided(*qkv, mask, y), _at(stats), sizes, scale), y)
        return y, stats

    def attention_backward(
        self, qkv: Sequence[Tensor], mask: Tensor | None, g: Tensor, stats: Tensor, scale: float, into: Sequence[Tensor]
    ) -> None:
        """Overwrite ``into`` with the gradients of queries, keys and values, from ``g``, the result's."""
        tensors, sizes = _strided(*qkv, mask, g, *into), (ctypes.c_int64 * 5)(*g.shape[:3], *qkv[1].shape[2:])
        self._checked(self._library.espalier_attention_backward(tensors, _at(stats), sizes, scale), g)

    def train(self, training: ChainTraining) -> bool:
        """Make all steps of one client; False if a label is no class (the vector is then of no use)."""
        failed = self._library.espalier_train(ctypes.byref(training))
        if failed == 1:
            raise TrainingError("There is no memory to train a client; make batches or the fleet smaller.")
        return not failed

    def pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """ReLU and 2×2 max-pooling of ``x [..., H, W]``, and which number of each window was taken."""
        y = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
        where = torch.empty_like(y, dtype=torch.uint8)
        self._library.espalier_pool_forward(*map(_at, (x, y, where)), *_planes(x.shape))
        return y, where

    def pool_backward(self, g: Tensor, where: Tensor, shape: torch.Size) -> Tensor:
        """Return the gradient of the input, which had ``shape``."""
        gx = g.new_empty(shape)
        self._library.espalier_pool_backward(*map(_at, (g, where, gx)), *_planes(shape))
        return gx

    @property
    def adds(self) -> bool:
        """Whether :meth:`weighted_sum` is there."""
        return self._weighted_sum is not None

    def weighted_sum(
        self, coefficients: Sequence[float], vectors: Sequence[Tensor], start: Tensor | None, rounded: bool = False
    ) -> tuple[Tensor, list[bool]]:
        """Add ``coefficients`` times ``vectors [n]``, in order, to ``start [n]`` (float64; None: 0), as PyTorch does.

        Returns:
            The sum ``[n]``, float64 or ``rounded`` to float32, and which vectors have only finite numbers; it is of use
            if all have.
        """
        count, size = len(vectors), len(vectors[0])
        total = ROOM.vector(size) if rounded else torch.empty(size, dtype=torch.float64)
        out = (None, _at(total)) if rounded else (_at(total), None)
        where, factors = (ctypes.c_void_p * count)(*map(_at, vectors)), (ctypes.c_double * count)(*coefficients)
        bad = (ctypes.c_uint8 * count)()
        assert self._weighted_sum is not None
        self._weighted_sum(where, factors, count, _at(start), *out, bad, size)
        return total, [not b for b in bad]

    def _checked(self, failed: int, x: Tensor) -> None:
        if failed:
            raise TrainingError(
                f"There is no memory to compute samples of shape {tuple(x.shape)}; make batches or the fleet smaller."
            )


@cache
def processor() -> str:
    """Return the best level that this processor has ("": there are no kernels)."""
    baseline = _library("baseline")
    return "" if baseline is None else LEVELS[baseline.espalier_processor()]


def levels() -> list[str]:
    """Return the levels whose kernels are built and run on this processor, the best last."""
    best = processor()
    runs = LEVELS[: LEVELS.index(best) + 1] if best else ()
    return [level for level in runs if _library(level) is not None]


@cache
def load(level: str) -> Kernels:
    """Return the kernels of one level.

    Raises:
        TrainingError: There are none, or this processor cannot run them.
    """
    library = _library(level) if level in levels() else None
    if library is None:
        known = ", ".join(levels()) or "none"
        raise TrainingError(f"There are no native kernels {level!r} for this processor; there are: {known}.")
    return Kernels(library)


@cache
def kernels() -> Kernels | None:
    """Return the kernels in use, or None where there are none."""
    asked = os.environ.get("ESPALIER_NATIVE", "1")
    if asked == "0":
        return None
    if asked in ("", "1"):
        return load(levels()[-1]) if levels() else None
    return load(asked)


@cache
def _library(level: str) -> ctypes.CDLL | None:
    for path in sorted(Path(__file__).parent.glob(f"_kernels_{level}.*")):
        try:
            library = ctypes.CDLL(str(path))
            if library.espalier_version() == _VERSION:
                return library
        except (OSError, AttributeError):
            continue  # built for another system
    return None


def usable(*tensors: Tensor | None) -> bool:
    """Whether the kernels are there and take these tensors."""
    given = [t for t in tensors if t is not None]
    return kernels() is not None and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in given)


def _at(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return None if tensor is None else tensor.data_ptr()


def _shape(x: Tensor, weight: Tensor, padding: list[int], stride: int) -> Any:
    clients, *_, kh, kw = weight.shape
    images = x.shape[:-3].numel() // clients
    kind = (x.dim() == 4, x.dtype == torch.bfloat16, x.dim() == 4 and weight.shape[2] == 1 < x.shape[1])
    return (ctypes.c_int64 * 14)(clients, images, *x.shape[-3:], weight.shape[1], kh, kw, *padding, stride, *kind)


def _strided(*tensors: Tensor | None) -> Any:
    assert all(t is None or t.stride(3) == 1 for t in tensors)
    given = (StridedTensor() if t is None else StridedTensor(t.data_ptr(), *t.stride()[:3]) for t in tensors)
    return (StridedTensor * len(tensors))(*given)


def _planes(shape: torch.Size) -> tuple[int, int, int]:
    return shape[:-2].numel(), shape[-2], shape[-1]


def _norm_sizes(x: Tensor, weight: Tensor, groups: int) -> Any:
    clients, channels = weight.shape
    return (ctypes.c_int64 * 5)(clients, x.shape[0] // clients, x.shape[2] * x.shape[3], channels, groups)
