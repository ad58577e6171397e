#!/bin/sh
# Install the other simulators, each in an environment of its own under benchmarks/peers/envs, which git ignores.
# Torch and the libraries of the works have the versions of constraints.txt; each simulator chooses the others.
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
