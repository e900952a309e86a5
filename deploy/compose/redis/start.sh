#!/bin/sh
# Starts Redis with the password of the environment, which so appears in no file and in no list of processes: Redis reads
# the second half of its settings from its standard input.
set -eu
exec redis-server /usr/local/etc/redis/farm.conf - <<EOF
requirepass ${REDIS_PASSWORD:?is not set}
EOF
