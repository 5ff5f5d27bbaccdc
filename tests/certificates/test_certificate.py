from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import replace

import pytest
import torch

import prunus
from certificates.networks import convolutional, fully_connected
from prunus.certificates import Certificate, CertifyOptions, hash_model, verify
from prunus.certificates._certify import certified
from prunus.certificates._verify import compare
from prunus.errors import BadFile
from prunus.storage import write_record


@pytest.fixture
def saved(tmp_path):
    model, _ = fully_connected(2, width=24, inputs=8)
    masks = prunus.find_masks(model, 0.5)
    cert = prunus.certify(model, masks, prunus.Ball(1.0))
    return model, masks, cert, cert.save(tmp_path / "c.json")


def test_a_saved_certificate_says_the_same(saved):
    _, _, cert, path = saved
    again = Certificate.load(path)
    assert again.to_dict() == json.loads(json.dumps(cert.to_dict()))
    assert again.statement == cert.statement


def test_verification_computes_it_again(saved):
    model, masks, cert, path = saved
    assert verify(path, model, masks).bound == pytest.approx(cert.bound, rel=1e-9)
    assert verify(path, model, masks.apply_(copy.deepcopy(model))).bound == pytest.approx(cert.bound, rel=1e-9)


def test_verification_of_images_remembers_their_shape(tmp_path):
    model, shape = convolutional(0, channels=8, side=8)
    masks = prunus.find_masks(model, 0.3)
    options = CertifyOptions(methods=("recursion", "intervals"))
    cert = prunus.certify(model, masks, prunus.Ball(0.5), example=torch.zeros(1, *shape), options=options)
    path = cert.save(tmp_path / "c.json")
    assert verify(path, model, masks).bound <= cert.bound * (1 + 1e-6)


def test_other_networks_are_refused(saved):
    model, masks, _, path = saved
    with pytest.raises(BadFile, match="another pruned network"):
        verify(path, model, prunus.find_masks(model, 0.4))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].bias[0] += 1e-6
    with pytest.raises(BadFile, match="another original network"):
        verify(path, other, masks)


def test_a_bound_that_was_lowered_is_caught(saved, tmp_path):
    model, masks, cert, path = saved
    record = json.loads(path.read_text())
    record["bound"] = cert.bound / 2
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(record))
    with pytest.raises(BadFile, match="does not match its digest"):
        verify(forged, model, masks)
    write_record(forged, record["format"], record)
    with pytest.raises(BadFile, match="bounds by output exceed"):
        verify(forged, model, masks)
    outputs = {"outputs": [value * 0.99 for value in cert.outputs]}
    each = {"each": [value * 0.99 for value in cert.each]}
    methods = {"methods": {name: value * 0.99 for name, value in cert.methods.items()}}
    lower = replace(cert, bound=cert.bound * 0.99, **each, **methods, **outputs).to_dict()
    for changes, message in (
        (lower, "only allow"),
        (outputs, "only allow"),
        (each, "by point are not those of the bound"),
        (methods, "by method are not those of the bound"),
    ):
        write_record(forged, record["format"], cert.to_dict() | changes)
        with pytest.raises(BadFile, match=message):
            verify(forged, model, masks)
    more = {"attained": cert.bound * 0.999, "tightness": cert.bound / (cert.bound * 0.999)}
    write_record(forged, record["format"], json.loads(path.read_text()) | more)
    with pytest.raises(BadFile, match="claims an input that moves"):
        verify(forged, model, masks)
    for value in ("NaN", "nan"):
        forged.write_text(json.dumps(record | {"bound": value}).replace('"NaN"', "NaN"))
        with pytest.raises(BadFile):
            verify(forged, model, masks)
    write_record(forged, record["format"], record | {"bound": "nan"})
    with pytest.raises(BadFile, match="not a number"):
        verify(forged, model, masks)


