"""The five bundled benchmarks at their default size have the published content hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simfl.data import DATA
from simfl.errors import DataError

GOLDEN = {  # of all columns except pictures, which depend on the build of zlib and libjpeg
    "provider_invoices": "b4a57f014b649627d6c192087601addcd111fffedde3211e6daafaca84d4691d",
    "multi_docqa": "0ba360d5d1f22becbb1ee35523ab55e14117105f7ead6e2426edd2f83714d8aa",
    "word5": "03408aa48aa039f4d2356122fdb0645be51b0546e28febf45983b481ac695310",
    "scene_vqa": "9599c19fad33fb10494c9af2c4721f30c682867d9e2567eca1195e4def98f0fe",
    "domains": "2be4e3d5ecaa1126f9ac3f82837925589420cf71d53e4a09b3c91dca8a3621eb",
}
TABLE = Path(__file__).parents[2] / "docs/reference/data.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_a_default_build_has_the_golden_hash(name: str, tmp_path: Path) -> None:
    try:
        built = DATA[name]().load(tmp_path)
    except DataError as error:
        if "is missing; install it with" not in str(error):
            raise
        pytest.skip(str(error))
    assert built.sha256 == GOLDEN[name], (
        "the content changed: increase VERSION in its benchmark.py, then update this hash and docs/reference/data.md"
    )
    assert built.folder is not None
    assert (built.folder / "contact.png").exists()


def test_the_table_in_the_docs_shows_the_golden_hashes() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `([0-9a-f]{12})` \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == {name: sha256[:12] for name, sha256 in GOLDEN.items()}
