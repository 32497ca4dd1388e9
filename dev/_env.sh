# Sourced by the other commands of this folder: defines the checkout, the cache and the virtual environment.
# After `source`, call `ensure_setup` (installs what is missing) and `enter_environment` (exports Spark's variables).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${CDC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/airflow-provider-cdc}

# Print the header comment of the calling script.
usage() {
    sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p}' "$0"
}

wants_help() {
    [[ "${1-}" == -h || "${1-}" == --help ]]
}

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# The first Python of version 3.11 to 3.14 that runs. $CDC_PYTHON is tried first.
find_python() {
    local candidate
    for candidate in ${CDC_PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3; do
        if "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12, 3.13 or 3.14 with venv found: install one, or name it in CDC_PYTHON"
}

# One environment per Python, per set of pins and per checkout (its editable install names the checkout).
find_venv() {
    local python key
    python=$(find_python)
    key=$({ "$python" -VV; cat "$ROOT/dev/constraints.txt"; echo "$ROOT"; } | sha256sum | cut -c1-12)
    PYTHON=$python
    VENV=$CACHE/venv-$key
}

ensure_setup() {
    "$ROOT/dev/setup" --quiet </dev/null
    find_venv
}

enter_environment() {
    # This lock prevents the removal of the environment while the command runs (dev/harness/leftovers.py).
    exec 8<"$VENV/.checkout"
    flock --shared 8
    touch "$VENV/.checkout"
    # Airflow and Spark start many processes. Each would compile thousands of modules again (Airflow: 4 s).
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=$CACHE/pycache
    export PATH="$VENV/bin:$PATH" PYTHONPATH="$ROOT/dev${PYTHONPATH:+:$PYTHONPATH}" CDC_CACHE="$CACHE"
    local exports
    exports=$(python -m harness.environment exports)
    eval "$exports"
}
