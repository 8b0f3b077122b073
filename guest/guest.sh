#!/bin/bash
# guest.sh [OPTIONS] -- PROGRAM [ARGUMENTS]: runs a program on persistent memory, in a guest whose power can be cut.
#
#   -w FOLDER   work folder: keeps kernel, root and memory between runs    [target/guest]
#   -f KIND     ext4    ext4 with dax=always on an NVDIMM                  [ext4]
#               devdax  the NVDIMM as /dev/dax0.0
#               virtio  ext4 on virtio-pmem: no synchronous mappings
#               none    no persistent memory: $PMEM is a folder in ordinary memory
#   -s MB       size of the persistent memory                              [128]
#   -m MB       size of the ordinary memory                                [512]
#   -a FILE     copies FILE into the guest (may be repeated)
#   -k REGEX    cuts the power when a line of output matches REGEX
#   -e PERCENT  share of stores without write-back that the cache evicts in time [0]
#   -S SEED     seed that selects these stores                             [1]
#   -K          keeps the memory of the last run; otherwise it is new and empty
#   -t SECONDS  time limit of the run                                      [180]
#
# In the guest the program runs in /guest. '$PMEM' in an argument is replaced by the path of the persistent memory, and
# '$PREVIOUS' by the path of a file with the output of the previous run, if that ended by a power cut.
#
# Exit status: the program's; 0 if the power was cut as requested; 123 if the program ended before the requested cut;
# 124 at the time limit; 125 if the run is not valid. README.md says what a run shows.
set -euo pipefail
HERE=$(dirname "$(realpath "$0")")
. "$HERE/make.sh"

WORK=$HERE/../target/guest FS=ext4 SIZE=128 MEMORY=512 CUT='' EVICT=0 SEED=1 KEEP=0 LIMIT=180 FILES=()
while getopts w:f:s:m:a:k:e:S:Kt: option; do
  case $option in
    w) WORK=$OPTARG ;;
    f) FS=$OPTARG ;;
    s) SIZE=$OPTARG ;;
    m) MEMORY=$OPTARG ;;
    a) FILES+=("$(realpath -es "$OPTARG")") ;;
    k) CUT=$OPTARG ;;
    e) EVICT=$OPTARG ;;
    S) SEED=$OPTARG ;;
    K) KEEP=1 ;;
    t) LIMIT=$OPTARG ;;
    *) exit 64 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 64; }
PROGRAM=$(realpath -e "$1") || fail "there is no program $1"
shift
case $FS in ext4 | devdax) DEVICE=nvdimm,unarmed=off ;; virtio) DEVICE=virtio-pmem-pci ;; none) DEVICE= ;;
  *) fail "unknown kind $FS, expected ext4, devdax, virtio or none" ;; esac

mkdir -p "$WORK"
WORK=$(realpath "$WORK")
exec 9>"$WORK/lock"
flock -n 9 || fail "$WORK is in use"
make_guest

# ---- the memory ----
PMEM=$WORK/pmem.img NEW=0
if [ $KEEP = 0 ] || [ ! -s "$PMEM" ]; then
  NEW=1
  rm -f "$PMEM"
  truncate -s "${SIZE}M" "$PMEM"
  : >"$WORK/previous.log"
fi

# ---- the second half of the root: the program ----
put_program() {
  local own=$WORK/own file argument command
  rm -rf "$own"
  mkdir -p "$own/guest"
  for file in "$PROGRAM" "${FILES[@]}"; do
    put "$own" "$file"
    cp -L "$file" "$own/guest/"
  done
  cp "$WORK/previous.log" "$own/guest/"
  echo "FS=$FS NEW=$NEW ARM=$([ -z "$CUT" ] && echo 0 || echo 1)" >"$own/guest/env"
  command=./$(basename "$PROGRAM")
  for argument in "$@"; do command+=" $(printf %q "$argument" | sed 's/\\\$\(PMEM\|PREVIOUS\)/$\1/g')"; done
  echo "$command" >"$own/guest/command"
  chmod -R a+rx "$own/guest"
  { cat "$WORK/base.cpio"; (cd "$own" && find . -mindepth 1 | cpio -o -H newc --quiet); } >"$WORK/initrd"
}
put_program "$@"

