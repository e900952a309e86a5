#!/bin/sh
# Fetches the libraries of the dashboard from the npm registry, at their pinned versions, into ui/js/lib, with their licences. Run it after a
# version below has changed; what it writes is committed. The libraries are used as they are published, but for two things: an import by
# name becomes one by path, since a strict policy has no import map, and the lines that name source maps are removed.
set -eu
cd "$(dirname "$0")/js/lib"
registry=${npm_config_registry:-https://registry.npmjs.org}
registry=${registry%/}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fetch() { # package, version, sum
    file=${1##*/}-$2.tgz
    curl -fsSL -o "$work/$file" "$registry/$1/-/$file"
    printf '%s  %s\n' "$3" "$work/$file" | sha256sum -c - >/dev/null || { echo "$1 $2 does not have the pinned checksum" >&2; exit 1; }
    mkdir -p "$work/${1##*/}"
    tar -xzf "$work/$file" -C "$work/${1##*/}" --strip-components=1
    cp "$work/${1##*/}/LICENSE" "LICENSE.${1##*/}.txt"
}

copy() { # from, to
    sed -e '/^\/\/# sourceMappingURL=/d' -e 's|from"preact"|from"./preact.js"|' "$work/$1" >"$2"
}

fetch preact 10.28.2 afaaf0bfdce1e7cecc0954267ea0fe4d3464944d265133b254dce856bdbf97bf
fetch htm 3.1.1 2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90
fetch @xterm/xterm 5.5.0 bd954fa721872170188cc5d7e83e88db3c83c9a18a4e8d24c2783d26491f59d2
fetch @xterm/addon-fit 0.10.0 917ac44972453d5eed52edc1e50260c76398ce48cf2290c2e60671102bba0b33
copy preact/dist/preact.module.js preact.js
copy preact/hooks/dist/hooks.module.js hooks.js
copy htm/dist/htm.module.js htm.js
copy xterm/lib/xterm.js xterm.js
copy addon-fit/lib/addon-fit.js addon-fit.js
cp "$work/xterm/css/xterm.css" xterm.css

# the reader of Parquet files: the modules that reading needs
fetch hyparquet 1.30.0 11edf9dfb9b59a62aa27850f4969b5031486f16afffba5513eb52cece332ca19
mkdir -p hyparquet
for module in assemble bloom column constants convert datapage delta encoding filter geoparquet indexes metadata plain plan read rowgroup scan schema snappy thrift utils variant wkb xxhash; do
    copy "hyparquet/src/$module.js" "hyparquet/$module.js"
done
