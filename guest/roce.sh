#!/bin/sh
# roce.sh CYCLES, in a guest: tests the tree over RDMA in software, by libfabric's provider verbs;ofi_rxm.
#
# All processes use one device: two devices of one machine do not connect. The first test loads a tree on two memory
# servers and reads it by several processes. The second runs CYCLES cycles of `farbank check cluster`.
CYCLES=$1
IP=10.9.0.1
PROVIDER='verbs;ofi_rxm'
KEYS=400
# The guest is slow, so the leases are long.
LEASE_MS=3000
# Peers of an endpoint. ofi_rxm requests a completion queue for 256 of them, which is longer than the device allows.
export FI_UNIVERSE_SIZE=16

PIDS=

fail() {
  echo "FAILED $*"
  cat /tmp/server*
  for pid in $PIDS; do
    kill "$pid"
    wait "$pid"
    echo "memory server $pid ended with status $?"
  done
  exit 1
}

# ---- the device ----
modprobe -a dummy rdma_rxe ib_uverbs rdma_ucm || fail "cannot load the modules of soft-RoCE"
# The first module makes dummy0.
ip addr add $IP/24 dev dummy0 && ip link set dummy0 up || fail "no address"
rdma link add rxe0 type rxe netdev dummy0 || fail "no RDMA device"
rdma link
# The provider resolves the name localhost, and does not exist without it.
echo '127.0.0.1 localhost' >/etc/hosts
echo 'hosts: files' >/etc/nsswitch.conf

# ---- a tree of several processes ----
SERVERS=libfabric:$IP:7411,libfabric:$IP:7412
head -c 32 /dev/urandom >/tmp/key

# server NUMBER ARGUMENTS: starts a memory server and waits until it listens.
server() {
  number=$1
  shift
  ./farbank memory-server --number "$number" --key-file /tmp/key --fabric libfabric --provider "$PROVIDER" --size 64mb \
    --lease-ms $LEASE_MS --member-lease-ms $((LEASE_MS / 2)) "$@" >"/tmp/server$number" 2>&1 &
  PIDS="$PIDS $!"
  i=0
  until grep -qs 'listens on' "/tmp/server$number" || [ $i = 300 ]; do
    sleep 0.1
    i=$((i + 1))
  done
  cat "/tmp/server$number"
  grep -q "provider $PROVIDER" "/tmp/server$number" || fail "memory server $number does not use $PROVIDER"
}

tree() {
  command=$1
  shift
  ./farbank tree "$command" --servers $SERVERS --key-file /tmp/key --timeout-ms 20000 "$@"
}

# pairs NUMBER: the keys and values of one process, in the order of the keys.
pairs() { seq "$KEYS" | awk -v n="$1" '{ printf "k%d.%05d\tvalue %d of %d\n", n, $1, $1, n }'; }

server 0 --listen $IP:7411
server 1 --listen $IP:7412 --lease-server $IP:7411
tree create || fail "create"
for n in 0 1 2; do
  pairs $n >/tmp/pairs$n
  tree load /tmp/pairs$n &
  eval "LOAD$n=$!"
done
for n in 0 1 2; do
  eval "wait \$LOAD$n" || fail "load of process $n"
done
cat /tmp/pairs0 /tmp/pairs1 /tmp/pairs2 >/tmp/expected
tree scan >/tmp/found || fail "scan"
cmp /tmp/expected /tmp/found || fail "the scan differs from the loaded entries"
tree stat --keys || fail "stat"
[ "$(tree get k1.00377)" = 'value 377 of 1' ] || fail "get"
tree put k1.00377 changed --if-value 'value 377 of 1' || fail "compare-and-swap"
tree put k1.00377 again --if-value 'value 377 of 1' && fail "a compare-and-swap with a wrong value succeeded"
tree delete k1.00378 || fail "delete"
[ "$(tree scan --from k1.00377 --to k1.00380 | tr '\t\n' '=;')" = 'k1.00377=changed;k1.00379=value 379 of 1;' ] || fail "scan of a range"
for pid in $PIDS; do
  kill "$pid"
  wait "$pid" || fail "a memory server did not exit with success"
done
echo "TREE ok"

# ---- kills and pauses ----
./farbank check cluster --fabric libfabric --provider "$PROVIDER" --listen $IP --lease-ms $LEASE_MS --cycles "$CYCLES" \
  --processes 3 --clients 4 --calls 8 || fail "check cluster"
echo "ROCE ok"
