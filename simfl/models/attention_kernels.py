"""Triton kernels of `models.fused_attention`: scores never leave the chip.

The second index of a program is an example and a head.

S = q·kᵀ·scale + bias + mask     P = softmax(S)     Z = P / (share kept) where kept, else 0     out = Z·v
D = Σ out·dout                   dZ = dout·vᵀ       dS = P·(dZ / (share kept) where kept − D)
dq = dS·k·scale                  dk = dSᵀ·q·scale   dv = Zᵀ·dout       dbias = Σ dS over the examples that share it
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from simfl.models.elementwise_kernels import hash_keys, is_kept


@triton.jit
def _scores(
    q, k, bias, mask, batch, head, rows, columns, L, S, scale,
    sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    BIASED: tl.constexpr, MASKED: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Return S for these rows and columns, −inf beyond the last column; `sharing` examples in turn share a bias.

    MASKED: 0 without a mask, 1 if it depends on the column alone, 2 if on the row too.
    """
    scores = tl.dot(q, tl.trans(k), input_precision=PRODUCTS) * scale
    inside = (rows < L)[:, None] & (columns < S)[None, :]
    if BIASED:
        at = bias + batch // sharing * bias_b + head * bias_h + rows[:, None] * bias_l + columns[None, :] * bias_s
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
    q, k, v, bias, mask, seeds, out, lse,
    H, L, S, scale, layer_salt, first, examples, all_L, all_S, dropped, keep_scale,
    sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute out [B, H, L, D] and the logarithm of each row's sum [B, H, L]; `examples` of a client share a key.

    Dropout numbers values as if rows and columns were all_L and all_S, which they are before padding is cut off.
    """
    pair = tl.program_id(1)
    batch, head = (pair // H).to(tl.int64), (pair % H).to(tl.int64)
    rows, depth = tl.program_id(0) * BL + tl.arange(0, BL), tl.arange(0, D)
    q += batch * q_b + head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    row_mask = (rows < L)[:, None]
    queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=row_mask, other=0.0)
    top, total = tl.full((BL,), float("-inf"), tl.float32), tl.zeros((BL,), tl.float32)
    outputs = tl.zeros((BL, D), tl.float32)
    if DROPS:
        salt, high = hash_keys(tl.load(seeds + batch // examples), layer_salt)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * all_L * all_S
    for start in range(0, S, BS):
        columns = start + tl.arange(0, BS)
        key_mask = (columns < S)[:, None]
        keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=key_mask, other=0.0)
        values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=key_mask, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - new_top[:, None]), tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        if DROPS:
            keep = is_kept(base + rows[:, None] * all_S + columns[None, :], salt, high, dropped)
            weights = tl.where(keep, weights * keep_scale, 0.0)
        outputs = outputs * shrink[:, None]
        outputs = tl.dot(weights.to(values.dtype), values, outputs, input_precision=PRODUCTS)
        top = new_top
    tl.store(lse + pair.to(tl.int64) * L + rows, top + tl.log(total), mask=rows < L)
    out += batch * out_b + head * out_h
    outputs = (outputs / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_l + depth[None, :], outputs, mask=row_mask)


@triton.jit
def to_queries(
    q, k, v, bias, mask, seeds, dout, lse, inner, dq, dscores, dscores_p, dscores_l,
    H, L, S, scale, layer_salt, first, examples, all_L, all_S, dropped, keep_scale,
    sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr, STORES: tl.constexpr,
):  # fmt: skip
    """Compute dq [B, H, L, D] from dout, the rows' sums and `inner`, D in the formulas, [B, H, L].

    STORES: also store dS [B, H, L, S], whose strides over pairs of example and head, and over rows, are given.
    """
    pair = tl.program_id(1)
    batch, head = (pair // H).to(tl.int64), (pair % H).to(tl.int64)
    rows, depth = tl.program_id(0) * BL + tl.arange(0, BL), tl.arange(0, D)
    q += batch * q_b + head * q_h
    dout += batch * out_b + head * out_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    row_mask = (rows < L)[:, None]
    queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=row_mask, other=0.0)
    douts = tl.load(dout + rows[:, None] * out_l + depth[None, :], mask=row_mask, other=0.0)
    logs = tl.load(lse + pair.to(tl.int64) * L + rows, mask=rows < L, other=float("inf"))
    product = tl.load(inner + pair.to(tl.int64) * L + rows, mask=rows < L, other=0.0)
    total = tl.zeros((BL, D), tl.float32)
    if DROPS:
        salt, high = hash_keys(tl.load(seeds + batch // examples), layer_salt)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * all_L * all_S
    for start in range(0, S, BS):
        columns = start + tl.arange(0, BS)
        key_mask = (columns < S)[:, None]
        keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=key_mask, other=0.0)
        values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=key_mask, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        weights = tl.exp(scores - logs[:, None])
        slope = tl.dot(douts, tl.trans(values), input_precision=PRODUCTS)
        if DROPS:
            keep = is_kept(base + rows[:, None] * all_S + columns[None, :], salt, high, dropped)
            slope = tl.where(keep, slope * keep_scale, 0.0)
        score_slope = weights * (slope - product[:, None])
        if STORES:
            place = dscores + pair.to(tl.int64) * dscores_p + rows[:, None] * dscores_l + columns[None, :]
            inside = row_mask & (columns < S)[None, :]
            tl.store(place, score_slope.to(dscores.dtype.element_ty), mask=inside)
        total = tl.dot(score_slope.to(keys.dtype), keys, total, input_precision=PRODUCTS)
    dq += batch * q_b + head * q_h
    tl.store(dq + rows[:, None] * q_l + depth[None, :], (total * scale).to(dq.dtype.element_ty), mask=row_mask)


@triton.jit
def to_keys(
    q, k, v, bias, mask, seeds, dout, lse, inner, dk, dv,
    H, L, S, scale, layer_salt, first, examples, all_L, all_S, dropped, keep_scale,
    sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s,
    q_b, q_h, q_l, k_b, k_h, k_s, v_b, v_h, v_s, out_b, out_h, out_l,
    BIASED: tl.constexpr, MASKED: tl.constexpr, DROPS: tl.constexpr,
    D: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv [B, H, S, D]."""
    pair = tl.program_id(1)
    batch, head = (pair // H).to(tl.int64), (pair % H).to(tl.int64)
    columns, depth = tl.program_id(0) * BS + tl.arange(0, BS), tl.arange(0, D)
    q += batch * q_b + head * q_h
    dout += batch * out_b + head * out_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    key_mask = (columns < S)[:, None]
    keys = tl.load(k + columns[:, None] * k_s + depth[None, :], mask=key_mask, other=0.0)
    values = tl.load(v + columns[:, None] * v_s + depth[None, :], mask=key_mask, other=0.0)
    to_key, to_value = tl.zeros((BS, D), tl.float32), tl.zeros((BS, D), tl.float32)
    if DROPS:
        salt, high = hash_keys(tl.load(seeds + batch // examples), layer_salt)
        base = first + ((batch % examples).to(tl.int32) * H + head.to(tl.int32)) * all_L * all_S
    for start in range(0, L, BL):
        rows = start + tl.arange(0, BL)
        row_mask = (rows < L)[:, None]
        queries = tl.load(q + rows[:, None] * q_l + depth[None, :], mask=row_mask, other=0.0)
        douts = tl.load(dout + rows[:, None] * out_l + depth[None, :], mask=row_mask, other=0.0)
        logs = tl.load(lse + pair.to(tl.int64) * L + rows, mask=rows < L, other=float("inf"))
        product = tl.load(inner + pair.to(tl.int64) * L + rows, mask=rows < L, other=0.0)
        scores = _scores(
            queries, keys, bias, mask, batch, head, rows, columns, L, S, scale,
            sharing, bias_b, bias_h, bias_l, bias_s, mask_b, mask_h, mask_l, mask_s, BIASED, MASKED, PRODUCTS,
        )  # fmt: skip
        weights = tl.exp(scores - logs[:, None])
        slope = tl.dot(douts, tl.trans(values), input_precision=PRODUCTS)
        kept_weights = weights
        if DROPS:
            keep = is_kept(base + rows[:, None] * all_S + columns[None, :], salt, high, dropped)
            slope = tl.where(keep, slope * keep_scale, 0.0)
            kept_weights = tl.where(keep, weights * keep_scale, 0.0)
        score_slope = weights * (slope - product[:, None])
        to_value = tl.dot(tl.trans(kept_weights).to(douts.dtype), douts, to_value, input_precision=PRODUCTS)
        to_key = tl.dot(tl.trans(score_slope).to(queries.dtype), queries, to_key, input_precision=PRODUCTS)
    dk += batch * k_b + head * k_h
    dv += batch * v_b + head * v_h
    tl.store(dk + columns[:, None] * k_s + depth[None, :], (to_key * scale).to(dk.dtype.element_ty), mask=key_mask)
    tl.store(dv + columns[:, None] * v_s + depth[None, :], to_value.to(dv.dtype.element_ty), mask=key_mask)
