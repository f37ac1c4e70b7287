#!/usr/bin/env bash
# Let every client that can be installed talk to what is served, two turns with a tool each.
#
#     tests/clients/run.sh [pytest arguments]
#
# The first run makes .venv-clients from the package indexes of pip and npm, in about a minute:
# an environment for each client, as they are today, since some pin what others need newer. Later
# runs use it. ANABRANCH_CLIENTS names another folder. The tests themselves run in .venv. A line
# at the end names each client that could not be installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${ANABRANCH_CLIENTS:-.venv-clients}")
python=$PWD/.venv/bin/python
program=tests/clients/run.sh
PYTHON_CLIENTS=(
    openai 'pydantic-ai-slim[openai]' openai-agents langchain-openai llm
    'litellm mcp' # it imports mcp for tools, and does not require it
)
NODE_CLIENTS=(openai 'ai @ai-sdk/openai @ai-sdk/openai-compatible')
PATIENCE=180 # seconds to install one: a resolver may try hundreds of versions

install_python() {
    local name=${1%%[[ ]*}
    local log=$folder/$name.log
    # shellcheck disable=SC2086 - several packages
    "$python" -m venv --without-pip "$folder/$name" &&
        timeout $PATIENCE "$python" -m pip --python "$folder/$name" \
            install -q --no-input --disable-pip-version-check $1 2>"$log" ||
        missing "$name" "$log"
}

install_node() {
    local log=$folder/$2.log
    # shellcheck disable=SC2086 - several packages
    timeout $PATIENCE npm install --prefix "$folder/$2" --no-audit --no-fund --no-save \
        --loglevel=error $1 zod >/dev/null 2>"$log" || missing "${1%% *} for Node" "$log"
}

missing() {
    local why
    why=$(grep -m 1 -i error "$2") || why="no answer in $PATIENCE seconds"
    echo "NOT RUN: $1 could not be installed: $why" >>"$folder/missing"
}

if [ ! $program -ot "$folder/ready" ]; then
    echo "installing clients for Python and Node into $folder ..." >&2
    rm -rf "$folder"
    mkdir -p "$folder"
    : >"$folder/missing"
    for each in "${PYTHON_CLIENTS[@]}"; do install_python "$each" & done
    for each in "${NODE_CLIENTS[@]}"; do install_node "$each" "node-${each%% *}" & done
    wait
    touch "$folder/ready"
fi

status=0
ANABRANCH_CLIENTS=$folder "$python" -m pytest tests/clients -p no:cacheprovider "$@" || status=$?
cat "$folder/missing"
exit $status
