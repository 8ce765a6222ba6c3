#!/usr/bin/env bash
# A virtual machine as a host that makes load: `millpond lab agent` runs in it, on disks that are NBD exports of this machine.
#
#   guest.sh up --dir DIR --millpond PROGRAM --port PORT --disk URI --disk URI [--memory MIB] [--cpus N]
#   guest.sh agent --port PORT        what a plan's `[[agent]]` has as its `command`
#   guest.sh kernel --dir DIR         what kernel a guest has: where its modules lie, its version, its file, a line each
#   guest.sh down --dir DIR           ends the guest at once: what it had not written yet is lost
#
# URI is nbd+unix:///EXPORT?socket=PATH. The first disk is /dev/vda in the guest, used as it is. On the second, /dev/vdb, an ext4
# file system is made, so WHAT IT HOLDS IS LOST, and mounted at /mnt. Plans had better say /guest/disk and /guest/files for the
# two: a host that runs one by mistake without the agent has no such paths, but may well have a /dev/vda.
#
# The guest's kernel is this machine's own where that can be read, else Debian's, downloaded once to
# ${MILLPOND_GUEST_CACHE:-$HOME/.cache/millpond-guest}. What its kernel and its agents complain of is in DIR/console.log.
#
# PORT is on 127.0.0.1 only, so no other machine reaches it. But there is no password: every local user, and every container that
# shares this network, can have the agent, root in the guest, write to both disks. The guest itself can connect to nobody.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

fail() { echo "guest.sh: $*" >&2; exit 1; }
usage() { sed -n '4,7s/^# *//p' "$0" >&2; exit 2; }

# The process that DIR/qemu.pid names, if it is still our guest: the number may be somebody else's by now.
pid_of_guest() {
  local pid
  pid=$(cat "$dir/qemu.pid" 2>/dev/null) && [ -r "/proc/$pid/cmdline" ] || return 1
  tr '\0' '\n' 2>/dev/null < "/proc/$pid/cmdline" | grep -qxF "$dir/qemu.pid" && echo "$pid"
}

