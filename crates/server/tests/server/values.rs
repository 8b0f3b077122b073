//! Replies of commands that compute with whole values, byte for byte. The tables contain the replies of redis-server
//! 7.0.15 to the same requests; `/` stands for the end of a line.

use crate::harness::agree;

#[test]
fn floats_ranges_and_subsequences_reply_as_in_redis() {
    agree(RANGES);
}

#[rustfmt::skip]
const RANGES: &[(&str, &str)] = &[
    ("INCRBYFLOAT k 1.5;INCRBYFLOAT k 1.5;GET k;INCRBYFLOAT k -3;GET k", "$3/1.5/$1/3/$1/3/$1/0/$1/0/"),
    ("INCRBYFLOAT k 0.1;INCRBYFLOAT k 0.2;INCRBYFLOAT k 1e-17;INCRBYFLOAT k 5e-18", "$3/0.1/$3/0.3/$19/0.30000000000000001/$19/0.30000000000000001/"),
    ("SET k 1e18;INCRBYFLOAT k 0.3;INCRBYFLOAT k 1e21", "+OK/$24/1000000000000000000.3125/$22/1001000000000000000000/"),
    ("SET k 1 EX 100;INCRBYFLOAT k 1;TTL k", "+OK/$1/2/:100/"),
    ("INCRBYFLOAT k inf;SET k inf;INCRBYFLOAT k 1;INCRBYFLOAT k nan;EXISTS n", "-ERR increment would produce NaN or Infinity/+OK/-ERR increment would produce NaN or Infinity/-ERR value is not a valid float/:0/"),
    ("SET k abc;INCRBYFLOAT k 1;INCRBYFLOAT n x;EXISTS n", "+OK/-ERR value is not a valid float/-ERR value is not a valid float/:0/"),
    ("INCRBYFLOAT k 0x10;INCRBYFLOAT k 0x1p-3;INCRBYFLOAT k 1e5000;INCRBYFLOAT k -1e-5000", "$2/16/$6/16.125/-ERR value is not a valid float/-ERR value is not a valid float/"),
    ("INCRBYFLOAT k", "-ERR wrong number of arguments for 'incrbyfloat' command/"),
    ("SET k hello;GETRANGE k 0 -1;GETRANGE k 1 3;GETRANGE k -3 -2;GETRANGE k -100 -50;GETRANGE k 3 1;GETRANGE k 5 9;SUBSTR k 0 1", "+OK/$5/hello/$3/ell/$2/ll/$1/h/$0//$0//$2/he/"),
    ("GETRANGE n 0 -1;GETRANGE n x 1;GETRANGE n 1 x;GETRANGE n 0 9223372036854775808", "$0//-ERR value is not an integer or out of range/-ERR value is not an integer or out of range/-ERR value is not an integer or out of range/"),
    ("SET k hello;GETRANGE k -9223372036854775808 9223372036854775807;GETRANGE k 9223372036854775807 -9223372036854775808", "+OK/$5/hello/$0//"),
    ("GETRANGE k 0;SUBSTR k 0", "-ERR wrong number of arguments for 'getrange' command/-ERR wrong number of arguments for 'substr' command/"),
    ("SET k Hello-World;SETRANGE k 6 Redis;GET k;SETRANGE k 11 !;GET k", "+OK/:11/$11/Hello-Redis/:12/$12/Hello-Redis!/"),
    ("SETRANGE k 3 abc;GET k;STRLEN k", ":6/$6/\0\0\0abc/:6/"),
    ("SETRANGE k 5 '';EXISTS k;SET k ab;SETRANGE k 5 '';SETRANGE k 0 '';GET k", ":0/:0/+OK/:2/:2/$2/ab/"),
    ("SETRANGE k -1 x;SETRANGE k x x;SETRANGE k 536870912 x;SETRANGE k 536870911 xx;SETRANGE k 9223372036854775807 x;SETRANGE k 9223372036854775808 x;EXISTS k", "-ERR offset is out of range/-ERR value is not an integer or out of range/-ERR string exceeds maximum allowed size (proto-max-bulk-len)/-ERR string exceeds maximum allowed size (proto-max-bulk-len)/-ERR string exceeds maximum allowed size (proto-max-bulk-len)/-ERR value is not an integer or out of range/:0/"),
    ("SET k ab EX 100;SETRANGE k 0 x;TTL k", "+OK/:2/:100/"),
    ("SET k v;WATCH k;SETRANGE k 0 '';MULTI;PING;EXEC", "+OK/+OK/:1/+OK/+QUEUED/*1/+PONG/"),
    ("SET k v;WATCH k;SETRANGE k 0 v;MULTI;PING;EXEC", "+OK/+OK/:1/+OK/+QUEUED/*-1/"),
    ("MSET a ohmytext b mynewtext;LCS a b;LCS a b LEN;LCS a b IDX;LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN", "+OK/$6/mytext/:6/*4/$7/matches/*2/*2/*2/:4/:7/*2/:5/:8/*2/*2/:2/:3/*2/:0/:1/$3/len/:6/*4/$7/matches/*1/*3/*2/:4/:7/*2/:5/:8/:4/$3/len/:6/"),
    ("MSET a ohmytext b mynewtext;LCS a b IDX MINMATCHLEN -5;LCS a b LEN IDX;LCS a b MINMATCHLEN;LCS a b MINMATCHLEN x;LCS a b nope", "+OK/*4/$7/matches/*2/*2/*2/:4/:7/*2/:5/:8/*2/*2/:2/:3/*2/:0/:1/$3/len/:6/-ERR If you want both the length and indexes, please just use IDX./-ERR syntax error/-ERR value is not an integer or out of range/-ERR syntax error/"),
    ("LCS a b;LCS a b LEN;LCS a b IDX;LCS a", "$0//:0/*4/$7/matches/*0/$3/len/:0/-ERR wrong number of arguments for 'lcs' command/"),
    ("SET a abc;LCS a a;LCS a b;LCS b a IDX;LCS a a IDX WITHMATCHLEN LEN", "+OK/$3/abc/$0//*4/$7/matches/*0/$3/len/:0/-ERR If you want both the length and indexes, please just use IDX./"),
    ("MULTI;SETRANGE k 2 x;INCRBYFLOAT f 2.5;GETRANGE f 0 0;LCS k f LEN;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*4/:3/$3/2.5/$1/2/:0/"),
    ("COMMAND GETKEYSANDFLAGS lcs a b", "*2/*2/$1/a/*2/+RO/+access/*2/$1/b/*2/+RO/+access/"),
    ("COMMAND GETKEYSANDFLAGS set a b get", "*1/*2/$1/a/*3/+RW/+access/+update/"),
    ("COMMAND INFO lcs setrange", "*2/*10/$3/lcs/:-3/*1/+readonly/:1/:2/:1/*3/+@read/+@string/+@slow/*0/*1/*6/$5/flags/*2/+RO/+access/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:1/$7/keystep/:1/$5/limit/:0/*0/*10/$8/setrange/:4/*2/+write/+denyoom/:1/:1/:1/*3/+@write/+@string/+@slow/*0/*1/*6/$5/flags/*2/+RW/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/"),
];

