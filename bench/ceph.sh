#!/usr/bin/env bash
# A Ceph cluster on this machine, to measure beside Millpond: a monitor, a manager, OSDs on loop devices over memory, all on
# 127.0.0.1, and an image `rbd/test`. As root.
#
#   bench/ceph.sh up        OSDS=3 REPLICAS=3 IMAGE=1G OSD_BYTES=3G MEMORY=/dev/shm CEPH_DIR=/run/millpond-ceph
#   bench/ceph.sh down
#
# Packages of Debian: ceph-osd ceph-mon ceph-mgr ceph-common libtcmalloc-minimal4. Debian builds OSDs without tcmalloc, which costs
# them much CPU time: it is loaded before, so that Ceph is at its best. Authentication, scrub, debug logs and the client's cache are
# off, which is at its best too.
set -euo pipefail
directory=${CEPH_DIR:-/run/millpond-ceph}
export CEPH_CONF=$directory/ceph.conf
PATH=$PATH:/usr/sbin:/sbin

fail() { echo "ceph.sh: $*" >&2; exit 1; }

down() {
  local file line signal tries
  # What is named in there is killed and removed, as root: it must be ours.
  [ -e "$directory" ] || return 0
  { [ -O "$directory" ] && [ -O "$directory/made-by-ceph.sh" ]; } || fail "$directory is not what \`bench/ceph.sh up\` makes"
  for signal in TERM KILL; do
    for file in "$directory"/*.pid; do kill_daemon "$signal" "$file"; done
    for ((tries = 0; tries < 60; tries++)); do any_runs || break; sleep 0.5; done
  done
  while read -r line; do losetup -d "$line" || true; done < <(cat "$directory/loops" 2>/dev/null)
  while read -r line; do rm -f "$line"; done < <(cat "$directory/images" 2>/dev/null)
  rm -rf "$directory"
}

# The process that a file names, if it is still a daemon of Ceph: the number may be somebody else's by now.
pid_of() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && grep -q '^ceph-' "/proc/$pid/comm" 2>/dev/null && echo "$pid"
}

kill_daemon() {
  local pid
  if pid=$(pid_of "$2"); then kill "-$1" "$pid" 2>/dev/null || true; fi
}

any_runs() {
  local file
  for file in "$directory"/*.pid; do
    if pid_of "$file" > /dev/null; then return 0; fi
  done
  return 1
}

write_settings() {
  cat > "$CEPH_CONF" <<SETTINGS
[global]
fsid = $1
mon_host = [v1:127.0.0.1:6789]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_bind_msgr2 = false
ms_bind_ipv6 = false
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_pool_default_size = $replicas
osd_pool_default_min_size = $((replicas > 1 ? replicas - 1 : 1))
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
osd_memory_target = 1073741824
log_file = $directory/\$name.log
admin_socket = $directory/\$name.asok
pid_file = $directory/\$name.pid
run_dir = $directory
debug_ms = 0/0
debug_osd = 0/0
debug_bluestore = 0/0
debug_rocksdb = 0/0
debug_bdev = 0/0
debug_bluefs = 0/0
debug_mon = 0/0
debug_paxos = 0/0
debug_mgr = 0/0
debug_objecter = 0/0
[client]
rbd_cache = false
[mon.a]
mon_data = $directory/mon
[mgr.x]
mgr_data = $directory/mgr
[osd]
osd_objectstore = bluestore
osd_class_update_on_start = false
bdev_enable_discard = false
osd_max_scrubs = 0
SETTINGS
}

start_osd() {
  local number=$1 image=$memory/millpond-ceph-$1.img device uuid tries
  mkdir -p "$directory/osd$number"
  truncate -s "$osd_bytes" "$image"; echo "$image" >> "$directory/images"
  device=$(losetup -f --show --direct-io=on "$image"); echo "$device" >> "$directory/loops"
  uuid=$(cat /proc/sys/kernel/random/uuid)
  ceph osd new "$uuid" "$number" > /dev/null
  ln -s "$device" "$directory/osd$number/block"
  ceph-osd -i "$number" --mkfs --osd-uuid "$uuid" --osd-data "$directory/osd$number" "${as_root[@]}"
  # With an allocator that it was not built with, 16.2 sometimes refuses what it made itself: it is started again.
  for ((tries = 0; tries < 6; tries++)); do
    LD_PRELOAD=$allocator ceph-osd -i "$number" --osd-data "$directory/osd$number" "${as_root[@]}" > /dev/null 2>&1 || true
    sleep 3
    if kill -0 "$(cat "$directory/osd.$number.pid" 2>/dev/null)" 2>/dev/null; then return; fi
  done
  fail "osd.$number does not start; see $directory/osd.$number.log"
}

up() {
  local osds=${OSDS:-3} number fsid
  replicas=${REPLICAS:-3} osd_bytes=${OSD_BYTES:-3G} memory=${MEMORY:-/dev/shm} as_root=(--setuser root --setgroup root)
  [ ! -e "$directory" ] || fail "$directory is there already; end what is there with: bench/ceph.sh down"
  command -v ceph-osd ceph-mon ceph-mgr rbd > /dev/null ||
    fail "programs are missing: apt-get install ceph-osd ceph-mon ceph-mgr ceph-common libtcmalloc-minimal4"
  allocator=$(find /usr/lib -name 'libtcmalloc_minimal.so.4' -print -quit)
  [ -n "$allocator" ] || fail "tcmalloc is missing: apt-get install libtcmalloc-minimal4"
  mkdir -m 700 "$directory"
  touch "$directory/made-by-ceph.sh"
  trap down EXIT
  mkdir "$directory"/{mon,mgr}
  ulimit -n "$(ulimit -Hn)"
  fsid=$(cat /proc/sys/kernel/random/uuid)
  write_settings "$fsid"
  monmaptool --create --fsid "$fsid" --addv a '[v1:127.0.0.1:6789]' "$directory/monmap" --clobber > /dev/null
  ceph-mon --mkfs -i a --monmap "$directory/monmap" "${as_root[@]}"
  ceph-mon -i a "${as_root[@]}"
  ceph-mgr -i x "${as_root[@]}"
  for ((number = 0; number < osds; number++)); do start_osd "$number"; done
  ceph osd set noscrub > /dev/null 2>&1
  ceph osd set nodeep-scrub > /dev/null 2>&1
  ceph osd pool create rbd 64 64 > /dev/null 2>&1
  ceph osd pool set rbd pg_autoscale_mode off > /dev/null 2>&1
  rbd pool init rbd
  rbd create --size "${IMAGE:-1G}" test
  trap - EXIT
  ceph -s
  echo "up; its settings are $CEPH_CONF"
}

case ${1:-} in
  up) up ;;
  down) down ;;
  *) sed -n '5,6s/^# *//p' "$0" >&2; exit 2 ;;
esac