def test_everything_a_certificate_shows_is_checked(tmp_path):
    model, _ = fully_connected(2, width=12, inputs=8)
    masks = prunus.find_masks(model, 0.5)
    points = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    options = CertifyOptions(methods=("recursion", "relaxation"))
    cert = prunus.certify(model, masks, prunus.Samples(points, 0.05), options=options)
    path, kind = cert.save(tmp_path / "c.json"), cert.to_dict()["format"]
    kept = json.loads(path.read_text())
    again = certified(model, masks, cert.domain, True, cert.seed, cert.norm, None, options)
    compare(path, Certificate.load(path), *again)

    def layer(number, **changes):
        return {"layers": [row | (changes if n == number else {}) for n, row in enumerate(kept["layers"])]}

    first, second = kept["layers"][0]["share"], kept["layers"][1]["share"]
    swapped = {"layers": [kept["layers"][0] | {"share": second}, kept["layers"][1] | {"share": first}]}
    swapped["layers"] += kept["layers"][2:]
    for changes in (
        {"rounding": cert.rounding / 2},
        {"rounding": cert.bound},
        {"sizes": cert.sizes / 2},
        {"sizes": cert.sizes * 1e3},
        layer(0, share=first / 2),
        swapped,
        layer(1, name="another"),
        layer(1, kind="convolution"),
        layer(0, norm=kept["layers"][0]["norm"] / 2),
        {"layers": kept["layers"][:-1]},
        {"logits": False, "loss_bound": None},
        {"attained": kept["attained"] / 2, "tightness": 2 * kept["tightness"]},
        {"witness": None},
        {"each": [*cert.each, 0.0]},
        {"outputs": list(cert.outputs)[:-1]},
        {"tightness": 1.0},
        {"loss_bound": 0.0},
        {"vacuous": not cert.vacuous},
        {"method": "magic"},
        {"methods": kept["methods"] | {"magic": kept["bound"]}},
        {"seconds": -1.0},
        layer(0, share=-0.5),
    ):
        forged = tmp_path / "forged.json"
        write_record(forged, kind, kept | changes)
        with pytest.raises(BadFile):
            compare(forged, Certificate.load(forged), *again)


def test_less_time_makes_no_certificate_wrong(tmp_path):
    model, _ = fully_connected(2, width=24, inputs=8)
    masks = prunus.find_masks(model, 0.5)
    points = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    cert = prunus.certify(model, masks, prunus.Samples(points, 0.05), options=CertifyOptions(seconds=1e-6))
    path = cert.save(tmp_path / "c.json")
    assert verify(path, model, masks).bound < cert.bound


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "other"}', '{"format": "prunus-certificate-1"}'])
def test_damaged_files_are_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadFile, match="no certificate"):
        Certificate.load(path)
    with pytest.raises(BadFile, match="cannot be read"):
        Certificate.load(tmp_path / "missing.json")


def test_the_hash_sees_every_value_and_nothing_else():
    model, _ = fully_connected(0, width=8)
    assert hash_model(model) == hash_model(copy.deepcopy(model))
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].weight[0, 0] = -changed[0].weight[0, 0]
    assert hash_model(model) != hash_model(changed)
    assert hash_model(model) != hash_model(copy.deepcopy(model).double())


def damaged(text: str, draw: random.Random) -> str:
    """A file that was cut, had bytes changed, removed or repeated, or a number or word edited."""
    kind = draw.randrange(6)
    place, other = sorted(draw.sample(range(len(text)), 2))
    if kind == 0:
        return text[:place]
    if kind == 1:
        return text[:place] + chr(draw.randrange(32, 127)) + text[place + 1 :]
    if kind == 2:
        return text[:place] + text[other:]
    if kind == 3:
        return text[:other] + text[place:]
    if kind == 4:
        numbers = list(re.finditer(r"-?\d+\.?\d*(e-?\d+)?", text))
        found = draw.choice(numbers)
        return (
            text[: found.start()] + draw.choice(["0", "-1", "1e-9", "NaN", "Infinity", "1e999"]) + text[found.end() :]
        )
    return text.replace(
        *draw.choice([("true", "false"), ("false", "true"), ("null", "0"), ("ball", "box"), (": ", ":1")])
    )


def test_no_damaged_file_is_accepted(saved, tmp_path):
    text = saved[3].read_text()
    path, draw, count = tmp_path / "damaged.json", random.Random(0), 0
    while count < 2000:
        made = damaged(text, draw)
        try:
            if json.loads(made) == json.loads(text):
                continue  # nothing but blanks changed
        except ValueError:
            pass
        path.write_text(made)
        with pytest.raises(BadFile):
            Certificate.load(path)
        count += 1
