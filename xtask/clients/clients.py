"""redis-py against a server on the port given: what programs do with it, unmodified."""

import sys
import threading
import time

import redis


def connect():
    return redis.Redis(host="127.0.0.1", port=int(sys.argv[1]), decode_responses=True)


def strings(r):
    assert r.set("name", "farbank")
    assert r.get("name") == "farbank"
    assert r.get("nothing") is None
    assert r.set("name", "other", nx=True) is None
    assert r.set("name", "newer", xx=True, get=True) == "farbank"
    raw = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]))
    binary = bytes(range(256)) * 300
    assert raw.set(b"\x00\xff", binary) and raw.get(b"\x00\xff") == binary
    large = b"x" * (3 << 20)
    assert raw.set("large", large) and raw.get("large") == large
    assert r.delete("large", "\x00") == 1


def expiry(r):
    r.set("brief", "1", px=30)
    r.set("long", "1", ex=100)
    assert 0 < r.ttl("long") <= 100
    assert r.expire("long", 200) and r.ttl("long") > 100
    time.sleep(0.05)
    assert r.get("brief") is None
    assert r.ttl("brief") == -2


def pipeline(r):
    pipe = r.pipeline(transaction=False)
    for i in range(2000):
        pipe.set(f"pipe:{i}", i)
        pipe.incr("count")
    results = pipe.execute()
    assert len(results) == 4000 and results[-1] == 2000
    assert r.mget(f"pipe:{i}" for i in range(0, 2000, 500)) == ["0", "500", "1000", "1500"]


def scan(r):
    found = {key for key in r.scan_iter(match="pipe:*", count=100)}
    assert found == {f"pipe:{i}" for i in range(2000)}


def transactions(r):
    with r.pipeline() as pipe:
        pipe.set("one", 1).incr("one").get("one")
        assert pipe.execute() == [True, 2, "2"]
    with r.pipeline() as pipe:
        pipe.watch("one")
        pipe.multi()
        pipe.set("one", "mine")
        connect().set("one", "theirs")
        try:
            pipe.execute()
            raise AssertionError("WATCH saw nothing")
        except redis.WatchError:
            pass
    assert r.get("one") == "theirs"


def counters(r):
    """Increments of many clients, optimistic ones with them: none is lost."""

    def work():
        own = connect()
        for _ in range(100):
            own.incr("shared")
        for _ in range(20):
            own.transaction(lambda p: increment(p), "watched")

    def increment(pipe):
        value = int(pipe.get("watched") or 0)
        pipe.multi()
        pipe.set("watched", value + 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert r.get("shared") == "800", r.get("shared")
    assert r.get("watched") == "160", r.get("watched")


def lock(r):
    """A lock expires, is taken again, and is released, which is a script. No key is left that expires later."""
    first = r.lock("lock", timeout=1)
    assert first.acquire(blocking=False)
    assert not r.lock("lock", timeout=1).acquire(blocking=False)
    second = r.lock("lock", timeout=60)
    assert second.acquire(blocking_timeout=20)
    second.release()
    assert not r.exists("lock")


def server(r):
    assert r.ping()
    info = r.info()
    assert info["redis_version"] == "7.0.15"
    assert r.config_get("appendonly") == {"appendonly": "yes"}
    assert r.client_getname() is None or r.client_getname() == ""
    assert r.dbsize() > 0


r = connect()
r.flushall()
for check in [strings, expiry, pipeline, scan, transactions, counters, lock, server]:
    check(r)
    print(f"redis-py {redis.__version__}: {check.__name__} ok")
