#!/bin/sh
# Builds sdist and wheel, installs the wheel outside the checkout, and tries what was installed.
#
#   sh native/package_test.sh [PYTHON]
#
# The wheel is built from the sdist, as a package index would have it; llama-cpp-python comes from
# pip's cache, or is compiled (8 minutes on 2 cores).  The tests that need nothing of the checkout
# run on what pip installed; `uv tool install` and `pipx install`, where uv and pipx are in PATH,
# must give a program whose `doctor` finds nothing wrong.
set -eu
python="${1:-python3}"
root="$(cd "$(dirname "$0")/.." && pwd)"
room="$(mktemp -d)"
trap 'rm -rf "$room"' EXIT
llama="$(sed -n 's/.*"\(llama-cpp-python==[^"]*\)".*/\1/p' "$root/pyproject.toml")"

"$python" -m venv "$room/tools"
"$room/tools/bin/pip" install --quiet build
"$room/tools/bin/python" -m build --outdir "$room/dist" "$root" >"$room/build.log" 2>&1 ||
    { tail -n 40 "$room/build.log"; exit 1; }
# uv does not look into pip's cache.
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$room/llama" "$llama"
wheel="$(ls "$room"/dist/*.whl)"
echo "built: $(basename "$wheel"), $(basename "$(ls "$room"/dist/*.tar.gz)")"
for file in dyspec_edge/models/catalog.toml dyspec_edge/py.typed dyspec_edge/bench/line.schema.json; do
    "$python" -m zipfile -l "$wheel" | grep -q "^$file " || { echo "missing in the wheel: $file"; exit 1; }
done

# From here on nothing sees the checkout, nor the user's caches.
mkdir "$room/away"
cd "$room/away"
export DYSPEC_EDGE_CACHE="$room/cache"

"$python" -m venv "$room/venv"
"$room/venv/bin/pip" install --quiet --find-links "$room/llama" "$wheel" \
    pytest hypothesis jsonschema scipy
cp -R "$root/tests" "$root/pyproject.toml" .
"$room/venv/bin/dyspec-edge" doctor
"$room/venv/bin/python" -m pytest -q -p no:cacheprovider \
    tests/native/test_rows.py tests/native/test_noise.py tests/decode/test_loop.py \
    tests/llama tests/test_engine.py tests/load/test_diagnosis.py
echo "pip install: passed"

if command -v uv >/dev/null 2>&1; then
    UV_TOOL_DIR="$room/uv" UV_TOOL_BIN_DIR="$room/uv-bin" \
        uv tool install --quiet --python "$python" --find-links "$room/llama" "$wheel"
    "$room/uv-bin/dyspec-edge" doctor --json >/dev/null
    echo "uv tool install: passed"
else
    echo "uv tool install: skipped, no uv (pip install uv)"
fi
if command -v pipx >/dev/null 2>&1; then
    PIPX_HOME="$room/pipx" PIPX_BIN_DIR="$room/pipx-bin" \
        pipx install --quiet --python "$python" --pip-args="--find-links $room/llama" "$wheel"
    "$room/pipx-bin/dyspec-edge" doctor --json >/dev/null
    echo "pipx install: passed"
else
    echo "pipx install: skipped, no pipx (pip install pipx)"
fi
