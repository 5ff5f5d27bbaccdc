#!/bin/sh
# The main job on the built-in digits: train a small network, prune it, and say what that costs.
set -eu
folder=${DEMO:-demo}
mkdir -p "$folder"
prunus train fc:64-300-100-10 --data digits --length 20ep --output "$folder/dense.safetensors"
prunus prune fc:64-300-100-10 --weights "$folder/dense.safetensors" --data digits --sparsity 0.9 --pattern balanced:16 \
    --exclude layers.2 --output "$folder/pruned.safetensors"
