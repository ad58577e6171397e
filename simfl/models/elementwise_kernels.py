"""The kernel of `models.dropout`: one read and one write, where the hash as tensor operations takes twenty of each.

The hash of `simfl.chance` is written once more, since a Triton program can call nothing but Triton's own functions;
tests hold both to the same bits.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def salted(key, mark):
    """What the hash is keyed by before and within: int32. `key` is int64, `mark` that of the layer."""
    salt = ((key & 0xFFFFFFFF).to(tl.uint32) * 0x3C6EF35F) ^ mark.to(tl.uint32)
    salt = salt ^ (salt >> 13)
    return salt.to(tl.int32, bitcast=True), (key >> 32).to(tl.int32)


@triton.jit
def kept(position, salt, high, dropped):
    """Whether values stay: 16 bits of a hash of their place, as `dropout.keyed_bits` has them. `position` is int32."""
    x = ((position >> 1) ^ salt).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ high.to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    half = ((x >> ((position & 1) * 16).to(tl.uint32)) & 0xFFFF).to(tl.int32)
    signed = tl.where(half >= 32768, half - 65536, half)
    return signed >= dropped - 32768


@triton.jit
def forward(x, keys, out, count, mark, first, dropped, lift, BLOCK: tl.constexpr):
    """out [groups, count] from x; the second index of a program is the group."""
    group = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    salt, high = salted(tl.load(keys + group), mark)
    at = group.to(tl.int64) * count + place
    here = place < count
    values = tl.load(x + at, mask=here, other=0.0)
    scaled = (values.to(tl.float32) * lift).to(values.dtype)
    tl.store(out + at, tl.where(kept(first + place, salt, high, dropped), scaled, 0.0), mask=here)
