"""Prune a network, train on with the zeros held, save, load. (20 s)"""

import copy

import torch

import prunus

train, test = prunus.data.load("digits", split="train"), prunus.data.load("digits", split="test")
dense = prunus.models.make("fc:64-300-100-10", init="kaiming_uniform")
history = prunus.training.fit(dense, train, length="5ep")

masks = prunus.find_masks(dense, 0.9, score="magnitude", pattern="balanced:16", exclude=("layers.2*",))
pruned = masks.apply_(copy.deepcopy(dense))
for row in masks.layers:
    print(row.name, row.shape, row.kept, f"{row.sparsity:.3f}")

optimizer = torch.optim.AdamW(pruned.parameters(), lr=1e-3, weight_decay=0.1)
with masks.hold(pruned, optimizer):
    for inputs, labels in torch.utils.data.DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(pruned(inputs), labels).backward()
        optimizer.step()
for name, mask in masks.items():
    assert not pruned.get_parameter(name)[~mask].any()

masks.save("digits.masks.safetensors")
assert prunus.Masks.load("digits.masks.safetensors") == masks
