#!/bin/sh
# Build the virtual environment: setup.sh VENV KEY run|test. Does nothing when the stamp holds the key.
set -eu
venv=$1 key=$2 kind=$3
stamp=$venv/.stamp-$kind
[ "$kind" = run ] && [ -f "$venv/.stamp-test" ] && [ "$(cat "$venv/.stamp-test")" = "$key" ] && exit 0
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && exit 0

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Prunus needs Python 3.11 or newer; $python is $("$python" --version). Set PYTHON to a newer one." >&2
    exit 2
}
missing=""
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing="$missing python3-venv"
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
"$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || missing="$missing python3-dev"
if [ "$kind" = test ]; then
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    [ -d /usr/include/simde ] || missing="$missing libsimde-dev"
fi
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing Debian packages:$missing" >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 ||
            echo "Some of these Debian packages could not be installed:$missing. Going on without them." >&2
    else
        echo "These Debian packages are missing:$missing. Install them for the full set; going on without them." >&2
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip="$venv/bin/pip --disable-pip-version-check -qq"
echo "Setting up $venv (torch and the compiled kernels; a few minutes the first time)" >&2
$pip install "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.26" ninja
extras=""
[ "$kind" = test ] && extras="[test,check,docs,wheel,private,dp,export,cluster,parquet,federated,lightning,transformers,tensorboard]"
$pip install --no-build-isolation -c constraints.txt -e ".$extras"
echo "$key" >"$stamp"
