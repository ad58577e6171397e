"""Messages and their bytes: every counted payload has the length of a real encoding."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from fakes import Normalised, Toy, experiment, run
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl import files
from simfl.codecs import CODECS
from simfl.codecs.base import MessageContext
from simfl.codecs.nf4 import Nf4
from simfl.experiment import Codecs
from simfl.models.mlp import Mlp
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.transport.broadcast import Broadcast
from simfl.transport.upload import transmit_stacked

SHAPES = [(), (1,), (64,), (65,), (7, 9), (3, 0, 2), (128, 3)]


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {f"t{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(SHAPES)}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("encode", ["update", "weights"])
def test_counted_payloads_and_decoded_values_are_those_of_the_codec(name, encode):
    """Lossless codecs are only counted, with the same result."""
    codec, sent, base = CODECS[name](encode=encode), tensors(), tensors(1) if encode == "weights" else {}
    here = MessageContext((1, 2))
    stacked, (sizes,) = transmit_stacked(codec, {key: t[None] for key, t in sent.items()}, base, [here])
    arrived = {key: t[0] for key, t in stacked.items()}
    for key, tensor in sent.items():
        payload = codec.encode_tensor(tensor + base[key] if base else tensor, here.child(key))
        assert sizes[key] == len(payload) == payload.nbytes
        assert sizes[key] == codec.size(tuple(tensor.shape)) or (not codec.fixed_size)
        decoded = codec.decode_tensor(payload, tuple(tensor.shape), here.child(key))
        assert torch.equal(arrived[key], decoded - base[key] if base else decoded)


def message_spec(case):
    return RunContext(case, files.cache_folder()).phase_context(0, 10).messages


def parts(values):
    return {"weights": {"layers.0.linear.weight": values}}


LOSSY = message_spec(experiment(codec=Codecs(download=Nf4(encode="update"))))
VALUES = torch.linspace(-1, 1, 1000)


def charges(clients_by_round, spec=LOSSY):
    """Return the payload of each download, for the clients of one round after the other."""
    broadcast, found = Broadcast(), []
    for number, clients in enumerate(clients_by_round):
        _, rows, broadcast = broadcast.send(spec, number, parts(VALUES * number), clients)
        assert [(row["client"], row["round"], row["direction"]) for row in rows] == [
            (client, number + 1, "download") for client in clients
        ]
        assert all(row["charged_bytes"] == row["payload_bytes"] and row["logical_bytes"] == 4000 for row in rows)
        found.append([row["payload_bytes"] for row in rows])
    return found


# 1,000 values: 4,000 bytes in float32; 16 scales of 4 bytes and 500 bytes of codes in NF4


def test_a_client_downloads_the_whole_first_and_packets_later():
    assert charges([[0, 1], [0, 2], [0, 1, 2]]) == [[4000, 4000], [564, 4000], [564, 2 * 564, 564]]


def test_missed_packets_are_downloaded_until_the_whole_is_shorter():
    """7 packets are 3,948 bytes, 8 would be 4,512."""
    assert charges([[0], *[[1]] * 6, [0]])[-1] == [7 * 564]
    assert charges([[0], *[[1]] * 7, [0]])[-1] == [4000]
    assert charges([[0], *[[1]] * 70, [0], [0], [1, 0]])[-3:] == [[4000], [564], [3 * 564, 564]]


def test_all_clients_miss_the_packet_of_a_round_without_clients():
    assert charges([[0], [], [], [0]]) == [[4000], [], [], [3 * 564]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=4, unique=True), max_size=40))
def test_charges_equal_those_of_a_complete_history(clients_by_round):
    seen, expected = {}, []
    for number, clients in enumerate(clients_by_round):
        costs = {c: min(4000, 564 * (number - seen[c])) if c in seen else 4000 for c in clients}
        seen |= dict.fromkeys(clients, number)
        expected.append([costs[c] for c in clients])
    assert charges(clients_by_round) == expected


def test_the_broadcast_state_does_not_grow_with_the_rounds():
    broadcast = Broadcast()
    for number in range(100):
        *_, broadcast = broadcast.send(LOSSY, number, parts(VALUES * number), [number])
    assert len(broadcast.packets) == 7
    assert set(broadcast.missed) == set(range(92, 100))


def test_the_error_of_one_encoding_is_part_of_the_next_change():
    """The server stays constant, and the public version converges to it."""
    broadcast, errors = Broadcast(), []
    _, _, broadcast = broadcast.send(LOSSY, 0, parts(torch.zeros(1000)), [0])
    for number in range(1, 7):
        received, _, broadcast = broadcast.send(LOSSY, number, parts(VALUES), [0])
        assert torch.equal(
            received["weights"]["layers.0.linear.weight"], broadcast.public["weights"]["layers.0.linear.weight"]
        )
        errors.append(float((received["weights"]["layers.0.linear.weight"] - VALUES).abs().max()))
    assert 0.01 < errors[0] < 0.16
    assert all(later < 0.3 * earlier or later < 1e-6 for earlier, later in pairwise(errors))


def test_with_encode_weights_the_whole_is_encoded():
    spec = message_spec(experiment(codec=Codecs(download=Nf4(encode="weights"))))
    codec = spec.codec("download", "weights")
    received, rows, after = Broadcast().send(spec, 3, parts(VALUES), [4, 7])
    expected = codec.decode_tensor(codec.encode_tensor(VALUES), (1000,))
    assert torch.equal(received["weights"]["layers.0.linear.weight"], expected)
    assert [row["payload_bytes"] for row in rows] == [564, 564]
    assert after == Broadcast()


def test_clients_start_from_the_seed_whichever_codec_counts_their_first_download():
    """Round 1 of the first phase is charged and arrives exactly; later rounds and phases arrive as they are decoded."""
    codec = Codecs(download=Nf4(encode="weights"))
    spec = message_spec(experiment(codec=codec))
    arrived = {
        "known": Broadcast().send(spec, 0, parts(VALUES), [4]),
        "later": Broadcast().send(spec, 1, parts(VALUES), [4]),
        "second phase": Broadcast().send(replace(spec, phase=1), 0, parts(VALUES), [4]),
        "unknown": Broadcast().send(replace(spec, codecs=replace(codec, shared_start=False)), 0, parts(VALUES), [4]),
    }
    exact = {
        name: torch.equal(sent.received["weights"]["layers.0.linear.weight"], VALUES) for name, sent in arrived.items()
    }
    assert exact == {"known": True, "later": False, "second phase": False, "unknown": False}
    assert {row["payload_bytes"] for sent in arrived.values() for row in sent.rows} == {564}


def test_a_lossless_codec_sends_the_whole():
    assert charges([[0], [0]], message_spec(experiment())) == [[4000], [4000]]


# runs


def totals(folder, **wanted):
    rows = [r for r in tables.rows(folder / "ledger.parquet") if all(r[key] == value for key, value in wanted.items())]
    return sum(row["payload_bytes"] for row in rows), rows


CASES = {name: experiment(name) for name in ("scaffold", "ditto", "krum")}
CASES |= {
    "lossy": experiment("scaffold", codec=Codecs(download=Nf4(encode="update"), upload=Nf4(error_feedback=True))),
    "personal_params": experiment("scaffold", personal_params=("head.*",)),
    "local": experiment(communicate=False),
}


@pytest.mark.parametrize("name", CASES)
def test_summary_and_rounds_hold_the_sums_of_the_ledger(name, tmp_path):
    summary = run(CASES[name], tmp_path)
    for direction in ("download", "upload"):
        total, rows = totals(tmp_path, direction=direction)
        in_rounds = sum(row[f"{direction}_bytes"] for row in tables.rows(tmp_path / "rounds.parquet"))
        assert summary["bytes"][direction] == total == in_rounds
        assert summary["charged"][direction] == sum(row["charged_bytes"] for row in rows)
    assert summary["bytes"]["total"] == summary["bytes"]["download"] + summary["bytes"]["upload"]


def test_bytes_by_hand(tmp_path):
    """12·16 + 16 + 16·5 + 5 = 293 values; 7 clients, 3 rounds; SCAFFOLD sends as many again."""
    run(CASES["scaffold"], tmp_path)
    for direction in ("download", "upload"):
        for part in ("weights", "control"):
            total, rows = totals(tmp_path, direction=direction, part=part)
            assert len(rows) == 21
            assert {row["floats"] for row in rows} == {293}
            assert total == 21 * 293 * 4


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["scaffold", "ditto"])
def test_personal_parameters_are_never_sent(name, mode, tmp_path):
    """The head has 16·5 + 5 of 293 values."""
    run(experiment(name, mode, personal_params=("head.*",)), tmp_path)
    _, rows = totals(tmp_path)
    assert {row["floats"] for row in rows} == {208}
    assert {row["payload_bytes"] for row in rows} == {4 * 208}


def test_without_communication_nothing_is_sent(tmp_path):
    summary = run(CASES["local"], tmp_path)
    assert summary["bytes"]["total"] == 0
    assert summary["weights_sha256"] == run(replace(CASES["local"], seed=42), tmp_path / "again")["weights_sha256"]


def test_running_statistics_are_sent_in_float32_with_every_codec(tmp_path):
    """8 means, 8 variances and a counter in both directions, with 12·8 + 8 + 8 + 8 + 8·5 + 5 = 165 weights."""
    codec = Codecs(download=Nf4(encode="weights"), upload=Nf4())
    even = Toy(sizes=(2, 40, 6, 8, 27, 13, 3, 21, 10, 16))
    run(experiment(data=even, model=Normalised(), codec=codec), tmp_path)
    for direction in ("download", "upload"):
        total, rows = totals(tmp_path, direction=direction, part="buffers")
        assert [row["floats"] for row in rows] == [17] * 21
        assert total == 21 * 68
        assert {row["floats"] for row in totals(tmp_path, direction=direction, part="weights")[1]} == {165}


def test_a_missed_round_is_charged_in_the_clients_next_round(tmp_path):
    """Compared with a simple count over the table itself."""
    case = experiment(codec=Codecs(download=Nf4(encode="update")), clients_per_round=2, rounds=8, model=Mlp((16,)))
    run(case, tmp_path)
    packet = sum(Nf4().size(shape) for shape in [(16, 12), (16,), (5, 16), (5,)])
    seen = {}
    _, rows = totals(tmp_path, direction="download")
    for row in rows:
        missed = row["round"] - seen.get(row["client"], -(10**9))
        assert row["payload_bytes"] == min(4 * 293, packet * missed)
        seen[row["client"]] = row["round"]
    assert len({row["payload_bytes"] for row in rows}) > 2
