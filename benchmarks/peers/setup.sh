#!/bin/sh
# Installs the rivals, each in an environment of its own under benchmarks/peers/envs (not in git, no part of simfl).
# Torch and what the works need have the versions of simfl's own constraints; everything else is the rival's choice.
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
SHARED=$(grep -E '^(torch|numpy|transformers|peft|tokenizers|safetensors|huggingface_hub)==' ../../constraints.txt)

install() {  # NAME REQUIREMENT...
    name=$1
    shift
    test -x "envs/$name/bin/python" || "$PYTHON" -m venv "envs/$name"
    echo "$SHARED" > "envs/$name/constraints.txt"
    "envs/$name/bin/python" -m pip install --quiet --constraint "envs/$name/constraints.txt" "$@" torch transformers peft
    "envs/$name/bin/python" -m pip list --format freeze | grep -iE '^(flwr|pfl|ray|torch|transformers)=='
}

install flower 'flwr[simulation]==1.42.0'
install pfl 'pfl[pytorch]==0.6.0'
