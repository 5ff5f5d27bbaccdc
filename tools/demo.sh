#!/bin/sh
# The main job on the built-in digits: train a small network, prune it in several ways, certify, compress, time, and
# show it on one page.
set -eu
folder=${DEMO:-demo}
rm -rf "$folder/study"
mkdir -p "$folder"
prunus study fc:64-768-768-10 --data digits --length 6ep --finetune 2ep --exclude layers.2 \
    --pattern unstructured balanced:16 2:4 --sparsity 0.6 0.8 0.9 0.95 --seeds 2 --certify 4 --kernel 12 -o "$folder/study"
prunus report "$folder/study" -o "$folder/report.html"
