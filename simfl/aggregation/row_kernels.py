"""The kernel of `aggregation.row_sums`: each program sums a block of columns, whose rows it reads once."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def tree(rows, factors, out, n, width, WEIGHTED: tl.constexpr, PLACES: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip # noqa: E501
    """Compute out[j] = the sum of rows[k, j] (times factors[k]) over k, pairs of neighbours first.

    There are PLACES = 2^LEVELS rows; those past n hold −0, which changes no sum.
    """
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, PLACES)
    here = (column < width)[:, None] & (row < n)[None, :]
    values = tl.load(rows + row[None, :].to(tl.int64) * width + column[:, None], mask=here, other=-0.0)
    if WEIGHTED:
        values *= tl.load(factors + row, mask=row < n, other=1.0)[None, :]
    for level in tl.static_range(LEVELS):
        even, odd = tl.split(tl.reshape(values, [BLOCK, PLACES >> (level + 1), 2]))
        values = even + odd
    tl.store(out + column, tl.reshape(values, [BLOCK]), mask=column < width)
