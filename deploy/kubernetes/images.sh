#!/bin/sh
# Builds the images of a farm in a cluster, pushes them, and prints them as values of deploy/helm/sandfarm. `make cluster-images` runs it,
# after it has filled bin/image.
#
#   REGISTRY   what the names of the images begin with, such as registry.example.com/sandfarm
#   PUSH       the command that pushes an image (docker push), or another that copies it into a cluster without a registry
#   IMAGES     the images of sandboxes (python), of those that `sandfarm image build` knows
set -eu

cd "$(dirname "$0")/../.."
: "${REGISTRY:?is not set: name the registry, such as REGISTRY=registry.example.com/sandfarm}"

# push gives an image a name of its own, pushes it, and prints the name: by digest, if a registry has given one.
push() { # name, image
    ref=$REGISTRY/$1:$(docker image inspect --format '{{.Id}}' "$2" | cut -c 8-19)
    docker tag "$2" "$ref" >&2
    ${PUSH:-docker push} "$ref" >&2
    docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$ref" | grep "^$REGISTRY/$1@" || echo "$ref"
}

build() { # name, Dockerfile, context
    id=$(docker build --quiet --build-arg BASE="$base" --file "$2" "$3")
    push "$1" "$id"
}

echo images:
for name in ${IMAGES:-python}; do
    id=$(bin/sandfarm image build "$name")
    ref=$(push "$name" "$id")
    echo "  $name: $ref"
done
# The base of that image, where no registry answers.
base=debian:trixie-slim
! docker image inspect sandfarm/base:latest >/dev/null 2>&1 || base=sandfarm/base:latest
farm=$(build farm deploy/Dockerfile bin/image/farm)
redis=$(build redis deploy/Dockerfile.redis deploy/compose/redis)
minio=$(build minio deploy/Dockerfile.minio bin/image/minio)
cat <<END
image: $farm
trial:
  redis: $redis
  minio: $minio
END
