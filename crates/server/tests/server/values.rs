//! Replies of commands that compute with whole values, byte for byte. The tables contain the replies of redis-server
//! 7.0.15 to the same requests; `/` stands for the end of a line.

use crate::harness::Running;

/// The fixed time of the store's clock, in milliseconds since 1970.
const NOW_MS: u64 = 1_700_000_000_000;

fn agree(table: &[(&str, &str)]) {
    let server = Running::new();
    server.store.set_clock(NOW_MS);
    for (requests, replies) in table {
        let mut client = server.connect();
        client.ask("FLUSHALL", "+OK\r\n");
        client.ask(requests, &replies.replace('/', "\r\n"));
    }
}

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
