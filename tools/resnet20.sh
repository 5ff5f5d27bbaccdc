#!/bin/sh
# The study of ResNet-20 on CIFAR-10 and its page; about forty minutes on one core. Needs PRUNUS_DATA with cifar10/ and
# resnet-cifar10/ (trained weights). A study that was stopped goes on where it was.
set -eu
folder=${1:-runs/resnet20}
: "${PRUNUS_DATA:?Set PRUNUS_DATA to the folder that holds cifar10/ and resnet-cifar10/.}"
weights=$(ls "$PRUNUS_DATA"/resnet-cifar10/resnet20-*.th | head -n 1)
for grid in resnet20 resnet20-tuned; do
    prunus study --grid "docs/studies/$grid.toml" --weights "$weights" --data-dir "$PRUNUS_DATA" --workers 1 --yes -o "$folder"
done
prunus report "$folder" --title "ResNet-20 on CIFAR-10, pruned"
