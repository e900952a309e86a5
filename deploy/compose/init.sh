#!/bin/sh
# Creates .env with random passwords for docker compose, readable by you alone. Existing variables are kept.
#
#   deploy/compose/init.sh [FILE]               for the first start; by default FILE is .env beside docker-compose.yml
#   deploy/compose/init.sh --key TENANT [FILE]  another API key
set -eu
umask 077

here=$(cd "$(dirname "$0")/../.." && pwd)

die() {
    printf 'init: %s\n' "$*" >&2
    exit 1
}

# random prints bytes in hex.
random() { od -An -v -tx1 -N "$1" /dev/urandom | tr -d ' \n'; }

# key prints a key of 32 bytes in base64.
key() { head -c 32 /dev/urandom | base64 | tr -d '\n'; }

# hash prints the SHA-256 of its argument.
hash() {
    if command -v sha256sum >/dev/null 2>&1; then printf %s "$1" | sha256sum; else printf %s "$1" | shasum -a 256; fi | cut -c 1-64
}

# has reports whether the file sets a variable.
has() { grep -q "^$1=." "$file"; }

# put writes a variable unless the file has it.
put() { has "$1" || printf '%s=%s\n' "$1" "$2" >>"$file"; }

# bundle prints the path of this machine's trusted certificate authorities: a company's own may be among them, which containers
# lack.
bundle() {
    for path in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
        if [ -n "$path" ] && [ -f "$path" ]; then
            printf %s "$path"
            return
        fi
    done
    printf /dev/null
}

# new_key makes an API key for a tenant. The file gets its hash; the key itself is printed, once.
new_key() {
    key=sf_$(random 24)
    entry=$1:$(hash "$key")
    if has SANDFARM_API_KEYS; then
        sed "s|^SANDFARM_API_KEYS=.*|&,$entry|" "$file" >"$file.new"
        mv "$file.new" "$file"
    else
        put SANDFARM_API_KEYS "$entry"
    fi
    printf 'API key of tenant %s: %s\n(only its hash is kept: note it down. SANDFARM_API_KEY=… hands it to bin/sandfarm)\n' "$1" "$key"
}

# usage prints the comment at the head of this file.
usage() { sed -n '2,/^[^#]/ { s/^# \{0,1\}//p; }' "$0"; }

tenant=
case ${1:-} in
-h | --help)
    usage
    exit
    ;;
esac
if [ "${1:-}" = --key ]; then
    tenant=${2:-}
    case $tenant in *[!A-Za-z0-9._-]*) tenant= ;; esac
    case $tenant in *[!.]*) ;; *) die "name a tenant: letters, digits, dots, dashes and underscores, not only dots" ;; esac
    shift 2
fi
case ${1:-} in -*) die "unknown option $1: --help says what there is" ;; esac
[ $# -le 1 ] || die "usage: deploy/compose/init.sh [--key TENANT] [FILE]"
file=${1:-$here/.env}

if [ ! -e "$file" ]; then
    printf '%s\n' "# Settings of docker compose, with its passwords. Made by deploy/compose/init.sh; keep it, and keep it to yourself." >"$file"
fi
chmod 600 "$file"
[ -z "$(tail -c 1 "$file")" ] || echo >>"$file" # a last line without a newline would swallow the next

put SANDFARM_REDIS_PASSWORD "$(random 24)"
put SANDFARM_S3_ACCESS_KEY "farm-$(random 4)"
put SANDFARM_S3_SECRET_KEY "$(random 20)"
put SANDFARM_S3_API_SECRET "$(random 20)"
put SANDFARM_S3_WORKER_SECRET "$(random 20)"
put SANDFARM_S3_SCHEDULER_SECRET "$(random 20)"
put SANDFARM_CALLBACK_SECRET "$(random 32)"
put SANDFARM_SECRETS_KEY "$(key)"
put SANDFARM_CA_BUNDLE "$(bundle)"
if docker image inspect sandfarm/base:latest >/dev/null 2>&1; then put SANDFARM_BASE sandfarm/base:latest; fi
if [ -n "$tenant" ]; then
    new_key "$tenant"
elif ! has SANDFARM_API_KEYS; then
    new_key default
fi
