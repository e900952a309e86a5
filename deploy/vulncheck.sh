#!/bin/sh
# Looks for known vulnerabilities in what the programs call. Its database is on the network: without it nothing is checked, and this says so.
#
#   deploy/vulncheck.sh GOVULNCHECK   path of the tool
#   GOVULNDB                          address of the database (default https://vuln.go.dev)
set -eu
cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev}
case $database in
http://* | https://*)
    if ! curl -sSfL --max-time 20 -o /dev/null "$database/index/db.json"; then
        printf 'NOT CHECKED: the vulnerability database at %s cannot be reached. Run this where it can, or set GOVULNDB to a copy.\n' "$database" >&2
        exit 3
    fi
    ;;
esac
exec "$1" -db "$database" -tags integration ./cmd/...
