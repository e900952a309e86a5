#!/bin/sh
# Checks a host with NVIDIA GPUs: a farm of its own runs nvidia-smi and a CUDA matrix product in a sandbox with one device.
# On any other host it fails and says what is missing.
set -eu
farm=bin/sandfarm
port=${SANDFARM_TEST_PORT:-8199}

fail() {
	echo "test-gpu: $*" >&2
	echo "test-gpu: nothing was checked." >&2
	exit 1
}

command -v nvidia-smi >/dev/null 2>&1 || fail "nvidia-smi is missing: this host has no NVIDIA driver, and so no GPU that can be used."
devices=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>&1) || fail "the driver does not answer: $devices"
[ -n "$devices" ] || fail "the driver knows no device."
docker info >/dev/null 2>&1 || fail "no Docker engine answers: start it, or run \`make run\` once."
[ -x "$farm" ] || fail "$farm is missing: run make build."
$farm doctor --json | tr -d '\n' | grep -q '"what": *"GPU driver of the engine",[^}]*"status": *"ok"' ||
	fail "the engine cannot give GPUs to containers: install nvidia-container-toolkit, restart the engine (see $farm doctor)."

data=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || { kill "$pid"; wait "$pid"; } 2>/dev/null; rm -rf "$data"' EXIT
export SANDFARM_DATA="$data" SANDFARM_API_LISTEN="127.0.0.1:$port" SANDFARM_S3_LISTEN="127.0.0.1:$((port - 1))" \
	SANDFARM_ENGINE_NAMESPACE=sandfarm-test-gpu SANDFARM_URL="http://127.0.0.1:$port"
echo "test-gpu: building the image python-cuda, if it is missing; this downloads gigabytes"
$farm image build python-cuda
SANDFARM_WORKER_IMAGES=python-cuda $farm up >"$data/log" 2>&1 &
pid=$!
tries=0
until $farm workers >/dev/null 2>&1 && $farm workers --json | grep -q '"model"'; do
	tries=$((tries + 1))
	if [ "$tries" -gt 120 ] || ! kill -0 "$pid" 2>/dev/null; then
		cat "$data/log" >&2
		echo "test-gpu: no worker offers a GPU" >&2
		exit 1
	fi
	sleep 1
done
$farm workers
cat >"$data/check.py" <<'PY'
import subprocess
print(subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout, end="")
PY
cat images/python-cuda/smoke.py >>"$data/check.py"
$farm run "$data/check.py" --no-save --image python-cuda --gpu 1 --memory 8g --timeout 10m >"$data/out" || { cat "$data/out" "$data/log" >&2; exit 1; }
cat "$data/out"
grep -q '^devices: 1$' "$data/out" && grep -q '^smoke: ok$' "$data/out" || { echo "test-gpu: the sandbox did not have exactly one device" >&2; exit 1; }
echo "test-gpu: ok"
