"""A better order of columns before balanced pruning: it recovers the layout part of the bank's price (ledger B-10).

Balanced pruning keeps equally many weights in each bank, so neighbouring large columns cost more. Dealing columns to
banks by size, then swapping pairs between banks while that keeps more energy, undoes this; what remains is the price of
the bank's size itself. The layer reads its inputs in the new order, so nothing else in the network changes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from prunus.contract import Masks, check_sparsity
from prunus.errors import BadInput
from prunus.formulas.banks import balanced_drops
from prunus.select import drop_smallest_in_banks


def find_permutation(weight: Tensor, sparsity: float, bank: int = 16, *, rounds: int = 100, seed: int = 0) -> Tensor:
    """An order of the columns of `weight` (rows, cols) whose balanced mask removes less energy than the given order's.

    Never worse: where nothing is gained the identity comes back. `rounds` swaps are tried in each bank.

    Args:
        weight: a matrix.
        sparsity: share of zeros that the mask will have.
        bank: columns of one bank.
        rounds: swaps that are tried in each bank; more take longer and gain more.
        seed: the same seed gives the same order.

    Returns:
        The order, (cols,): `weight[:, order]` is what is pruned.

    Raises:
        BadInput: The weight is no matrix, the bank is below 1, or the sparsity is out of its range.

    Example:
        >>> order = prunus.sparse.find_permutation(torch.randn(8, 64), 0.75)
        >>> torch.equal(order.sort().values, torch.arange(64))
        True
    """
    check_sparsity(sparsity)
    if weight.dim() != 2 or bank < 1:
        raise BadInput(f"A permutation is found for a matrix and a bank of at least 1, not {tuple(weight.shape)}.")
    energy = weight.detach().double().square()
    cols, whole = weight.shape[1], weight.shape[1] // bank * bank
    identity = torch.arange(cols)
    if whole <= bank:
        return identity
    drops = torch.tensor(balanced_drops([bank] * (whole // bank), sparsity))
    generator = torch.Generator().manual_seed(seed)
    order = energy[:, :whole].sum(0).argsort(descending=True)
    dealt = order.reshape(bank, -1)
    dealt[1::2] = dealt[1::2].flip(1)  # there and back again, so that every bank gets as much
    best = min((identity[:whole], dealt.T.reshape(-1)), key=lambda p: float(_removed(energy[:, p], drops, bank).sum()))
    best = _swaps(energy, best, drops, bank, rounds, generator)
    return torch.cat([best, identity[whole:]])


def _removed(energy: Tensor, drops: Tensor, bank: int) -> Tensor:
    """Energy that balanced pruning removes from each bank."""
    ranked = energy.reshape(energy.shape[0], -1, bank).sort(2).values
    gone = torch.arange(bank) < drops[:, None]
    return (ranked * gone).sum((0, 2))


def _swaps(energy: Tensor, order: Tensor, drops: Tensor, bank: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Swap one column of each bank with one of a random partner, wherever the two banks then remove less."""
    banks = len(drops)
    price = _removed(energy[:, order], drops, bank)
    for _ in range(rounds * bank // 16 + 1):
        partners = torch.randperm(banks, generator=generator)[: banks // 2 * 2].reshape(2, -1)
        columns = partners * bank + torch.randint(bank, partners.shape, generator=generator)
        trial = order.clone()
        trial[columns[0]], trial[columns[1]] = order[columns[1]], order[columns[0]]
        after = _removed(energy[:, trial], drops, bank)
        gain = (price - after)[partners].sum(0)
        worse = columns[:, gain <= 0]
        trial[worse] = order[worse]
        same = partners[:, gain <= 0].reshape(-1)
        after[same] = price[same]
        order, price = trial, after
    return order


def find_permuted_masks(
    model: nn.Module, sparsity: float, bank: int = 16, *, exclude: Iterable[str] = (), seed: int = 0
) -> tuple[Masks, dict[str, Tensor]]:
    """Balanced masks of the linear layers, each in a better order of its columns, and these orders by layer.

    Give both to `compress(model, masks, permutations=orders)`.

    Args:
        model: any model; it is left as it is.
        sparsity: share of zeros.
        bank: columns of one bank.
        exclude: names of layers that stay dense; `*` and `?` stand for any characters.
        seed: the same seed gives the same masks.

    Returns:
        The masks, and the orders by layer.

    Example:
        >>> model = prunus.models.make("fc:64-64-10", seed=0)
        >>> masks, orders = prunus.sparse.find_permuted_masks(model, 0.75, exclude=("layers.1",))
        >>> fast = prunus.compress(model, masks, select="always", permutations=orders)
        >>> list(orders), round(masks.sparsity, 2)
        (['layers.0'], 0.75)
    """
    masks, orders = {}, {}
    for name, layer in model.named_modules():
        if type(layer) is not nn.Linear or any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            continue
        order = find_permutation(layer.weight, sparsity, bank, seed=seed)
        lengths = [min(bank, layer.in_features - start) for start in range(0, layer.in_features, bank)]
        drops = balanced_drops(lengths, sparsity)
        kept = drop_smallest_in_banks(layer.weight.detach()[:, order].contiguous(), drops, bank, absolute=True)
        mask = torch.empty_like(kept)
        mask[:, order] = kept
        masks[f"{name}.weight" if name else "weight"] = mask
        orders[name] = order
    return Masks(masks, {"pattern": f"balanced:{bank}, permuted", "sparsity": sparsity}), orders
