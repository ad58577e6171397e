"""The kernels of `models.rms_norm`: a program is a row.

r = 1 / √(mean x² + ε)     y = x·r·w     dx = r·(w·dy − x·r²·mean(x·w·dy))
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def forward(x, weight, out, root, width, epsilon, BLOCK: tl.constexpr):
    """out and r of each row."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = place < width
    values = tl.load(x + row * width + place, mask=here, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + epsilon)
    scaled = values * inverse * tl.load(weight + place, mask=here, other=0.0)
    tl.store(root + row, inverse)
    tl.store(out + row * width + place, scaled.to(out.dtype.element_ty), mask=here)


@triton.jit
def backward(slope, x, weight, root, dx, width, BLOCK: tl.constexpr):
    """dx of each row."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    here = place < width
    values = tl.load(x + row * width + place, mask=here, other=0.0).to(tl.float32)
    pull = tl.load(slope + row * width + place, mask=here, other=0.0).to(tl.float32)
    pull *= tl.load(weight + place, mask=here, other=0.0)
    inverse = tl.load(root + row)
    along = tl.sum(values * pull, 0) / width * inverse * inverse
    tl.store(dx + row * width + place, (inverse * (pull - values * along)).to(dx.dtype.element_ty), mask=here)
