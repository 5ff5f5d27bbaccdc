#!/bin/sh
# Build the source package and, from it, a wheel that auditwheel accepts; then try the wheel in a new environment
# without make or a compiler: wheel.sh PYTHON [dist]. The last step needs the packages that prunus depends on.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
bin=$(dirname "$python")
dist=${2:-dist}
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
rm -rf "$dist"
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$bin:$PATH"

"$python" -m build --no-isolation --sdist --outdir "$dist" . >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
tar -xzf "$dist"/prunus-*.tar.gz -C "$work"
"$python" -m build --no-isolation --wheel --outdir "$work/raw" "$work"/prunus-*/ >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
"$python" -m auditwheel repair --wheel-dir "$dist" "$work"/raw/*.whl >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
"$python" -m auditwheel show "$dist"/*.whl | grep -v '^$' >&2
"$python" - "$dist"/*.whl <<'PY'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
compiled = [name for name in names if name.endswith(".so")]
assert len(compiled) == 3, f"The wheel holds {compiled}, not three compiled modules."
for wanted in ("prunus/py.typed", "prunus/__init__.pyi"):
    assert wanted in names, f"The wheel lacks {wanted}."
assert not [name for name in names if name.endswith((".cpp", ".h"))], "The wheel holds C++ sources."
PY

"$python" -m venv "$work/clean"
"$work/clean/bin/pip" --disable-pip-version-check -qq install -c constraints.txt "$dist"/*.whl
cd "$work"
env -i PATH="$work/clean/bin" HOME="$work" "$work/clean/bin/python" - <<'PY'
import json, shutil, subprocess
assert not any(map(shutil.which, ("make", "g++", "gcc", "cc", "cmake")))
doctor = json.loads(subprocess.run(["prunus", "doctor", "--json"], check=True, capture_output=True, text=True).stdout)
assert not [level for level in doctor["kernels"].values() if "not built" in level], doctor["kernels"]
command = "prunus prune fc:64-300-100-10 --data digits --sparsity 0.9 --pattern balanced:16".split()
subprocess.run(command, check=True, capture_output=True)
import torch, prunus
model = prunus.models.make("fc:64-300-100-10", seed=0)
prunus.prune(model, 0.9, pattern="balanced:16", exclude=("layers.2",))
fast = prunus.compress(model, example=torch.zeros(1, 64), select="always")
inputs = torch.randn(8, 64)
assert torch.allclose(fast(inputs), model(inputs), atol=1e-5)
print(f"The wheel works without make or a compiler: kernels {doctor['kernels']}, no Python plotly: "
      f"{subprocess.run(['python', '-c', 'import plotly'], capture_output=True).returncode != 0}")
PY
ls -l "$dist" | awk 'NR > 1 {print $5, $9}'
