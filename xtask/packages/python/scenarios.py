"""Python packages that use Redis, each against the server at the port of the first argument.

A scenario is a function. It raises an exception if the package does not work as its documentation says.
"""

import sys
import threading
import time
import traceback

PORT = int(sys.argv[1])
URL = f"redis://127.0.0.1:{PORT}"


def redis_lock():
    """redis-py: Lock, also between threads, and its errors."""
    import redis
    from redis.exceptions import LockError, LockNotOwnedError

    client = redis.Redis.from_url(URL)
    client.flushdb()
    with client.lock("locks:a", timeout=10) as lock:
        assert lock.locked() and lock.owned()
        assert not client.lock("locks:a", timeout=10).acquire(blocking=False)
        lock.extend(10)
        assert client.pttl("locks:a") > 15_000
        lock.reacquire()
        assert client.pttl("locks:a") <= 10_000
    assert not client.exists("locks:a")
    lost = client.lock("locks:b", timeout=0.05)
    assert lost.acquire()
    time.sleep(0.1)
    try:
        lost.release()
        raise AssertionError("a lock that has expired was released")
    except LockNotOwnedError:
        pass
    try:
        client.lock("locks:c").release()
        raise AssertionError("a lock that is not held was released")
    except LockError:
        pass

    counted = 0

    def count():
        nonlocal counted
        for _ in range(20):
            with client.lock("locks:count", timeout=10, sleep=0.001):
                seen = counted
                time.sleep(0.0005)
                counted = seen + 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == 80, counted


def redis_transactions():
    """redis-py: pipelines, transactions, scripts and RESP3."""
    import redis

    for protocol in (2, 3):
        client = redis.Redis(port=PORT, protocol=protocol, decode_responses=True)
        client.flushdb()
        pipeline = client.pipeline(transaction=True)
        assert pipeline.set("a", 1).incr("a").get("a").execute() == [True, 2, "2"]

        def move(pipe):
            amount = int(pipe.get("a"))
            pipe.multi()
            pipe.set("b", amount * 10)

        assert client.transaction(move, "a") == [True]
        assert client.get("b") == "20"
        script = client.register_script("return {KEYS[1], tonumber(ARGV[1]) + 1}")
        assert script(keys=["k"], args=[41]) == ["k", 42]
        assert script(keys=["k"], args=[1]) == ["k", 2]
        listener = client.pubsub(ignore_subscribe_messages=True)
        listener.psubscribe("news.*")
        deadline = time.monotonic() + 5
        message = None
        while message is None and time.monotonic() < deadline:
            client.publish("news.today", "hello")
            message = listener.get_message(timeout=0.1)
        assert message and message["data"] == "hello", message
        listener.close()


def redis_cache():
    """redis-py: its client-side cache, which invalidations keep current."""
    import redis
    from redis.cache import CacheConfig
    from redis.connection import CacheProxyConnection

    # redis-py asks for this version by its number; the protocol of the cache is that of Redis 6.
    CacheProxyConnection.MIN_ALLOWED_VERSION = "7.0.0"
    cached = redis.Redis(port=PORT, protocol=3, decode_responses=True, cache_config=CacheConfig())
    plain = redis.Redis(port=PORT, decode_responses=True)
    plain.flushdb()
    plain.mset({"cache:a": 1, "cache:b": 2})
    assert cached.get("cache:a") == "1" and cached.mget("cache:a", "cache:b") == ["1", "2"]
    assert cached.get_cache().size == 2

    def requests():
        # The calls of a command on the server tell whether the cache has answered.
        return plain.info("commandstats")["cmdstat_get"]["calls"]

    def becomes(key, value):
        # An invalidation is sent with the reply to the write, on another connection.
        until = time.monotonic() + 5
        while cached.get(key) != value:
            assert time.monotonic() < until, (key, cached.get(key), value)

    before = requests()
    assert all(cached.get("cache:a") == "1" for _ in range(10))
    assert requests() == before
    for value in range(100):
        plain.set("cache:a", value)
        becomes("cache:a", str(value))
    plain.rename("cache:b", "cache:a")
    becomes("cache:a", "2")
    plain.psetex("cache:a", 50, "brief")
    becomes("cache:a", "brief")
    becomes("cache:a", None)
    plain.set("cache:a", 5)
    becomes("cache:a", "5")
    plain.flushall()
    becomes("cache:a", None)

    def write():
        for value in range(1, 1000):
            plain.set("cache:n", value)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        cached.get("cache:n")
    becomes("cache:n", "999")
    before = requests()
    assert all(cached.get("cache:n") == "999" for _ in range(10))
    assert requests() == before
    cached.close()


