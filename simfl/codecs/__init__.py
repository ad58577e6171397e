"""Codecs: one wire format, one file. To add one, write the file and a line here."""

from simfl.codecs.base import Codec
from simfl.registry import Registry

CODECS: Registry[Codec] = Registry(
    {
        "float32": "simfl.codecs.casts:Float32",
        "float16": "simfl.codecs.casts:Float16",
        "bfloat16": "simfl.codecs.casts:BFloat16",
        "float8": "simfl.codecs.casts:Float8",
        "int8": "simfl.codecs.int8:Int8",
        "nf4": "simfl.codecs.nf4:Nf4",
        "sign": "simfl.codecs.sign:Sign",
        "topk": "simfl.codecs.sparse:TopK",
        "randomk": "simfl.codecs.sparse:RandomK",
        "svd": "simfl.codecs.svd:Svd",
    }
)
