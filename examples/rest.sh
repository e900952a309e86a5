#!/bin/sh
# Creates a sandbox, runs code in it twice, downloads the file that the code created, and closes it. Needs curl and jq.
set -eu
farm="${SANDFARM_URL:-http://127.0.0.1:8000}"

ask() { # method path [json]
	curl -fsS -X "$1" "$farm$2" -H 'Content-Type: application/json' \
		${SANDFARM_API_KEY:+-H "Authorization: Bearer $SANDFARM_API_KEY"} ${3:+--data "$3"}
}

created=$(ask POST '/v1/sandboxes?wait=60' '{"ttl_seconds":600,"labels":{"made-by":"rest.sh"}}') || {
	echo "There is no sandbox. If the farm answered 401, set SANDFARM_API_KEY to a key of it." >&2
	exit 1
}
sandbox=$(printf '%s' "$created" | jq -r .sandbox.id)
answer=$(mktemp)
trap 'rm -f "$answer"; ask DELETE "/v1/sandboxes/$sandbox" >/dev/null' EXIT

ask POST "/v1/sandboxes/$sandbox/execute?wait=60" '{"code":"x = 20"}' | jq -r .state
job=$(ask POST "/v1/sandboxes/$sandbox/execute?wait=60" '{"code":"open(\"answer.txt\", \"w\").write(str(x + 22)); x + 22"}')
printf '%s' "$job" | jq -r '.result.results[].data'
curl -fsS -o "$answer" "$(printf '%s' "$job" | jq -r '.result.artifacts[0].url')"
cat "$answer"
