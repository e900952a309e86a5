#!/bin/sh
# Makes the bucket, and for the API, the worker and the scheduler a user of MinIO each, with the policy beside this file. It may run
# again: then it brings policies and passwords up to date.
#
#   MINIO_ROOT_USER, MINIO_ROOT_PASSWORD   MinIO's own
#   API_SECRET, WORKER_SECRET, SCHEDULER_SECRET
#                                          the secret keys; the access keys are sandfarm-api, sandfarm-worker and sandfarm-scheduler
#   MINIO_ADDRESS                          where MinIO is: minio:9000
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# Passwords appear in no command line.
export MC_HOST_farm="http://${MINIO_ROOT_USER:?is not set}:${MINIO_ROOT_PASSWORD:?is not set}@${MINIO_ADDRESS:-minio:9000}"
export MC_CONFIG_DIR="${MC_CONFIG_DIR:-/tmp/mc}"

# user makes a user with its policy.
user() { # service, secret key
    mc --quiet admin policy create farm "sandfarm-$1" "$here/$1.json"
    printf '%s\n%s\n' "sandfarm-$1" "$2" | mc --quiet admin user add farm
    mc --json admin user info farm "sandfarm-$1" | grep -q "\"policyName\": *\"sandfarm-$1\"" \
        || mc --quiet admin policy attach farm "sandfarm-$1" --user "sandfarm-$1"
}

mc --quiet mb --ignore-existing farm/sandfarm
user api "${API_SECRET:?is not set}"
user worker "${WORKER_SECRET:?is not set}"
user scheduler "${SCHEDULER_SECRET:?is not set}"
