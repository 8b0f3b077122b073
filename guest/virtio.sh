#!/bin/sh
# virtio.sh FOLDER SUBSETS, in a guest on virtio-pmem: tests machines without persistent memory.
#
# The first test runs on FOLDER, a DAX mount that refuses synchronous mappings: the store must fall back to the file
# medium and report it, and must refuse --medium dax. The second test runs on an ordinary disk that dm-log-writes
# records, once with and once without a sync before each acknowledgement. REPLAY lines show the result of each replay.
FOLDER=$1 SUBSETS=$2

fail() {
  echo "FAILED $*"
  exit 1
}

# ---- no synchronous mappings ----
refused() {
  if ./farbank serve --port 0 --memcached-port off --size 8mb --pool "$FOLDER/refused" --medium dax >/tmp/refused 2>&1; then
    fail "--medium dax was accepted although mappings are not synchronous"
  fi
  cat /tmp/refused
  grep -q 'an ordinary file, which no mapping makes durable' /tmp/refused || fail "the refusal does not contain the reason"
  [ ! -e "$FOLDER/refused" ] || fail "the refusal left a file behind"
}

falls_back() {
  ./farbank serve --port 0 --memcached-port off --size 8mb --pool "$FOLDER/pool" >/tmp/banner 2>&1 &
  i=0
  until grep -q survives /tmp/banner || [ $i = 100 ]; do
    sleep 0.1
    i=$((i + 1))
  done
  cat /tmp/banner
  kill $!
  wait $! || fail "the server did not exit with success"
  grep -q 'medium file' /tmp/banner || fail "the banner does not contain 'medium file'"
}

refused
falls_back
echo "FALLBACK ok"

# ---- a disk that records ----
MB=64
modprobe -a dm_log_writes dm_snapshot || fail "cannot load the modules dm_log_writes and dm_snapshot"
SECTORS=$((MB * 2048))
# Disables periodic write-back, so that only explicit syncs write to the disk.
echo 0 >/proc/sys/vm/dirty_writeback_centisecs
echo 90000 >/proc/sys/vm/dirty_expire_centisecs

# recorded POLICY: prints how the replay ended.
recorded() {
  modprobe brd rd_nr=4 rd_size=$((MB * 4 * 1024)) || fail "cannot create RAM disks"
  dmsetup create logged --table "0 $SECTORS log-writes /dev/ram0 /dev/ram1" || fail "cannot create a log-writes device"
  /sbin/mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=1,nodiscard /dev/mapper/logged </dev/null || fail "mke2fs"
  mkdir -p /mnt/logged /mnt/replayed
  mount -t ext4 -o noatime,commit=900 /dev/mapper/logged /mnt/logged || fail "mount"
  ./power_cut record /mnt/logged/engine logged "$1" || fail "record $1"
  umount /mnt/logged && dmsetup remove logged || fail "cannot remove the log-writes device"
  # An empty disk, as large as the recorded one.
  dmsetup create onto --table "0 $SECTORS linear /dev/ram2 0" || fail "cannot create the disk for the replay"
  ./power_cut replay /dev/ram1 /dev/mapper/onto /dev/ram3 /mnt/replayed "$2" # may fail; its REPLAY line says how
  dmsetup remove onto || fail "cannot remove the disk of the replay"
  rmmod brd || fail "cannot remove the RAM disks"
}

echo "RECORD always"
recorded always "$SUBSETS"
echo "RECORD never"
recorded never 0
