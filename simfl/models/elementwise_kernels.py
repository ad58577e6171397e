"""Triton kernels that read and write each value once: keyed dropout and T5's RMS norm.

Dropout: the hash of `simfl.keyed_random` takes some twenty reads and writes as tensor operations. It is written again
here, since a Triton program can call only Triton's own functions; tests check that both give the same bits.

RMS norm, a program for a row or a few:
    r = 1 / √(mean x² + ε)     y = x·r·w     dx = r·(w·dy − x·r²·mean(x·w·dy))     dw = Σ x·r·dy
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def hash_keys(key, layer_salt):
    """Return the two int32 words that key the hash, before and within. `key` is int64."""
    salt = ((key & 0xFFFFFFFF).to(tl.uint32) * 0x3C6EF35F) ^ layer_salt.to(tl.uint32)
    salt = salt ^ (salt >> 13)
    return salt.to(tl.int32, bitcast=True), (key >> 32).to(tl.int32)


@triton.jit
def is_kept(position, salt, high, dropped):
    """Compare 16 bits of a position's hash with the dropped share, as `dropout.keyed_keep`. `position` is int32."""
    x = ((position >> 1) ^ salt).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = x ^ high.to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    half = ((x >> ((position & 1) * 16).to(tl.uint32)) & 0xFFFF).to(tl.int32)
    signed = tl.where(half >= 32768, half - 65536, half)
    return signed >= dropped - 32768


@triton.jit
def dropout(x, keys, out, count, layer_salt, first, dropped, scale, BLOCK: tl.constexpr):
    """Compute out [groups, count] from x; the second index of a program is the group."""
    group = tl.program_id(1)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    salt, high = hash_keys(tl.load(keys + group), layer_salt)
    at = group.to(tl.int64) * count + position
    inside = position < count
    values = tl.load(x + at, mask=inside, other=0.0)
    scaled = (values.to(tl.float32) * scale).to(values.dtype)
    tl.store(out + at, tl.where(is_kept(first + position, salt, high, dropped), scaled, 0.0), mask=inside)


@triton.jit
def rms_norm_forward(x, weight, out, root, width, epsilon, rows, BLOCK: tl.constexpr):
    """Compute y and r of each row, as out and root; `rows` rows in turn share a weight."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + epsilon)
    scaled = values * inverse * tl.load(weight + row // rows * width + column, mask=inside, other=0.0)
    tl.store(root + row, inverse)
    tl.store(out + row * width + column, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_backward(
    dy, x, weight, root, dx, dw, width, rows, BLOCK: tl.constexpr, ROWS: tl.constexpr, TRAINS: tl.constexpr
):
    """Compute dx of ROWS rows, and dw [weights, programs, width], what they add to the gradient of their weight.

    The second index of a program is the weight, which `rows` rows share.
    """
    group, column = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < width
    scale = tl.load(weight + group * width + column, mask=inside, other=0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for number in range(ROWS):
        own = tl.program_id(0) * ROWS + number
        here = inside & (own < rows)
        row = group * rows + own
        values = tl.load(x + row * width + column, mask=here, other=0.0).to(tl.float32)
        upstream = tl.load(dy + row * width + column, mask=here, other=0.0).to(tl.float32)
        inverse = tl.load(root + row, mask=own < rows, other=0.0)
        slope = upstream * scale
        along = tl.sum(values * slope, 0) / width * inverse * inverse
        tl.store(dx + row * width + column, (inverse * (slope - values * along)).to(dx.dtype.element_ty), mask=here)
        if TRAINS:
            total += upstream * values * inverse
    if TRAINS:
        place = group * tl.num_programs(0) + tl.program_id(0)
        tl.store(dw + place * width + column, total, mask=inside)