#[test]
fn bits_reply_as_in_redis() {
    agree(BITS);
}

#[rustfmt::skip]
const BITS: &[(&str, &str)] = &[
    ("SETBIT k 7 1;GETBIT k 7;GETBIT k 6;GETBIT k 100;SETBIT k 7 0;GET k;STRLEN k;GETBIT n 0", ":0/:1/:0/:0/:1/$1/\0/:1/:0/"),
    ("SETBIT k x 1;SETBIT k -1 1;SETBIT k 4294967296 1;SETBIT k 1 2;SETBIT k 1 x;SETBIT k x x;SETBIT k #1 1;EXISTS k;GETBIT k 4294967296;GETBIT n x", "-ERR bit offset is not an integer or out of range/-ERR bit offset is not an integer or out of range/-ERR bit offset is not an integer or out of range/-ERR bit is not an integer or out of range/-ERR bit is not an integer or out of range/-ERR bit offset is not an integer or out of range/-ERR bit offset is not an integer or out of range/:0/-ERR bit offset is not an integer or out of range/-ERR bit offset is not an integer or out of range/"),
    ("SET k v;WATCH k;SETBIT k 0 0;MULTI;PING;EXEC", "+OK/+OK/:0/+OK/+QUEUED/*1/+PONG/"),
    ("SET k v EX 100;SETBIT k 0 1;TTL k;SETBIT k 100 0;STRLEN k;TTL k", "+OK/:0/:100/:0/:13/:100/"),
    ("SET k foobar;BITCOUNT k;BITCOUNT k 0 0;BITCOUNT k 1 1;BITCOUNT k 1 1 BYTE;BITCOUNT k 5 30 BIT;BITCOUNT k -5 -1 bit;BITCOUNT k 9 2", "+OK/:26/:4/:6/:6/:17/:2/:0/"),
    ("SET k abc;BITCOUNT n x y;BITCOUNT n 0;BITCOUNT n 0 1 zz;BITCOUNT k 0;BITCOUNT k x 1;BITCOUNT k -1 -2 zz;BITCOUNT k -2 -1 zz;BITCOUNT k 0 -1 BIT x;BITCOUNT", "+OK/:0/:0/:0/-ERR syntax error/-ERR value is not an integer or out of range/:0/-ERR syntax error/-ERR syntax error/-ERR wrong number of arguments for 'bitcount' command/"),
    ("BITPOS n 2;BITPOS n x;BITPOS n 1 x y z;BITPOS n 1 x;BITPOS n 0;BITPOS n 1", "-ERR The bit argument must be 1 or 0./-ERR value is not an integer or out of range/:-1/:-1/:0/:-1/"),
    ("SET k abc;BITPOS k 1 x;BITPOS k 1 0 1 zz;BITPOS k 1 0 x BIT;BITPOS k 1 0 x zz;BITPOS k 1 x x zz;BITPOS k 1 0 1 BIT x;BITPOS k 1;BITPOS k 0;BITPOS k 1 2;BITPOS k 1 -1;BITPOS k 1 -1 -2", "+OK/-ERR value is not an integer or out of range/-ERR syntax error/-ERR value is not an integer or out of range/-ERR syntax error/-ERR value is not an integer or out of range/-ERR syntax error/:1/:0/:17/:17/:-1/"),
    ("SET k '';BITPOS k 0;BITPOS k 1;BITPOS k 0 0;BITPOS k 0 0 -1;BITCOUNT k 0 -1;BITCOUNT k", "+OK/:-1/:-1/:-1/:-1/:0/:0/"),
    ("BITFIELD k SET u8 0 255 SET u8 8 255;BITPOS k 0;BITPOS k 0 0;BITPOS k 0 0 -1;BITPOS k 0 3;BITPOS k 0 -100 -50;BITPOS k 1 10 12 BIT;BITPOS k 0 2 -1 BIT", "*2/:0/:0/:16/:16/:-1/:-1/:-1/:10/:-1/"),
    ("MSET a abc b defgh;BITOP AND d a b;GETRANGE d 0 2;STRLEN d;BITOP or d a b;GET d;BITOP XOR d a a;STRLEN d;BITOP NOT d a;BITOP NOT a d;GET a", "+OK/:5/$3/``b/:5/:5/$5/egggh/:3/:3/:3/:3/$3/abc/"),
    ("SET a abc EX 100;BITOP OR a a n;TTL a;BITOP AND a n m;EXISTS a;BITOP NOT a n;BITOP not d a b;BITOP xx d a;BITOP AND d", "+OK/:3/:-1/:0/:0/:0/-ERR BITOP NOT must be called with a single source key./-ERR syntax error/-ERR wrong number of arguments for 'bitop' command/"),
    ("SET d v;SET e '';BITOP OR d e;EXISTS d", "+OK/+OK/:0/:0/"),
    ("BITFIELD k INCRBY i5 100 1 GET u4 0;BITFIELD k SET i8 #1 100 GET i8 #1 GET i8 8;STRLEN k", "*2/:1/:0/*3/:0/:100/:100/:14/"),
    ("BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1;BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1;BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1;BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1;BITFIELD k OVERFLOW FAIL INCRBY u2 102 1", "*2/:1/:1/*2/:2/:2/*2/:3/:3/*2/:0/:3/*1/$-1/"),
    ("BITFIELD k OVERFLOW FAIL SET u8 100 256;STRLEN k;BITFIELD k OVERFLOW SAT SET u8 0 -1 SET i8 8 -1000 SET i8 16 1000 GET u8 0 GET i8 8 GET i8 16", "*1/$-1/:14/*6/:0/:0/:0/:255/:-128/:127/"),
    ("BITFIELD k SET i64 0 9223372036854775807 INCRBY i64 0 1 OVERFLOW SAT INCRBY i64 0 -1 INCRBY i64 0 -9223372036854775808 OVERFLOW FAIL INCRBY i64 0 -1", "*5/:0/:-9223372036854775808/:-9223372036854775808/:-9223372036854775808/$-1/"),
    ("BITFIELD k SET u63 1 9223372036854775807 INCRBY u63 1 1 OVERFLOW SAT INCRBY u63 1 -1 INCRBY u63 1 9223372036854775807 INCRBY u63 1 1", "*5/:0/:0/:0/:9223372036854775807/:9223372036854775807/"),
    ("BITFIELD k OVERFLOW SAT SET i10 0 -9223372036854775808 GET i10 0 SET i10 0 -9223372036854775000 GET i10 0;BITFIELD k OVERFLOW SAT SET i63 0 -9223372036854775808 GET i63 0 SET u8 0 -1 GET u8 0", "*4/:0/:511/:511/:-512/*4/:-4611686018427387904/:4611686018427387903/:127/:255/"),
    ("BITFIELD k get u64 0;BITFIELD k get i65 0;BITFIELD k get i0 0;BITFIELD k get x8 0;BITFIELD k get u8 -1;BITFIELD k get u8 #4611686018427387904;BITFIELD k overflow x;BITFIELD k overflow;BITFIELD k set u8 0;BITFIELD k set u8 0 x;BITFIELD k nope;BITFIELD k get u8 #x;EXISTS k", "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is./-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is./-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is./-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is./-ERR bit offset is not an integer or out of range/*1/:0/-ERR Invalid OVERFLOW type specified/-ERR syntax error/-ERR syntax error/-ERR value is not an integer or out of range/-ERR syntax error/-ERR bit offset is not an integer or out of range/:0/"),
    ("BITFIELD_RO k set u8 0 1;BITFIELD_RO k get u8 0;BITFIELD_RO k overflow fail get u8 0;BITFIELD k;BITFIELD k get u8 0 overflow fail;BITFIELD;EXISTS k", "-ERR BITFIELD_RO only supports the GET subcommand/*1/:0/*1/:0/*0/*1/:0/-ERR wrong number of arguments for 'bitfield' command/:0/"),
    ("SET k v EX 100;WATCH k;BITFIELD k get u8 0;BITFIELD k set u8 0 118;MULTI;TTL k;EXEC", "+OK/+OK/*1/:118/*1/:118/+OK/+QUEUED/*1/:100/"),
    ("MULTI;SETBIT k 1 1;BITCOUNT k;BITOP NOT d k;BITPOS d 0;BITFIELD k GET u8 0;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*5/:0/:1/:1/:1/*1/:64/"),
    ("COMMAND GETKEYSANDFLAGS bitop and d a b", "*3/*2/$1/d/*2/+OW/+update/*2/$1/a/*2/+RO/+access/*2/$1/b/*2/+RO/+access/"),
    ("COMMAND GETKEYSANDFLAGS bitfield k get u8 0", "*1/*2/$1/k/*2/+RO/+access/"),
    ("COMMAND GETKEYSANDFLAGS bitfield k set u8 0 1", "*1/*2/$1/k/*3/+RW/+access/+update/"),
    ("COMMAND INFO bitop bitfield", "*2/*10/$5/bitop/:-4/*2/+write/+denyoom/:2/:-1/:1/*3/+@write/+@bitmap/+@slow/*0/*2/*6/$5/flags/*2/+OW/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*6/$5/flags/*2/+RO/+access/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:3/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:-1/$7/keystep/:1/$5/limit/:0/*0/*10/$8/bitfield/:-2/*2/+write/+denyoom/:1/:1/:1/*3/+@write/+@bitmap/+@slow/*0/*1/*8/$5/notes/$59/This command allows both access and modification of the key/$5/flags/*4/+RW/+access/+update/+variable_flags/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/"),
];

