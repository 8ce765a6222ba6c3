#!/usr/bin/env bash
# Runs challenges of the lab and takes a picture of each report.
#
#   bench/pictures.sh MILLPOND CHALLENGE...        into docs/pictures; what was measured is kept in target/pictures
#
# MORE="rounds=1" is set too. Times are short: pictures show what reports look like. For figures run `millpond lab run CHALLENGE`.
set -euo pipefail
cd "$(dirname "$0")/.."
millpond=$(realpath "$1"); shift
kept=target/pictures
mkdir -p "$kept" docs/pictures

settings_of() {
  case $1 in
    100-volumes) echo "runtime=5 ramp_time=1" ;;
    failover) echo "rounds=3 runtime=8" ;;
    layers) echo "rounds=1 runtime=2 ramp_time=0 size=256MiB file_size=128MiB" ;;
    one-machine) echo "runtime=2 ramp_time=0" ;;
    qos) echo "rounds=1 runtime=8" ;;
    releases) echo "rounds=6 runtime=1 ramp_time=0" ;;
    16-clients | scale | why-slow) echo "rounds=3 runtime=4" ;;
    *) echo "runtime=4" ;;
  esac
}

for challenge; do
  settings=()
  for setting in $(settings_of "$challenge") ${MORE:-}; do settings+=(--set "$setting"); done
  rm -rf "${kept:?}/$challenge"
  # One that misses what it expects has a report too.
  "$millpond" lab run "$challenge" "${settings[@]}" --out "$kept/$challenge" || echo "$challenge ended with $?" >&2
  # No sandbox: root has none, and the page is ours, without scripts. The size is that of a page's beginning.
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1600 \
    --screenshot="docs/pictures/$challenge.png" "file://$PWD/$kept/$challenge/report.html" 2> "$kept/$challenge.chromium"
done
