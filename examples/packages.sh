#!/bin/sh
# Installs packages into a sandbox and polls their status; the running kernel can import them. Needs curl and jq.
set -eu
farm="${SANDFARM_URL:-http://127.0.0.1:8000}"

ask() { # method path [json]
	curl -fsS -X "$1" "$farm$2" -H 'Content-Type: application/json' \
		${SANDFARM_API_KEY:+-H "Authorization: Bearer $SANDFARM_API_KEY"} ${3:+--data "$3"}
}
run() { # code: prints its output, or the exception
	ask POST "/v1/sandboxes/$sandbox/execute?wait=60" "$(jq -n --arg code "$1" '{code: $code}')" |
		jq -r '.result | if .error then "\(.error.name): \(.error.value)" else .stdout end'
}

created=$(ask POST '/v1/sandboxes?wait=60' '{"ttl_seconds":600,"labels":{"made-by":"packages.sh"}}') || {
	echo "There is no sandbox. If the farm answered 401, set SANDFARM_API_KEY to a key of it." >&2
	exit 1
}
sandbox=$(printf '%s' "$created" | jq -r .sandbox.id)
trap 'ask DELETE "/v1/sandboxes/$sandbox" >/dev/null' EXIT

run 'import humanize'
ask POST "/v1/sandboxes/$sandbox/packages" '{"packages":["humanize", "no-such-package-anywhere"]}' | jq -c '{id, kind, state}'
for package in humanize no-such-package-anywhere; do
	while :; do
		status=$(ask GET "/v1/sandboxes/$sandbox/packages/$package")
		printf '%s\n' "$status" | jq -c '{name, status, version, message}'
		[ "$(printf '%s' "$status" | jq -r .status)" = installing ] || break
		sleep 0.3
	done
done
run 'import humanize; print(humanize.intcomma(1234567), humanize.naturalsize(3 * 2**30, binary=True))'