down() {
  local signal pid tries
  for signal in TERM KILL; do
    pid=$(pid_of_guest) || break
    kill "-$signal" "$pid" 2>/dev/null || true
    for ((tries = 0; tries < 50; tries++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  done
  rm -f "$dir/qemu.pid"
}

check_packages() {
  local pair missing=""
  for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod mkfs.ext4:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null || missing+=" ${pair##*:}"
  done
  [ -z "$missing" ] || fail "programs are missing: apt-get install$missing"
}

# Sets `kernel`, its `version`, and `root`, below which its modules lie.
find_kernel() {
  root=/ version=$(uname -r); kernel=/boot/vmlinuz-$version
  if [ -r "$kernel" ] && [ -e "/lib/modules/$version/modules.dep" ]; then return; fi
  local cache=${MILLPOND_GUEST_CACHE:-$HOME/.cache/millpond-guest} package new
  root=$cache/kernel
  if [ ! -e "$root" ]; then
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }') || true
    [ -n "$package" ] || fail "no kernel: apt knows no package linux-image-amd64; on Debian, run apt-get update"
    mkdir -p "$cache"
    # Elsewhere until it is whole: another guest may look for it, or make it, at this moment.
    new=$(mktemp -d "$cache/new.XXXXXX")
    (cd "$new" && apt-get download -qq "$package" && dpkg -x ./*.deb kernel && depmod -b kernel "$(ls kernel/lib/modules)" \
      && mv -T kernel "$root") > "$dir/download.log" 2>&1 || true
    rm -rf "$new"
    [ -e "$root" ] || fail "$package cannot be had: $(tail -n 1 "$dir/download.log")"
  fi
  version=$(ls "$root/lib/modules"); kernel=$root/boot/vmlinuz-$version
}

make_initrd() {
  local tree=$dir/tree program file module name
  rm -rf "$tree"; mkdir -p "$tree"/{bin,proc,sys,dev,etc,mnt,tmp,guest,modules}
  touch "$tree/modules/order" # A kernel may have them all built in.
  cp -L "$millpond" "$tree/bin/millpond"
  cp -L "$(command -v busybox)" "$(command -v mkfs.ext4)" "$tree/bin/"
  for program in busybox mkfs.ext4 millpond; do
    # Of a static one ldd names none.
    while read -r file; do install -D "$file" "$tree$file"; done < <(ldd "$tree/bin/$program" 2>/dev/null | grep -oE '/[^ ]+')
  done
  for module in virtio_pci virtio_net virtio_blk ext4; do
    modprobe -d "$root" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }' | while read -r file; do
      name=$(basename "$file")
      if [ ! -e "$tree/modules/$name" ]; then cp "$file" "$tree/modules/"; echo "$name" >> "$tree/modules/order"; fi
    done
  done
  cat > "$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
set -e
trap 'echo "GUEST FAILED"; poweroff -f' EXIT
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done < /modules/order
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0
# The lab compares clocks, and the kernel took the time from one of whole seconds: take it again, as one begins.
read -r before < /sys/class/rtc/rtc0/since_epoch; now=$before
while [ "$now" = "$before" ]; do read -r now < /sys/class/rtc/rtc0/since_epoch; done
date -s "@$now" > /dev/null
# All is written now, so that the file system has nothing left to do while something is measured.
mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 /dev/vdb > /dev/null
mount -t ext4 -o noatime /dev/vdb /mnt
ln -s /dev/vda /guest/disk; ln -s /mnt /guest/files
# A process for each connection. As many of them may wait to be taken as there are letters l, and a job's clients come at once.
nc "-$(printf %0256d 0 | tr 0 l)" -p 7000 -e /bin/millpond lab agent &
until grep -q ':1B58 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 2> /dev/null; do sleep 0.1; done
echo "GUEST READY: Linux $(uname -r), after $(cut -d ' ' -f 1 /proc/uptime) s"
wait
INIT
  chmod +x "$tree/init"
  # Without KVM a guest reads more bytes faster than it unpacks fewer.
  (cd "$tree" && find . | cpio -o -H newc --quiet) > "$dir/initrd"
  rm -rf "$tree"
}

up() {
  if [ -z "$dir" ] || [ -z "$port" ] || [ ! -x "$millpond" ] || [ "${#disks[@]}" != 2 ]; then usage; fi
  check_packages
  mkdir -p "$dir"
  if pid_of_guest >/dev/null; then fail "a guest runs there; end it first: guest.sh down --dir $dir"; fi
  find_kernel
  make_initrd
  local accel=tcg number drives=() begin=$SECONDS
  # Some clouds offer a KVM without the processor's help, which opens, and does not boot every kernel.
  if grep -qwE 'vmx|svm' /proc/cpuinfo && (: <>/dev/kvm) 2>/dev/null; then accel=kvm; fi
  for number in 0 1; do
    # No aio=: that is how QEMU reads files, and this is a socket. A comma would end the option; two are one.
    drives+=(-drive "id=disk$number,if=none,format=raw,cache=none,file=${disks[number]//,/,,}"
      -device "virtio-blk-pci,drive=disk$number")
  done
  rm -f "$dir/console.log"
  trap down EXIT
  # The clock that QEMU gives the guest starts with a whole second, so it starts at one.
  sleep "$(printf '0.%09d' $((999999999 - 10#$(date +%N))))"
  qemu-system-x86_64 -accel "$accel" -cpu max -smp "$cpus" -m "$memory" -nodefaults -display none -no-reboot \
    -kernel "$kernel" -initrd "$dir/initrd" -append 'console=ttyS0 panic=-1 quiet loglevel=4' -serial "file:$dir/console.log" \
    -netdev "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:$port-:7000" -device virtio-net-pci,netdev=net,romfile= \
    "${drives[@]}" -daemonize -pidfile "$dir/qemu.pid" || fail "QEMU does not start"
  until grep -q '^GUEST READY' "$dir/console.log"; do
    if ! pid_of_guest >/dev/null || [ $((SECONDS - begin)) -ge 120 ]; then
      tail -n 20 "$dir/console.log" >&2
      fail "the guest ended, or was not ready within 120 s; above is the end of $dir/console.log"
    fi
    sleep 0.2
  done
  trap - EXIT
  echo "$accel, $(grep '^GUEST READY' "$dir/console.log" | tr -d '\r')"
}

command=${1:-}; shift || usage
dir="" millpond="" port="" memory=1024 cpus=1 disks=()
while [ $# -ge 2 ]; do
  case $1 in
    --dir) dir=$(realpath -m "$2") ;;
    --disk) disks+=("$2") ;;
    --millpond | --port | --memory | --cpus) declare "${1#--}=$2" ;;
    *) usage ;;
  esac
  shift 2
done
case $#$command in
  0up) up ;;
  0kernel) [ -n "$dir" ] || usage; mkdir -p "$dir"; find_kernel; printf '%s\n' "$root" "$version" "$kernel" ;;
  0down) [ -n "$dir" ] || usage; down ;;
  # busybox's nc passes on that the input ended, and ends when the agent does. Others do one of the two.
  0agent) [ -n "$port" ] || usage; check_packages; exec busybox nc 127.0.0.1 "$port" ;;
  *) usage ;;
esac
