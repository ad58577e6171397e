"""The kernels of `models.fused_attention`: scores never leave the chip. A program's second index is example and head.

S = q·kᵀ·scale + bias + mask     P = softmax(S)     Z = P where kept, lifted by 1 / the share kept     out = Z·v
D = Σ out·dout                   dZ = dout·vᵀ       dS = P·(dZ where kept, lifted − D)
dq = dS·k·scale                  dk = dSᵀ·q·scale   dv = Zᵀ·dout
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from simfl.models.dropout_kernel import kept, salted


@triton.jit
def _scores(
    q, k, bias, mask, batch, head, rows, columns, L, S, scale,
    bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    BIASED: tl.constexpr, MASKED: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """S for these rows and columns, −inf beyond the last column. MASKED: 0, 1 by column alone, 2 by row too."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRODUCTS) * scale
    inside = (rows < L)[:, None] & (columns < S)[None, :]
    if BIASED:
        at = bias + batch * bias_b + head * bias_h + rows[:, None] * bias_l + columns[None, :] * bias_s
        scores += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if MASKED == 1:
        at = mask + batch * mask_b + head * mask_h + columns * mask_s
        scores += tl.load(at, mask=columns < S, other=0.0).to(tl.float32)[None, :]
    if MASKED == 2:
        at = mask + batch * mask_b + head * mask_h + rows[:, None] * mask_l + columns[None, :] * mask_s
        scores += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    return tl.where((columns < S)[None, :], scores, float("-inf"))


@triton.jit
def forward(
    q, k, v, bias, mask, seeds, out, lse, H, L, S, scale, mark, first, examples, dropped, lift,
    bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """out [B, H, L, D] and the logarithm of each row's sum [B, H, L]; `examples` of a client share a key."""
    both = tl.program_id(1)
    batch, head = (both // H).to(tl.int64), (both % H).to(tl.int64)
    rows, depth = tl.program_id(0) * BL + tl.arange(0, BL), tl.arange(0, D)
    q += batch * q_b + head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    here = (rows < L)[:, None]
    queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=here, other=0.0)
    top, total = tl.full((BL,), float("-inf"), tl.float32), tl.zeros((BL,), tl.float32)
    mixed = tl.zeros((BL, D), tl.float32)
    if DROPS:
        salt, high = salted(tl.load(seeds + batch // examples), mark)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * L * S
    for start in range(0, S, BS):
        columns = start + tl.arange(0, BS)
        there = (columns < S)[:, None]
        keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=there, other=0.0)
        values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=there, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(scores, 1))
        chances, shrink = tl.exp(scores - higher[:, None]), tl.exp(top - higher)
        total = total * shrink + tl.sum(chances, 1)
        if DROPS:
            stays = kept(base + rows[:, None] * S + columns[None, :], salt, high, dropped)
            chances = tl.where(stays, chances * lift, 0.0)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(chances.to(values.dtype), values, mixed, input_precision=PRODUCTS)
        top = higher
    tl.store(lse + both.to(tl.int64) * L + rows, top + tl.log(total), mask=rows < L)
    out += batch * out_b + head * out_h
    tl.store(out + rows[:, None] * out_l + depth[None, :], (mixed / total[:, None]).to(out.dtype.element_ty), mask=here)


@triton.jit
def to_queries(
    q, k, v, bias, mask, seeds, dout, lse, inner, dq, H, L, S, scale, mark, first, examples, dropped, lift,
    bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dq [B, H, L, D] from dout, the rows' sums and `inner`, D in the formulas, [B, H, L]."""
    both = tl.program_id(1)
    batch, head = (both // H).to(tl.int64), (both % H).to(tl.int64)
    rows, depth = tl.program_id(0) * BL + tl.arange(0, BL), tl.arange(0, D)
    q += batch * q_b + head * q_h
    dout += batch * out_b + head * out_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    here = (rows < L)[:, None]
    queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=here, other=0.0)
    slopes = tl.load(dout + rows[:, None] * out_l + depth[None, :], mask=here, other=0.0)
    logs = tl.load(lse + both.to(tl.int64) * L + rows, mask=rows < L, other=float("inf"))
    product = tl.load(inner + both.to(tl.int64) * L + rows, mask=rows < L, other=0.0)
    total = tl.zeros((BL, D), tl.float32)
    if DROPS:
        salt, high = salted(tl.load(seeds + batch // examples), mark)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * L * S
    for start in range(0, S, BS):
        columns = start + tl.arange(0, BS)
        there = (columns < S)[:, None]
        keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=there, other=0.0)
        values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=there, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        chances = tl.exp(scores - logs[:, None])
        pull = tl.dot(slopes, tl.trans(values), input_precision=PRODUCTS)
        if DROPS:
            stays = kept(base + rows[:, None] * S + columns[None, :], salt, high, dropped)
            pull = tl.where(stays, pull * lift, 0.0)
        change = chances * (pull - product[:, None])
        total = tl.dot(change.to(keys.dtype), keys, total, input_precision=PRODUCTS)
    dq += batch * q_b + head * q_h
    tl.store(dq + rows[:, None] * q_l + depth[None, :], (total * scale).to(dq.dtype.element_ty), mask=here)


@triton.jit
def to_keys(
    q, k, v, bias, mask, seeds, dout, lse, inner, dk, dv, H, L, S, scale, mark, first, examples, dropped, lift,
    bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dk and dv [B, H, S, D]."""
    both = tl.program_id(1)
    batch, head = (both // H).to(tl.int64), (both % H).to(tl.int64)
    columns, depth = tl.program_id(0) * BS + tl.arange(0, BS), tl.arange(0, D)
    q += batch * q_b + head * q_h
    dout += batch * out_b + head * out_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    there = (columns < S)[:, None]
    keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=there, other=0.0)
    values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=there, other=0.0)
    to_key, to_value = tl.zeros((BS, D), tl.float32), tl.zeros((BS, D), tl.float32)
    if DROPS:
        salt, high = salted(tl.load(seeds + batch // examples), mark)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * L * S
    for start in range(0, L, BL):
        rows = start + tl.arange(0, BL)
        here = (rows < L)[:, None]
        queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=here, other=0.0)
        slopes = tl.load(dout + rows[:, None] * out_l + depth[None, :], mask=here, other=0.0)
        logs = tl.load(lse + both.to(tl.int64) * L + rows, mask=rows < L, other=float("inf"))
        product = tl.load(inner + both.to(tl.int64) * L + rows, mask=rows < L, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        chances = tl.exp(scores - logs[:, None])
        pull = tl.dot(slopes, tl.trans(values), input_precision=PRODUCTS)
        used = chances
        if DROPS:
            stays = kept(base + rows[:, None] * S + columns[None, :], salt, high, dropped)
            pull = tl.where(stays, pull * lift, 0.0)
            used = tl.where(stays, chances * lift, 0.0)
        change = chances * (pull - product[:, None])
        to_value = tl.dot(tl.trans(used).to(slopes.dtype), slopes, to_value, input_precision=PRODUCTS)
        to_key = tl.dot(tl.trans(change).to(queries.dtype), queries, to_key, input_precision=PRODUCTS)
    dk += batch * k_b + head * k_h
    dv += batch * v_b + head * v_h
    tl.store(dk + columns[:, None] * k_s + depth[None, :], (to_key * scale).to(dk.dtype.element_ty), mask=there)
    tl.store(dv + columns[:, None] * v_s + depth[None, :], to_value.to(dv.dtype.element_ty), mask=there)
