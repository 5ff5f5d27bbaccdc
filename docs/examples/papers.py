"""The papers as functions. (2 s)"""

from prunus.theory import claims

energy = claims["B-3"]
print(energy.title, "|", energy.status, "|", energy.erratum)
print("2:4 removes", energy(n=4, r=2)["energy"], "of the weight energy; printed:", energy.printed(n=4, r=2))
print("the limiting kernel at one radian:", claims["K-2a"](angle=1.0, depth=3)["limit"])
