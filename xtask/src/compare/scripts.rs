//! Scripts, libraries of functions and payloads for random requests.

/// Scripts that execute the request in their arguments.
pub(super) const CALLING: &[&str] = &[
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "redis.setresp(3) return redis.call(unpack(ARGV))",
    "redis.setresp(3) return redis.pcall(unpack(ARGV))",
    "local r = redis.pcall(unpack(ARGV)) return {type(r), r}",
    "local ok, r = pcall(redis.call, unpack(ARGV)) return {tostring(ok), r}",
    "redis.call('append', 'k', 'x') return redis.call(unpack(ARGV))",
];

/// Scripts whose results depend on the keys and the arguments only.
pub(super) const SCRIPTS: &[&str] = &[
    "return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}",
    "return redis.call('get', KEYS[1])",
    "return redis.call('set', KEYS[1], ARGV[1])",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    "local c = redis.call('incr', KEYS[1]) if c == 1 then redis.call('expire', KEYS[1], 10000) end return c",
    "local v = redis.call('mget', 'a', 'b', 'c') redis.call('mset', 'a', v[2] or '', 'b', v[3] or '') return v",
    "redis.call('set', KEYS[1], ARGV[1]) redis.call('incr', KEYS[1]) return 1",
    "redis.call('set', KEYS[1], '1') error('failed')",
    "redis.call('select', 1) redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])",
    "return cjson.encode({KEYS, ARGV, n = redis.call('exists', KEYS[1])})",
    "return cmsgpack.pack(ARGV, redis.call('strlen', KEYS[1]))",
    "return {string.find(ARGV[1], '(%w+)'), (ARGV[1]:gsub('%W', '.')), ARGV[1]:upper()}",
    "return tostring(tonumber(ARGV[1]))",
    "return redis.sha1hex(ARGV[1] or '')",
    "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 'x')",
    "#!lua\nreturn redis.call('get', KEYS[1])",
    "#!lua flags=nope\nreturn 1",
    "return {1, {2, false, {3.9, 'x'}}, {err = 'E x'}, {ok = 'y'}}",
    "redis.setresp(3) return {true, false, {double = 0.5}, {map = {a = 1}}, {set = {b = true}}}",
    "return redis.call('nope')",
    "return redis.call('multi')",
    "return redis.error_reply(ARGV[1])",
    "return redis.status_reply(ARGV[1])",
    "return nope",
    "nope = 1",
    "return",
    "",
    "syntax error",
];

/// Code of libraries, correct and wrong.
pub(super) const LIBRARIES: &[&str] = &[
    "#!lua name=one\nredis.register_function{function_name='get', callback=function(k) return redis.call('get', k[1]) end, flags={'no-writes'}}",
    "#!lua name=one\nredis.register_function('set', function(k, a) return redis.call('set', k[1], a[1] or '') end)",
    "#!lua name=two\nredis.register_function('count', function(k, a) redis.call('set', 'a', 1) return redis.call('incr', 'a') end)",
    "#!lua name=two\nredis.register_function('fail', function(k, a) redis.call('set', k[1], 'x') error('failed') end)",
    "#!lua name=two\nredis.register_function('reply', function(k, a) return {k, a, redis.status_reply('x'), 1.5, false} end)",
    "#!lua name=two\nredis.register_function('get', function(k, a) return KEYS end)",
    "#!lua name=one\nredis.register_function('get', 1)",
    "#!lua name=one\nredis.call('set', 'a', 1)",
    "#!lua name=one\n",
    "#!lua name=one\nsyntax error",
    "#!lua\nreturn 1",
    "#!js name=one\nreturn 1",
    "return 1",
    "",
];

/// SHA1s of scripts: some of [`SCRIPTS`], and one that is unknown.
pub(super) const SHAS: &[&str] = &[
    "4e6d8fc8bb01276962cce5371fa795a7763657ae",
    "55B22C0D0CEDF3866879CE7C854970626DCEF0C3",
    "c7b1c8c2b1e4cd5ff7d4bd7a3b1a5a2a6d8a9b0c",
    "abc",
    "",
];

/// Payloads of DUMP: correct ones, and ones that Redis refuses.
pub(super) const PAYLOADS: &[&[u8]] = &[
    b"\0\0\x0a\0]\x9b\x5c@\x0f\x7f\xa2\xda",
    b"\0\xc0\xff\x0a\0\x0c\x93~$\x85\x08\x9d\xc5",
    b"\0\x05hello\x0a\0cr\xdfve4 \x0a",
    b"\0\xc3\x0a\x18\x03abca\xe0\x0a\x02\0c\x0a\0\x7f\xc3\xe2 \x12\x81\x16n",
    b"\0\x05hello\x0a\0cr\xdfve4 \x0b",
    b"\0\x05hello",
    b"",
];