def redlock():
    """redlock-py: the Redlock algorithm on one server."""
    from redlock import Redlock

    manager = Redlock([URL], retry_count=1)
    lock = manager.lock("redlock", 5_000)
    assert lock and lock.validity > 4_000
    assert manager.lock("redlock", 5_000) is False
    manager.unlock(lock)
    again = manager.lock("redlock", 5_000)
    assert again
    manager.unlock(again)


def pottery_locks():
    """pottery: Redlock, NextID and HyperLogLog."""
    import redis
    from pottery import HyperLogLog, NextID, Redlock

    client = redis.Redis.from_url(URL)
    client.flushdb()
    lock = Redlock(key="printer", masters={client}, auto_release_time=5)
    with lock:
        assert lock.locked() > 0
        other = Redlock(key="printer", masters={client}, auto_release_time=5)
        assert not other.acquire(blocking=False)
    numbers = NextID(key="tweets", masters={client})
    assert [next(numbers) for _ in range(3)] == [1, 2, 3]
    visitors = HyperLogLog(redis=client, key="visitors")
    visitors.update(str(number) for number in range(1_000))
    assert 950 < len(visitors) < 1_050, len(visitors)


def django_cache():
    """django-redis: the cache of Django, with locks, versions and patterns."""
    import django
    from django.conf import settings

    settings.configure(CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{URL}/1",
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
        }
    })
    django.setup()
    from django.core.cache import cache

    cache.clear()
    cache.set("object", {"list": [1, 2]}, timeout=60)
    assert cache.get("object") == {"list": [1, 2]}
    assert 50 < cache.ttl("object") <= 60
    assert cache.add("object", 1) is False
    cache.set_many({"one": 1, "two": 2})
    assert cache.get_many(["one", "two", "none"]) == {"one": 1, "two": 2}
    assert cache.incr("one", 41) == 42
    assert sorted(cache.keys("*")) == ["object", "one", "two"]
    assert cache.incr_version("two") == 2
    assert cache.get("two", version=2) == 2
    with cache.lock("lock", timeout=5):
        assert not cache.lock("lock", timeout=5).acquire(blocking=False)
    assert cache.delete_pattern("o*") == 2
    cache.persist("two", version=2)
    cache.clear()
    assert cache.get("two", version=2) is None


def limits_windows():
    """limits (of Flask-Limiter and others): fixed and sliding windows."""
    from limits import parse, storage, strategies

    store = storage.storage_from_string(URL)
    assert store.check()
    for strategy in (strategies.FixedWindowRateLimiter, strategies.SlidingWindowCounterRateLimiter):
        store.reset()
        limiter = strategy(store)
        three = parse("3/second")
        results = [limiter.hit(three, "user", strategy.__name__) for _ in range(5)]
        assert results == [True, True, True, False, False], (strategy.__name__, results)
        time.sleep(2.1)
        assert limiter.hit(three, "user", strategy.__name__)


def flask_caching():
    """Flask-Caching: a view and a function."""
    from flask import Flask
    from flask_caching import Cache

    app = Flask(__name__)
    cache = Cache(app, config={"CACHE_TYPE": "RedisCache", "CACHE_REDIS_URL": URL, "CACHE_DEFAULT_TIMEOUT": 60})
    calls = 0

    @app.route("/")
    @cache.cached()
    def view():
        nonlocal calls
        calls += 1
        return f"call {calls}"

    @cache.memoize(30)
    def square(number):
        nonlocal calls
        calls += 1
        return number * number

    with app.app_context():
        cache.clear()
        web = app.test_client()
        assert web.get("/").text == web.get("/").text == "call 1"
        assert [square(3), square(3), square(4)] == [9, 9, 16] and calls == 3
        cache.delete_memoized(square)
        assert square(3) == 9 and calls == 4
        cache.clear()


SCENARIOS = [
    redis_lock, redis_transactions, redis_cache, redlock, pottery_locks, django_cache, limits_windows, flask_caching,
]

failures = 0
for scenario in SCENARIOS:
    if len(sys.argv) > 2 and scenario.__name__ not in sys.argv[2:]:
        continue
    try:
        scenario()
        print(f"python: {scenario.__name__}: ok", flush=True)
    except Exception:
        failures += 1
        print(f"python: {scenario.__name__}: FAILED: {traceback.format_exc()}", flush=True)
sys.exit(1 if failures else 0)
