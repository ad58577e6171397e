"""The bytes of the protocol's messages (Bonawitz et al. 2017, for an honest-but-curious server).

Sizes are those of X25519 keys and AES-128-GCM ciphertexts. A size is the length of a message that is really encoded,
with zeros for what a simulation does not have.

    keys        up: two public keys                    down: those of each neighbour, with its number
    shares      up: for each neighbour a ciphertext    down: those for this client
                of a share of the secret key and one of the seed of its own mask
    survivors   down: the neighbours whose masked uploads arrived
    unmask      up: for each neighbour and itself, a share: of the seed if it survived, of the secret key if not
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from simfl.secure_aggregation import shamir

KEY_BYTES = 32
NONCE_BYTES, TAG_BYTES = 12, 16
NO_KEY, NO_SHARE = bytes(KEY_BYTES), np.zeros(shamir.WORDS, np.int64)

KEYS, SHARES, SURVIVORS, UNMASK = (f"secure_{name}" for name in ("keys", "shares", "survivors", "unmask"))
PROTOCOL_PARTS = (KEYS, SHARES, SURVIVORS, UNMASK)  # of the ledger


def encode_keys(encryption: bytes = NO_KEY, masking: bytes = NO_KEY) -> bytes:
    """Return the public keys of a client."""
    return encryption + masking


def encode_directory(clients: Sequence[int]) -> bytes:
    """Return the public keys of these clients, each with its number."""
    return b"".join(struct.pack("<I", client) + encode_keys() for client in clients)


def encode_shares(clients: Sequence[int], sender: int = 0) -> bytes:
    """Return one encrypted pair of shares for (or from) each of these clients, each with its number."""
    plain = struct.pack("<II", sender, 0) + 2 * shamir.pack(NO_SHARE)
    sealed = bytes(NONCE_BYTES) + plain + bytes(TAG_BYTES)
    return b"".join(struct.pack("<I", client) + sealed for client in clients)


def encode_survivors(clients: Sequence[int]) -> bytes:
    """Return the numbers of the clients whose masked uploads arrived."""
    return np.array(clients, "<u4").tobytes()


def encode_unmask(clients: Sequence[int]) -> bytes:
    """Return one share for each of these clients, each with its number."""
    return b"".join(struct.pack("<I", client) + shamir.pack(NO_SHARE) for client in clients)


def encode_vector(values: np.ndarray, bits: int) -> bytes:
    """Return unsigned integers below 2^bits as bytes, `bits` bits each, lowest first."""
    found = (values.astype(np.uint64)[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(found.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def decode_vector(encoded: bytes, count: int, bits: int) -> np.ndarray:
    """Return the integers of `encode_vector`, uint64 [count]."""
    found = np.unpackbits(np.frombuffer(encoded, np.uint8), bitorder="little")[: count * bits].reshape(count, bits)
    values: np.ndarray = (found.astype(np.uint64) << np.arange(bits, dtype=np.uint64)).sum(1, dtype=np.uint64)
    return values


def vector_bytes(count: int, bits: int) -> int:
    """Return the length of an encoded vector of `count` integers."""
    return -(-count * bits // 8)
