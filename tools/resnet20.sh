#!/bin/sh
# The study of ResNet-20 on CIFAR-10 and its page. Needs PRUNUS_DATA with cifar10/ and resnet-cifar10/ (trained weights).
set -eu
folder=${1:-runs/resnet20}
: "${PRUNUS_DATA:?Set PRUNUS_DATA to the folder that holds cifar10/ and resnet-cifar10/.}"
weights=$(ls "$PRUNUS_DATA"/resnet-cifar10/resnet20-*.th | head -n 1)
prunus study --grid docs/studies/resnet20.toml --weights "$weights" --data-dir "$PRUNUS_DATA" --yes -o "$folder"
prunus report "$folder" --title "ResNet-20 on CIFAR-10, pruned"
