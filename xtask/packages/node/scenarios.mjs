// Node packages that use Redis, each against the server at the port of the first argument.
//
// A scenario is a function with the name of its package. It throws if the package does not work as its documentation says.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import Keyv from 'keyv';
import KeyvRedis from '@keyv/redis';
import { RedisStore as SessionStore } from 'connect-redis';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { RedisStore as LimitStore } from 'rate-limit-redis';
import { RateLimiterRedis, BurstyRateLimiter } from 'rate-limiter-flexible';
import { Redis } from 'ioredis';
import Redlock from 'redlock';
import session from 'express-session';
import { Server } from 'socket.io';
import { createAdapter } from '@socket.io/redis-adapter';
import { io } from 'socket.io-client';
import { createClient } from 'redis';

const url = `redis://127.0.0.1:${process.argv[2]}`;

async function nodeRedis(options = {}) {
    const client = createClient({ url, ...options });
    return client.connect();
}

// Serves an express application on a free port while `use` runs.
async function served(app, use) {
    const server = createServer(app).listen(0, '127.0.0.1');
    await once(server, 'listening');
    try {
        await use(`http://127.0.0.1:${server.address().port}`);
    } finally {
        server.closeAllConnections();
        server.close();
    }
}

const scenarios = {
    async redis() {
        for (const RESP of [2, 3]) {
            const client = await nodeRedis({ RESP });
            await client.flushDb();
            assert.equal(await client.set('key', 'value', { expiration: { type: 'EX', value: 100 } }), 'OK');
            assert.equal(await client.get('key'), 'value');
            assert.deepEqual(await client.mGet(['key', 'none']), ['value', null]);
            const [count, text] = await client.multi().incrBy('count', 5).get('key').exec();
            assert.deepEqual([count, text], [5, 'value']);
            await client.watch('count');
            await client.incr('count');
            await assert.rejects(client.multi().incr('count').exec());
            const keys = [];
            for await (const page of client.scanIterator({ MATCH: 'c*' })) keys.push(...[page].flat());
            assert.deepEqual(keys, ['count']);
            const subscriber = await client.duplicate().connect();
            const message = new Promise((resolve) => subscriber.subscribe('news', resolve));
            while (await client.publish('news', 'hello') === 0) await sleep(10);
            assert.equal(await message, 'hello');
            await subscriber.close();
            await client.close();
        }
    },

    async ioredis() {
        const client = new Redis(url);
        await client.flushdb();
        client.defineCommand('addAll', {
            numberOfKeys: 1,
            lua: 'for _, n in ipairs(ARGV) do redis.call("incrby", KEYS[1], n) end return redis.call("get", KEYS[1])',
        });
        assert.equal(await client.addAll('sum', 1, 2, 3), '6');
        assert.equal(await client.addAll('sum', 4), '10');
        const results = await client.pipeline().set('a', 1).incr('a').get('a').exec();
        assert.deepEqual(results, [[null, 'OK'], [null, 2], [null, '2']]);
        const all = [];
        for await (const keys of client.scanStream({ count: 10 })) all.push(...keys);
        assert.deepEqual(all.sort(), ['a', 'sum']);
        assert.deepEqual(await client.getBuffer('a'), Buffer.from('2'));
        await client.quit();
    },

    async redlock() {
        const client = new Redis(url);
        const redlock = new Redlock([client], { retryCount: 3, retryDelay: 20 });
        const lock = await redlock.lock('locks:row', 5_000);
        await assert.rejects(redlock.lock('locks:row', 5_000), { name: 'LockError' });
        const extended = await lock.extend(10_000);
        assert.ok(await client.pttl('locks:row') > 5_000);
        await extended.unlock();
        assert.equal(await client.exists('locks:row'), 0);
        const short = await redlock.lock('locks:row', 50);
        await sleep(100);
        await assert.rejects(short.unlock(), { name: 'LockError' });
        await client.quit();
    },

    async 'rate-limit-redis'() {
        const client = await nodeRedis();
        const store = new LimitStore({ sendCommand: (...words) => client.sendCommand(words) });
        const app = express();
        app.use(rateLimit({ windowMs: 1_000, limit: 3, store, standardHeaders: true, validate: false }));
        app.get('/', (_, response) => response.send('ok'));
        await served(app, async (base) => {
            const codes = [];
            for (let n = 0; n < 5; n += 1) codes.push((await fetch(base)).status);
            assert.deepEqual(codes, [200, 200, 200, 429, 429]);
            await sleep(1_100);
            assert.equal((await fetch(base)).status, 200);
        });
        await client.close();
    },

    async 'rate-limiter-flexible'() {
        const client = new Redis(url);
        const limiter = new RateLimiterRedis({ storeClient: client, points: 3, duration: 1, blockDuration: 2 });
        const results = await Promise.allSettled([1, 2, 3, 4, 5].map(() => limiter.consume('user')));
        assert.deepEqual(results.map((result) => result.status),
            ['fulfilled', 'fulfilled', 'fulfilled', 'rejected', 'rejected']);
        const longest = Math.max(...results.slice(3).map((result) => result.reason.msBeforeNext));
        assert.ok(longest > 1_000, `the block lasts ${longest} ms`);
        await limiter.delete('user');
        await limiter.consume('user', 2);
        await limiter.reward('user', 1);
        assert.equal((await limiter.get('user')).consumedPoints, 1);
        const bursts = new BurstyRateLimiter(
            new RateLimiterRedis({ storeClient: client, keyPrefix: 'slow', points: 1, duration: 1 }),
            new RateLimiterRedis({ storeClient: client, keyPrefix: 'burst', points: 2, duration: 5 }));
        for (let n = 0; n < 3; n += 1) await bursts.consume('user');
        await assert.rejects(bursts.consume('user'));
        await client.quit();
    },

    async 'connect-redis'() {
        const client = await nodeRedis();
        const app = express();
        app.use(session({
            store: new SessionStore({ client, prefix: 'sessions:', ttl: 60 }),
            secret: 'a secret', resave: false, saveUninitialized: false,
        }));
        app.get('/visit', (request, response) => {
            request.session.visits = (request.session.visits ?? 0) + 1;
            response.send(String(request.session.visits));
        });
        app.get('/leave', (request, response) => request.session.destroy(() => response.send('left')));
        await served(app, async (base) => {
            const first = await fetch(`${base}/visit`);
            const headers = { cookie: first.headers.get('set-cookie').split(';')[0] };
            const visit = async () => (await fetch(`${base}/visit`, { headers })).text();
            assert.equal(await visit(), '2');
            const [key] = await client.keys('sessions:*');
            const ttl = await client.ttl(key);
            assert.ok(ttl > 50 && ttl <= 60, `the session has a lifetime of ${ttl} s`);
            await fetch(`${base}/leave`, { headers });
            assert.equal(await client.exists(key), 0);
            assert.equal(await visit(), '1');
        });
        await client.close();
    },

    async '@keyv/redis'() {
        const store = new KeyvRedis(url, { namespace: 'cache' });
        const cache = new Keyv({ store, namespace: 'cache' });
        await cache.set('object', { list: [1, 2, 3] });
        assert.deepEqual(await cache.get('object'), { list: [1, 2, 3] });
        await cache.set('short', 'lived', 50);
        await sleep(100);
        assert.equal(await cache.get('short'), undefined);
        await cache.setMany([{ key: 'one', value: 1 }, { key: 'two', value: 2 }]);
        assert.deepEqual(await cache.getMany(['one', 'two', 'none']), [1, 2, undefined]);
        const pairs = [];
        for await (const [key, value] of store.iterator('cache')) pairs.push([key, value]);
        assert.equal(pairs.length, 3);
        assert.equal(await cache.delete('one'), true);
        await cache.clear();
        assert.equal(await cache.get('two'), undefined);
        await cache.disconnect();
    },

    async '@socket.io/redis-adapter'() {
        const clients = [];
        async function instance() {
            const publisher = await nodeRedis();
            const subscriber = await publisher.duplicate().connect();
            clients.push(publisher, subscriber);
            const http = createServer().listen(0, '127.0.0.1');
            await once(http, 'listening');
            const server = new Server(http, { adapter: createAdapter(publisher, subscriber) });
            server.on('connection', (socket) => socket.join('room'));
            return { server, base: `http://127.0.0.1:${http.address().port}` };
        }
        const [left, right] = [await instance(), await instance()];
        const socket = io(right.base, { transports: ['websocket'] });
        await once(socket, 'connect');
        while ((await left.server.in('room').fetchSockets()).length === 0) await sleep(20);
        const received = once(socket, 'news');
        left.server.to('room').emit('news', { from: 'the other instance' });
        assert.deepEqual(await received, [{ from: 'the other instance' }]);
        left.server.on('question', (answer) => answer('from left'));
        const answers = await new Promise((resolve, reject) => right.server.serverSideEmit(
            'question', (error, found) => (error ? reject(error) : resolve(found))));
        assert.deepEqual(answers, ['from left']);
        socket.close();
        await left.server.close();
        await right.server.close();
        for (const client of clients) await client.close();
    },
};

const chosen = process.argv.slice(3);
let failures = 0;
for (const [name, scenario] of Object.entries(scenarios)) {
    if (chosen.length > 0 && !chosen.includes(name)) continue;
    const limit = AbortSignal.timeout(30_000);
    const late = once(limit, 'abort').then(() => { throw new Error('no result within 30 s'); });
    try {
        await Promise.race([scenario(), late]);
        console.log(`node: ${name}: ok`);
    } catch (error) {
        failures += 1;
        console.log(`node: ${name}: FAILED: ${error.stack}`);
    }
}
process.exit(failures === 0 ? 0 : 1);
