"""How far a pruned network can be from the original: certificates, attacks, statistics and plans.

    cert = prunus.certify(model, masks, prunus.Ball(radius=1.0))
    cert.bound, cert.attained, cert.method          # both sides, and which method won

`reading/` makes pieces of a network's operators, one rule for each. `bounds/` has the methods: the layer recursion,
norms of products, intervals of the difference, linear relaxation backwards, zonotopes forwards. `prover/` decides:
equal within a tolerance, or the same labels, on a whole domain.
"""

from __future__ import annotations

from prunus.certificates._attack import AttackSettings, Attained, ascend
from prunus.certificates._certify import METHODS, Bounds, CertifyOptions, certify
from prunus.certificates._judges import OnData, PlanSettings
from prunus.certificates._plan import Plan, PlannedLayer, ScanRow, plan
from prunus.certificates._verify import verify
from prunus.certificates.a_priori import APriori, AssumptionRow, bound_a_priori, check_assumptions
from prunus.certificates.certificate import Certificate, CertifiedLayer, hash_model
from prunus.certificates.domains import Ball, Box, Samples
from prunus.certificates.prover.labels import LabelVerdict, certify_labels
from prunus.certificates.prover.verdict import Verdict, equivalent
from prunus.certificates.reading.layers import convolution, diagonal, linear
from prunus.certificates.reading.pair import Pair, read_pair
from prunus.certificates.reading.pieces import Affine, Elementwise, Join, Lipschitz, ValueProduct
from prunus.certificates.reading.rules import Call, register_rule, unregister_rule
from prunus.certificates.statistics import MaskTrials, Statistic, certify_over_masks, certify_statistically

__all__ = [
    "METHODS",
    "APriori",
    "Affine",
    "AssumptionRow",
    "AttackSettings",
    "Attained",
    "Ball",
    "Bounds",
    "Box",
    "Call",
    "Certificate",
    "CertifiedLayer",
    "CertifyOptions",
    "Elementwise",
    "Join",
    "LabelVerdict",
    "Lipschitz",
    "MaskTrials",
    "OnData",
    "Pair",
    "Plan",
    "PlanSettings",
    "PlannedLayer",
    "Samples",
    "ScanRow",
    "Statistic",
    "ValueProduct",
    "Verdict",
    "ascend",
    "bound_a_priori",
    "certify",
    "certify_labels",
    "certify_over_masks",
    "certify_statistically",
    "check_assumptions",
    "convolution",
    "diagonal",
    "equivalent",
    "hash_model",
    "linear",
    "plan",
    "read_pair",
    "register_rule",
    "unregister_rule",
    "verify",
]
