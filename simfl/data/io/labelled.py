"""Arrow tables of labelled feature arrays, as all small classification sets have them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simfl.data.base import Split


def labelled(features: np.ndarray, labels: np.ndarray, **columns: pa.Array) -> Split:
    """A split of float features [N, ...] and integer labels [N], with further columns to group by."""
    flat = np.ascontiguousarray(features, np.float32).reshape(len(features), -1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    return Split(pa.table({"features": lists, "label": pa.array(labels, pa.int32())} | columns))
