"""A reduced sample of the campaign of large data sets."""

import shutil

import packing
import pytest


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs is not installed")
def test_a_sample_of_the_campaign_holds() -> None:
    documents = {name: run() for name, run in packing.cells(seed=3, draws=300).items()}
    assert documents["sparse.sequential"]["data_bytes"] > 60_000_000
    assert documents["sparse.sequential"]["image_bytes"] < 100_000
    rows = packing.summary(documents)
    assert len(rows) >= 8
    assert [row for row in rows if not row["holds"]] == []
