"""Codecs: one wire format, one file. To add one, write the file and a line here."""

from simfl.codecs.base import Codec
from simfl.codecs.casts import BFloat16, Float16
from simfl.codecs.identity import Float32
from simfl.codecs.int8 import Int8
from simfl.codecs.nf4 import Nf4
from simfl.codecs.sign import Sign
from simfl.codecs.sparse import RandomK, TopK
from simfl.codecs.svd import Svd

CODECS: dict[str, type[Codec]] = {
    "float32": Float32,
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
    "nf4": Nf4,
    "sign": Sign,
    "topk": TopK,
    "randomk": RandomK,
    "svd": Svd,
}
