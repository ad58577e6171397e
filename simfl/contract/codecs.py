"""The contract of codecs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext

CONTEXT = MessageContext((7, "upload", 3))
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 2), (65,), (9, 7), (4, 3, 2))
TOLERANCE = 1e-4  # relative, for the rounding of bounds and norms


def check_codec(codec: Codec) -> Iterator[str]:
    """Yield one line for each rule that a codec breaks, tried on random tensors of several shapes."""
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        yield from check_tensor(codec, torch.randn(shape, generator=generator))
        yield from _check_stacked(codec, torch.randn((5, *shape), generator=generator))
    yield from _check_lossless(codec, torch.randn(32, 33, generator=generator))
    yield from _check_refusals(codec)


def check_tensor(codec: Codec, tensor: Tensor) -> Iterator[str]:
    """Yield one line for each rule about one tensor that a codec breaks."""
    shape, where = tuple(tensor.shape), f"shape {tuple(tensor.shape)}"
    payload = codec.encode_tensor(tensor, CONTEXT)
    size = codec.size(shape)
    if len(payload) != size and not (not codec.fixed_size and len(payload) < size):
        yield f"{where}: the payload has {len(payload)} bytes; packed_size says {size}"
    if not np.array_equal(payload, codec.encode_tensor(tensor, CONTEXT)):
        yield f"{where}: two encodings in one context differ; draw random numbers from the context alone"
    payload.setflags(write=False)
    decoded = codec.decode_tensor(payload, shape, CONTEXT)
    if (decoded.dtype, tuple(decoded.shape)) != (torch.float32, shape):
        yield f"{where}: decoded to {decoded.dtype} {tuple(decoded.shape)}; must be torch.float32 {shape}"
        return
    yield from _check_error(codec, tensor, decoded)
    again = codec.decode_tensor(codec.encode_tensor(decoded, CONTEXT), shape, CONTEXT)
    if codec.idempotent and not torch.equal(again, decoded):
        yield f"{where}: encoding a decoded tensor changes it again; declare idempotent: ClassVar[bool] = False"
    kept = decoded.clone()
    decoded.zero_()
    if not torch.equal(codec.decode_tensor(payload, shape, CONTEXT), kept):
        yield f"{where}: the decoded tensor shares memory with the payload; return a copy"


def _check_error(codec: Codec, tensor: Tensor, decoded: Tensor) -> Iterator[str]:
    values = tensor.to(torch.float32).reshape(1, -1)
    try:
        bound = float(codec.error_bound(values, tuple(tensor.shape), [CONTEXT])[0])
    except NotImplementedError:
        yield "declares no error bound; override error_bound(values, shape, contexts)"
        return
    error = float((decoded.double() - tensor.double()).norm())
    if error > bound * (1 + TOLERANCE) + 1e-30:
        yield f"shape {tuple(tensor.shape)}: the error has norm {error:.6g}; error_bound says at most {bound:.6g}"


def _check_stacked(codec: Codec, stacked: Tensor) -> Iterator[str]:
    shape, contexts = tuple(stacked.shape[1:]), [MessageContext((7, k)) for k in range(len(stacked))]
    together = codec.encode_stacked(stacked, contexts)
    alone = [codec.encode_tensor(one, context) for one, context in zip(stacked, contexts, strict=True)]
    if [one.numpy().tobytes() for one in together] != [one.tobytes() for one in alone]:
        yield f"shape {shape}: the payloads of stacked clients differ from those of each client alone"
    decoded = codec.decode_stacked(together, shape, contexts)
    each = [codec.decode_tensor(one, shape, context) for one, context in zip(alone, contexts, strict=True)]
    if not all(torch.equal(a, b) for a, b in zip(decoded, each, strict=True)):
        yield f"shape {shape}: stacked clients decode to other values than each client alone"


def _check_lossless(codec: Codec, tensor: Tensor) -> Iterator[str]:
    decoded = codec.decode_tensor(codec.encode_tensor(tensor, CONTEXT), tuple(tensor.shape), CONTEXT)
    if codec.lossless and not torch.equal(decoded, tensor):
        yield "declares lossless, but a decoded tensor differs"
    transposed = (torch.arange(12.0).reshape(3, 4) / 7).to(torch.float64).t()
    plain = transposed.to(torch.float32).contiguous()
    if not np.array_equal(codec.encode_tensor(transposed, CONTEXT), codec.encode_tensor(plain, CONTEXT)):
        yield "a transposed float64 tensor is encoded differently from its contiguous float32 values"


def _check_refusals(codec: Codec) -> Iterator[str]:
    for bad in (float("nan"), float("inf")):
        try:
            codec.encode_tensor(torch.tensor([0.0, bad, 1.0]), CONTEXT)
        except ValueError:
            continue
        yield f"encodes {bad}; override pack, not encode_stacked, which refuses it"
