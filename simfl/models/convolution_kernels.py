"""Triton kernels of `models.convolution`.

All tensors are contiguous; the third index of a program is the client.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def forward(
    x, w, b, y, C, H, W, N, OH, OW, P, K,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BIASED: tl.constexpr,
    BP: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute y [P, N] of a client from x [B, C, H, W] and w [N, K]; P = B·OH·OW, K = C·KH·KW."""
    g = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    x += g * (P // (OH * OW)) * C * H * W
    w += g * N * K
    y += g * P * N
    example, place = p // (OH * OW), p % (OH * OW)
    row, column = place // OW * SH - PH, place % OW * SW - PW
    base = example * C * H * W + row * W + column
    total = tl.zeros((BP, BO), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        channel, tap = k // (KH * KW), k % (KH * KW)
        down, right = tap // KW * DH, tap % KW * DW
        inside = (p < P)[:, None] & (k < K)[None, :]
        if PH > 0 or PW > 0:
            at, to = row[:, None] + down[None, :], column[:, None] + right[None, :]
            inside &= (at >= 0) & (at < H) & (to >= 0) & (to < W)
        windows = tl.load(x + base[:, None] + (channel * H * W + down * W + right)[None, :], mask=inside, other=0.0)
        weights = tl.load(w + o[None, :] * K + k[:, None], mask=(o < N)[None, :] & (k < K)[:, None], other=0.0)
        total = tl.dot(windows, weights, total, input_precision=PRODUCTS)
    if BIASED:
        total += tl.load(b + g * N + o, mask=o < N, other=0.0)[None, :]
    out = y + (example * N * OH * OW + place)[:, None] + o[None, :] * OH * OW
    tl.store(out, total, mask=(p < P)[:, None] & (o < N)[None, :])


@triton.jit
def to_input(
    dy, w, dx, C, H, W, N, OH, OW, P, K,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute dx [P, C] of a client from dy [B, N, OH, OW] and w [K, C]; P = B·H·W, K = KH·KW·N."""
    g = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    dy += g * (P // (H * W)) * N * OH * OW
    w += g * K * C
    dx += g * P * C
    example, place = p // (H * W), p % (H * W)
    row, column = place // W + PH, place % W + PW
    base = example * N * OH * OW
    total = tl.zeros((BP, BC), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        tap, o = k // N, k % N
        at, to = row[:, None] - (tap // KW * DH)[None, :], column[:, None] - (tap % KW * DW)[None, :]
        inside = (p < P)[:, None] & (k < K)[None, :] & (at >= 0) & (to >= 0)
        if SH > 1 or SW > 1:
            inside &= (at % SH == 0) & (to % SW == 0)
            at, to = at // SH, to // SW
        inside &= (at < OH) & (to < OW)
        gradients = tl.load(dy + base[:, None] + (o * OH * OW)[None, :] + at * OW + to, mask=inside, other=0.0)
        weights = tl.load(w + k[:, None] * C + c[None, :], mask=(k < K)[:, None] & (c < C)[None, :], other=0.0)
        total = tl.dot(gradients, weights, total, input_precision=PRODUCTS)
    out = dx + (example * C * H * W + place)[:, None] + c[None, :] * H * W
    tl.store(out, total, mask=(p < P)[:, None] & (c < C)[None, :])


@triton.jit
def to_weight(
    x, dy, parts, C, H, W, N, OH, OW, P, K, S,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute parts [S, clients, N, K] from x [B, C, H, W] and dy [B, N, OH, OW].

    Slice s holds its share of the sum over P = B·OH·OW.
    """
    g, s = (tl.program_id(2) // S).to(tl.int64), tl.program_id(2) % S
    o = tl.program_id(0) * BO + tl.arange(0, BO)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    x += g * (P // (OH * OW)) * C * H * W
    dy += g * P * N
    parts += (s * (tl.num_programs(2) // S) + g) * N * K
    channel, tap = k // (KH * KW), k % (KH * KW)
    down, right = tap // KW * DH, tap % KW * DW
    offset = channel * H * W + down * W + right
    total = tl.zeros((BO, BK), tl.float32)
    length = tl.cdiv(tl.cdiv(P, S), BP) * BP
    for first in range(s * length, tl.minimum(s * length + length, P), BP):
        p = first + tl.arange(0, BP)
        example, place = p // (OH * OW), p % (OH * OW)
        row, column = place // OW * SH - PH, place % OW * SW - PW
        gradients = tl.load(
            dy + (example * N * OH * OW + place)[None, :] + o[:, None] * OH * OW,
            mask=(p < P)[None, :] & (o < N)[:, None], other=0.0,
        )  # fmt: skip
        inside = (p < P)[:, None] & (k < K)[None, :]
        if PH > 0 or PW > 0:
            at, to = row[:, None] + down[None, :], column[:, None] + right[None, :]
            inside &= (at >= 0) & (at < H) & (to >= 0) & (to < W)
        corner = example * C * H * W + row * W + column
        windows = tl.load(x + corner[:, None] + offset[None, :], mask=inside, other=0.0)
        total = tl.dot(gradients, windows, total, input_precision=PRODUCTS)
    tl.store(parts + o[:, None] * K + k[None, :], total, mask=(o < N)[:, None] & (k < K)[None, :])
