#!/bin/sh
# The main job on the built-in digits: train a residual network, prune it by magnitude and with reconstruction, pack and
# time it; then a smaller network, for which labels are proved; and show both on one page.
set -eu
folder=${DEMO:-demo}
rm -rf "$folder/study"
mkdir -p "$folder"
prunus study resnet20:width=0.5,channels=1 --data digits-images --length 10ep --lr 0.1 --exclude linear --exclude conv1 \
    --method prune reconstruct --pattern unstructured balanced:16 2:4 --sparsity 0.5 0.75 0.9 --seeds 1 \
    --certify 0 --labels 0 --kernel 0 --batch 32 --examples 12 -o "$folder/study"
prunus study fc:64-64-10 --data digits --length 10ep --lr 0.1 --method prune reconstruct \
    --pattern unstructured balanced:16 --sparsity 0.5 0.75 --seeds 1 --certify 0 --labels 100 --radius 0.1 --kernel 0 \
    --batch 32 -o "$folder/study"
prunus report "$folder/study" -o "$folder/report.html" --title "Two networks on digits, pruned"
echo "Open $folder/report.html in a browser. Then make a Hugging Face model of yours"
echo "faster (first: . .venv/bin/activate && pip install -e '.[transformers]'):"
echo "  prunus reconstruct hf:FOLDER --data texts.txt --sparsity 0.5 -o p.safetensors"
echo "  prunus compress hf:FOLDER --weights p.safetensors --input-ids 32 \\\\"
echo "      --activations int8 --embeddings int8 -o fast"
