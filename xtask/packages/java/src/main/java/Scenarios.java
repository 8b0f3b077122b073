import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;

/** Java packages that use Redis, each against the server at the port of the first argument. */
public final class Scenarios {
    private interface Scenario {
        void run(int port) throws Exception;
    }

    private static void check(String what, Object found, Object expected) {
        if (!String.valueOf(found).equals(String.valueOf(expected))) {
            throw new AssertionError(what + " is " + found + ", expected " + expected);
        }
    }

    /** Commands, pipelined futures, transactions, scripts and channels, over RESP3. */
    private static void lettuce(int port) throws Exception {
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + port);
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            RedisCommands<String, String> sync = connection.sync();
            sync.flushdb();
            check("SET", sync.set("key", "value", SetArgs.Builder.ex(100).nx()), "OK");
            check("SET NX", sync.set("key", "other", SetArgs.Builder.nx()), null);
            check("MGET", sync.mget("key", "none"), List.of(KeyValue.just("key", "value"), KeyValue.empty("none")));

            RedisAsyncCommands<String, String> async = connection.async();
            List<Future<Long>> replies = new ArrayList<>();
            for (int n = 0; n < 1000; n++) {
                replies.add(async.incr("count"));
            }
            for (int n = 0; n < 1000; n++) {
                check("a pipelined INCR", replies.get(n).get(10, TimeUnit.SECONDS), n + 1L);
            }

            sync.multi();
            sync.incrby("count", 10);
            sync.get("key");
            TransactionResult results = sync.exec();
            check("EXEC", results.get(0) + " " + results.get(1), "1010 value");
            String script = "return {KEYS[1], tonumber(ARGV[1]) * 2}";
            List<Object> answer = sync.eval(script, ScriptOutputType.MULTI, new String[] {"k"}, "21");
            check("EVAL", answer, "[k, 42]");
            String digest = sync.scriptLoad("return redis.call('get', KEYS[1])");
            check("EVALSHA", sync.evalsha(digest, ScriptOutputType.VALUE, "key"), "value");

            ScanIterator<String> scan = ScanIterator.scan(sync);
            List<String> keys = new ArrayList<>();
            scan.forEachRemaining(keys::add);
            check("SCAN", keys.stream().sorted().toList(), "[count, key]");
        }
        BlockingQueue<String> messages = new LinkedBlockingQueue<>();
        try (StatefulRedisPubSubConnection<String, String> subscriber = client.connectPubSub();
                StatefulRedisConnection<String, String> publisher = client.connect()) {
            subscriber.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void message(String channel, String message) {
                    messages.add(channel + ": " + message);
                }
            });
            subscriber.sync().subscribe("news");
            publisher.sync().publish("news", "hello");
            check("the message", messages.poll(10, TimeUnit.SECONDS), "news: hello");
        }
        client.shutdown();
    }

    /** A pool of connections, WATCH, and a pipeline, over RESP2. */
    private static void jedis(int port) {
        try (JedisPool pool = new JedisPool("127.0.0.1", port); Jedis jedis = pool.getResource()) {
            jedis.flushDB();
            jedis.setex("key", 100, "value");
            check("GET", jedis.get("key"), "value");
            jedis.watch("key");
            try (Jedis other = pool.getResource()) {
                other.append("key", "!");
            }
            Transaction lost = jedis.multi();
            lost.set("key", "lost");
            check("EXEC after a change of a watched key", lost.exec(), null);
            Transaction kept = jedis.multi();
            Response<Long> length = kept.append("key", "?");
            kept.exec();
            check("APPEND in a transaction", length.get(), 7);
            var pipeline = jedis.pipelined();
            Response<Long> count = null;
            for (int n = 0; n < 100; n++) {
                count = pipeline.incr("count");
            }
            pipeline.sync();
            check("INCR in a pipeline", count.get(), 100);
            check("EVAL", jedis.eval("return redis.call('get', KEYS[1])", 1, "key"), "value!?");
        }
    }

    private Scenarios() {}

    public static void main(String[] arguments) {
        int port = Integer.parseInt(arguments[0]);
        boolean failed = false;
        String[] names = {"lettuce", "jedis"};
        Scenario[] scenarios = {Scenarios::lettuce, Scenarios::jedis};
        for (int n = 0; n < names.length; n++) {
            try {
                scenarios[n].run(port);
                System.out.println("java: " + names[n] + ": ok");
            } catch (Throwable error) {
                failed = true;
                System.out.println("java: " + names[n] + ": FAILED: " + error);
                error.printStackTrace(System.out);
            }
        }
        System.exit(failed ? 1 : 0);
    }
}