# ---- the run ----
QEMU=(qemu-system-x86_64 -machine pc,nvdimm=on,nvdimm-persistence=mem-ctrl -accel tcg,thread=multi -cpu max -smp 2
  -m "${MEMORY}M,slots=2,maxmem=$((MEMORY + SIZE + 1024))M"
  -nodefaults -no-user-config -display none -vga none -nic none -no-reboot
  -serial "file:$WORK/console.log" -serial stdio -kernel "$WORK/vmlinux" -initrd "$WORK/initrd"
  -append 'console=ttyS0 panic=-1 quiet mitigations=off edd=off random.trust_cpu=on no_timer_check')
if [ -n "$DEVICE" ]; then
  QEMU+=(-object "memory-backend-file,id=pm,share=on,pmem=off,mem-path=$PMEM,size=${SIZE}M" -device "$DEVICE,id=nv,memdev=pm")
fi
if [ -n "$CUT" ]; then
  rm -f "$WORK/media.img" "$WORK/stats"
  QEMU+=(-plugin "$WORK/powerfail.so,img=$PMEM,media=$WORK/media.img,stats=$WORK/stats,evict=$EVICT,seed=$SEED")
fi

# Reads the guest's lines until it ends, its power is cut, or the time limit is reached. Sets STATUS.
follow() {
  local pid=$1 end=$((SECONDS + LIMIT)) line part='' got
  STATUS=125
  while :; do
    line='' got=0
    IFS= read -r -t 0.2 -u 3 line || got=$?
    part+=$line
    if [ $got = 0 ]; then
      line=${part%$'\r'} part=''
      if [[ $line == @@GUEST* ]]; then
        echo "$line" >&2
        if [[ $line =~ EXIT\ ([0-9]+) ]]; then STATUS=${BASH_REMATCH[1]}; fi
        continue
      fi
      printf '%s\n' "$line" | tee -a "$WORK/output.log"
      if [[ -n $CUT && $line =~ $CUT ]]; then
        kill -9 "$pid"
        STATUS=cut
        return
      fi
    elif [ $got -le 128 ]; then
      return # the guest has ended
    fi
    if [ $SECONDS -ge $end ]; then
      kill -9 "$pid"
      STATUS=124
      return
    fi
  done
}

: >"$WORK/output.log"
rm -f "$WORK/pipe"
mkfifo "$WORK/pipe"
# The guest must not outlive this script.
setpriv --pdeathsig KILL "${QEMU[@]}" </dev/null >"$WORK/pipe" 2>"$WORK/qemu.log" 9>&- &
guest=$!
exec 3<"$WORK/pipe"
follow $guest
exec 3<&-
wait $guest 2>/dev/null || true
rm -f "$WORK/pipe" "$WORK/initrd"

# ---- the result ----
# Checks that the model observed the program's stores, and replaces the memory by its content after the cut.
power_is_cut() {
  local names=(armed user_stores nt_stores flushes fences kernel_stores lost_lines orphans) values i told=''
  read -r -a values < <(od -An -v -t u8 -N 64 "$WORK/stats" | xargs)
  for i in "${!names[@]}"; do told+=" ${names[i]}=${values[i]}"; done
  echo "@@GUEST POWER CUT$told" >&2
  [ "${values[0]}" = 1 ] || fail "the power was cut before the model was armed"
  [ $((values[1] + values[2])) != 0 ] || fail "the power was cut before the program stored anything"
  [ "${values[7]}" = 0 ] || fail "the model could not attribute write-backs: each needs a load of one byte of its line directly before it"
  mv "$WORK/media.img" "$PMEM"
  mv "$WORK/output.log" "$WORK/previous.log"
}

case $STATUS in
  cut)
    power_is_cut
    exit 0
    ;;
  124) echo "guest: time limit of $LIMIT s reached; the machine may be too busy, try a larger -t" >&2 ;;
  125) tail -n 15 "$WORK/qemu.log" "$WORK/console.log" >&2 ;;
esac
if [ -n "$CUT" ] && [ "$STATUS" = 0 ]; then
  echo "guest: the program ended before its power was cut" >&2
  exit 123
fi
exit "$STATUS"