#[test]
fn hyperloglogs_reply_as_in_redis() {
    agree(HYPERLOGLOGS);
}

#[rustfmt::skip]
const HYPERLOGLOGS: &[(&str, &str)] = &[
    ("PFADD k;PFADD k;PFCOUNT k;STRLEN k", ":1/:0/:0/:18/"),
    ("PFADD k a b c d e f g;PFCOUNT k;PFADD k a;PFADD k h;PFCOUNT k;PFCOUNT n;STRLEN k", ":1/:7/:0/:1/:8/:0/:41/"),
    ("PFADD a 1 2 3;PFADD b 3 4 5;PFCOUNT a b;PFCOUNT a b n;PFMERGE c a b;PFCOUNT c;PFMERGE a b;PFCOUNT a;PFMERGE d n;PFCOUNT d;PFMERGE e;EXISTS e", ":1/:1/:5/:5/+OK/:5/+OK/:5/+OK/:0/+OK/:1/"),
    ("SET k abc;PFADD k x;PFCOUNT k;PFMERGE k;PFCOUNT n k;PFMERGE d k;EXISTS d;PFADD;PFCOUNT;PFMERGE", "+OK/-WRONGTYPE Key is not a valid HyperLogLog string value./-WRONGTYPE Key is not a valid HyperLogLog string value./-WRONGTYPE Key is not a valid HyperLogLog string value./-WRONGTYPE Key is not a valid HyperLogLog string value./-WRONGTYPE Key is not a valid HyperLogLog string value./:0/-ERR wrong number of arguments for 'pfadd' command/-ERR wrong number of arguments for 'pfcount' command/-ERR wrong number of arguments for 'pfmerge' command/"),
    ("SET k HYLLxxxxxxxxxxxxxxxx;PFADD k a;SET k HYLL;PFCOUNT k", "+OK/-WRONGTYPE Key is not a valid HyperLogLog string value./+OK/-WRONGTYPE Key is not a valid HyperLogLog string value./"),
    ("PFADD k a;EXPIRE k 100;PFADD k b;PFCOUNT k;PFMERGE k n;TTL k", ":1/:1/:1/:2/+OK/:100/"),
    ("PFADD k a;PFCOUNT k;WATCH k;PFCOUNT k;MULTI;PING;EXEC;WATCH k;PFADD k a;MULTI;PING;EXEC", ":1/:1/+OK/:1/+OK/+QUEUED/*1/+PONG/+OK/:0/+OK/+QUEUED/*1/+PONG/"),
    ("PFADD k a;WATCH k;PFCOUNT k;MULTI;PING;EXEC", ":1/+OK/:1/+OK/+QUEUED/*-1/"),
    ("PFDEBUG encoding n;SET k abc;PFDEBUG encoding k;PFDEBUG x k", "-ERR The specified key does not exist/+OK/-WRONGTYPE Key is not a valid HyperLogLog string value./-WRONGTYPE Key is not a valid HyperLogLog string value./"),
    ("PFADD h a b c;PFDEBUG ENCODING h;PFDEBUG decode h;PFDEBUG nope h", ":1/+sparse/$44/Z:8436 v:1,1 Z:4274 v:2,1 Z:3068 v:1,1 Z:603/-ERR Unknown PFDEBUG subcommand 'nope'/"),
    ("PFADD h a b c;EXPIRE h 100;PFDEBUG todense h;PFDEBUG todense h;PFDEBUG encoding h;PFDEBUG decode h;PFCOUNT h;STRLEN h;TTL h", ":1/:1/:1/:0/+dense/-ERR HLL encoding is not sparse/:3/:12304/:100/"),
    ("PFADD h a;APPEND h x;PFDEBUG decode h;PFDEBUG todense h;PFDEBUG getreg h;PFDEBUG encoding h", ":1/:22/$28/Z:12711 v:2,1 Z:3672 Z:14337/-INVALIDOBJ Corrupted HLL object detected/-INVALIDOBJ Corrupted HLL object detected/+sparse/"),
    ("PFDEBUG;PFDEBUG encoding h x;PFSELFTEST x", "-ERR wrong number of arguments for 'pfdebug' command/-ERR wrong number of arguments for 'pfdebug' command/-ERR wrong number of arguments for 'pfselftest' command/"),
    ("MULTI;PFADD k a b;PFCOUNT k;PFCOUNT k n;PFMERGE d k;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*4/:1/:2/:2/+OK/"),
    ("PFADD k a b c;PFCOUNT k;BITCOUNT k;BITPOS k 1 5;PFADD k 1 2 3 4 5;BITCOUNT k;STRLEN k", ":1/:3/:50/:70/:1/:89/:42/"),
    ("COMMAND INFO pfcount pfmerge pfadd", "*3/*10/$7/pfcount/:-2/*1/+readonly/:1/:-1/:1/*3/+@read/+@hyperloglog/+@slow/*0/*1/*8/$5/notes/$90/RW because it may change the internal representation of the key, and propagate to replicas/$5/flags/*2/+RW/+access/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:-1/$7/keystep/:1/$5/limit/:0/*0/*10/$7/pfmerge/:-2/*2/+write/+denyoom/:1/:-1/:1/*3/+@write/+@hyperloglog/+@slow/*0/*2/*6/$5/flags/*3/+RW/+access/+insert/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*6/$5/flags/*2/+RO/+access/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:-1/$7/keystep/:1/$5/limit/:0/*0/*10/$5/pfadd/:-2/*3/+write/+denyoom/+fast/:1/:1/:1/*3/+@write/+@hyperloglog/+@fast/*0/*1/*6/$5/flags/*2/+RW/+insert/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/"),
    ("COMMAND GETKEYSANDFLAGS pfmerge d a b", "*3/*2/$1/d/*3/+RW/+access/+insert/*2/$1/a/*2/+RO/+access/*2/$1/b/*2/+RO/+access/"),
];

