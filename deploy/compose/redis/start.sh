#!/bin/sh
# Starts Redis with the password from the environment. It appears in no file and no process list: Redis reads these settings from its
# standard input.
set -eu
exec redis-server /usr/local/etc/redis/farm.conf - <<EOF
requirepass ${REDIS_PASSWORD:?is not set}
EOF