#[test]
fn renamed_copied_and_moved_keys_reply_as_in_redis() {
    agree(MOVES);
}

#[rustfmt::skip]
const MOVES: &[(&str, &str)] = &[
    ("RENAME n m;RENAME n n;SET a 1 EX 100;SET b 2;RENAME a b;TTL b;GET b;EXISTS a;RENAME b b;GET b;RENAME b", "-ERR no such key/-ERR no such key/+OK/+OK/+OK/:100/$1/1/:0/+OK/$1/1/-ERR wrong number of arguments for 'rename' command/"),
    ("SET a 1;SET b 2;RENAMENX a b;GET b;RENAMENX a c;GET c;RENAMENX c c;RENAMENX n c;RENAMENX n n", "+OK/+OK/:0/$1/2/:1/$1/1/:0/-ERR no such key/-ERR no such key/"),
    ("SET a 1 EX 100;SET b 2;COPY a b;COPY a b REPLACE;TTL b;GET a;GET b;COPY n b;COPY n b REPLACE;GET b;COPY a c;TTL c", "+OK/+OK/:0/:1/:100/$1/1/$1/1/:0/:0/$1/1/:1/:100/"),
    ("SET a 1;COPY a a;COPY n n;COPY a a DB 0;COPY a a DB 1;SELECT 1;GET a;COPY a a DB 0;COPY a a DB 0 REPLACE;COPY a x DB 2 DB 1;EXISTS x", "+OK/-ERR source and destination objects are the same/-ERR source and destination objects are the same/-ERR source and destination objects are the same/:1/+OK/$1/1/:0/:1/:1/:1/"),
    ("SET k v;COPY k z DB 99999999999;COPY k z DB 99999999999999999999;COPY k z DB -1;COPY k z DB x;COPY k z DB;COPY k z NOPE;COPY k", "+OK/-ERR value is out of range, value must between -2147483648 and 2147483647/-ERR value is not an integer or out of range/-ERR DB index is out of range/-ERR value is not an integer or out of range/-ERR syntax error/-ERR syntax error/-ERR wrong number of arguments for 'copy' command/"),
    ("SET k v EX 100;MOVE k 99999999999;MOVE k 16;MOVE k x;MOVE k 0;MOVE n 0;MOVE n 1;MOVE k 1;EXISTS k;SELECT 1;TTL k;GET k;SELECT 0;SET k w;MOVE k 1;GET k", "+OK/-ERR value is out of range, value must between -2147483648 and 2147483647/-ERR DB index is out of range/-ERR value is not an integer or out of range/-ERR source and destination objects are the same/-ERR source and destination objects are the same/:0/:1/:0/+OK/:100/$1/v/+OK/+OK/:0/$1/w/"),
    ("RANDOMKEY;SET only v;RANDOMKEY;SELECT 1;RANDOMKEY;RANDOMKEY x", "$-1/+OK/$4/only/+OK/$-1/-ERR wrong number of arguments for 'randomkey' command/"),
    ("SET i 5;SET s abc;SET big 123456789012345678901234567890123456789012345;OBJECT ENCODING i;OBJECT ENCODING s;OBJECT ENCODING big;OBJECT ENCODING n;OBJECT REFCOUNT i;OBJECT REFCOUNT s;OBJECT REFCOUNT n", "+OK/+OK/+OK/$3/int/$6/embstr/$3/raw/$-1/:2147483647/:1/$-1/"),
    ("SET s abc;OBJECT FREQ s;OBJECT FREQ n;OBJECT IDLETIME s;OBJECT IDLETIME n;OBJECT;OBJECT x;OBJECT ENCODING;OBJECT ENCODING s v;OBJECT HELP x", "+OK/-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust./$-1/:0/$-1/-ERR wrong number of arguments for 'object' command/-ERR unknown subcommand 'x'. Try OBJECT HELP./-ERR wrong number of arguments for 'object|encoding' command/-ERR wrong number of arguments for 'object|encoding' command/-ERR wrong number of arguments for 'object|help' command/"),
    ("MULTI;SET a 1;RENAME a b;COPY b c DB 1;MOVE b 2;GET b;SELECT 1;GET c;SELECT 2;GET b;OBJECT ENCODING b;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*10/+OK/+OK/:1/:1/$-1/+OK/$1/1/+OK/$1/1/$3/int/"),
    ("MULTI;SET a 1;COPY a b;MOVE b 1;RENAME n m;COPY a a;RANDOMKEY;EXEC", "+OK/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/+QUEUED/*6/+OK/:1/:1/-ERR no such key/-ERR source and destination objects are the same/$1/a/"),
    ("SET a 1;WATCH a;RENAME a b;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("SET a 1;WATCH b;RENAME a b;MULTI;PING;EXEC", "+OK/+OK/+OK/+OK/+QUEUED/*-1/"),
    ("COMMAND GETKEYS object encoding k", "*1/$1/k/"),
    ("COMMAND GETKEYS object help", "-ERR The command has no key arguments/"),
    ("COMMAND GETKEYSANDFLAGS copy a b db 1", "*2/*2/$1/a/*2/+RO/+access/*2/$1/b/*2/+OW/+update/"),
    ("COMMAND GETKEYSANDFLAGS object freq a", "*1/*2/$1/a/*1/+RO/"),
    ("COMMAND INFO rename renamenx copy move randomkey", "*5/*10/$6/rename/:3/*1/+write/:1/:2/:1/*3/+@keyspace/+@write/+@slow/*0/*2/*6/$5/flags/*3/+RW/+access/+delete/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*6/$5/flags/*2/+OW/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/*10/$8/renamenx/:3/*2/+write/+fast/:1/:2/:1/*3/+@keyspace/+@write/+@fast/*0/*2/*6/$5/flags/*3/+RW/+access/+delete/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*6/$5/flags/*2/+OW/+insert/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/*10/$4/copy/:-3/*2/+write/+denyoom/:1/:2/:1/*3/+@keyspace/+@write/+@slow/*0/*2/*6/$5/flags/*2/+RO/+access/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*6/$5/flags/*2/+OW/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/*10/$4/move/:3/*2/+write/+fast/:1/:1/:1/*3/+@keyspace/+@write/+@fast/*0/*1/*6/$5/flags/*3/+RW/+access/+update/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:1/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/*10/$9/randomkey/:1/*1/+readonly/:0/:0/:0/*3/+@keyspace/+@read/+@slow/*2/$25/request_policy:all_shards/$23/nondeterministic_output/*0/*0/"),
    ("COMMAND INFO object|encoding object|help", "*2/*10/$15/object|encoding/:3/*1/+readonly/:2/:2/:1/*3/+@keyspace/+@read/+@slow/*1/$23/nondeterministic_output/*1/*6/$5/flags/*1/+RO/$12/begin_search/*4/$4/type/$5/index/$4/spec/*2/$5/index/:2/$9/find_keys/*4/$4/type/$5/range/$4/spec/*6/$7/lastkey/:0/$7/keystep/:1/$5/limit/:0/*0/*10/$11/object|help/:2/*2/+loading/+stale/:0/:0/:0/*2/+@keyspace/+@slow/*0/*0/*0/"),
];
