//! Allowed differences between the replies of the two servers, each with its reason.
//!
//! docs/compatibility.md has the same list in the section "The comparison with Redis".

use crate::wire::{Reply, ReplyBody};

/// The words of a request as sent to each server.
#[derive(Clone, Debug, Default)]
pub(super) struct SentRequest {
    pub(super) to_redis: Vec<Vec<u8>>,
    pub(super) to_farbank: Vec<Vec<u8>>,
}

/// The request that two replies answer, and its context.
pub(super) struct AskedRequest<'a> {
    pub(super) sent: &'a SentRequest,
    /// Client numbers of the connections: in Redis and in Farbank.
    pub(super) ids: &'a [(i64, i64)],
    /// Whether the connection watches a key that was absent at WATCH.
    pub(super) watches_absent: bool,
}

impl AskedRequest<'_> {
    /// Returns the word at `at` in lower case; empty if there is none.
    fn word(&self, at: usize) -> Vec<u8> {
        self.sent
            .to_redis
            .get(at)
            .map(|word| word.to_ascii_lowercase())
            .unwrap_or_default()
    }
}

/// A rule: its reason, and a function that returns whether it allows the difference of two replies.
struct DifferenceRule {
    reason: &'static str,
    allows: Allows,
}

type Allows = fn(&AskedRequest<'_>, &Reply, &Reply) -> bool;

const fn rule(reason: &'static str, allows: Allows) -> DifferenceRule {
    DifferenceRule { reason, allows }
}

const RULES: &[DifferenceRule] = &[
    rule(PARTS, parts),
    rule("the servers execute a request at different moments", moment),
    rule(
        "KEYS, SCAN, CONFIG GET, COMMAND LIST and FUNCTION LIST order their elements differently",
        order,
    ),
    rule("each server has its own cursors of SCAN", cursor),
    rule("RANDOMKEY picks any key", random_key),
    rule(
        "Redis refuses PSYNC in a pipeline whose replies it has not sent",
        early_copy,
    ),
    rule("each server has its own replication id", copy_id),
    rule(
        "Redis counts the bytes of the stream of replicas once it has sent a copy",
        stream_bytes,
    ),
    rule("ACL GENPASS is random", random_password),
    rule(
        "ACL LOG has the time, and the client's line of CLIENT LIST",
        denials,
    ),
    rule(
        "OBJECT describes a string as SET would have stored it, and as just used",
        representation,
    ),
    rule(
        "DEBUG DIGEST-VALUE shows an expired value until Redis removes it",
        expired_digest,
    ),
    rule("each server has its own memory per key", key_memory),
    rule("each server assigns its own client numbers", client_number),
    rule("an error quotes an address or a client number", quoted),
    rule(
        "CLIENT LIST ends with watch, lib-name and lib-ver; memory figures differ",
        client_list,
    ),
    rule("INFO describes the server itself", info),
    rule(
        "Redis counts expired keys until it has removed them",
        expired,
    ),
    rule(
        "Redis lowers maxclients to what the system allows",
        maxclients,
    ),
    rule(
        "Farbank has fewer commands, and two subcommands of Redis 7.2",
        fewer_commands,
    ),
    rule("a pattern of CONFIG GET finds other parameters", parameters),
    rule(
        "each server takes its own times for a command",
        command_times,
    ),
    rule("HELP lists the server's own subcommands", help),
    rule(
        "COMMAND DOCS has other texts, no arguments and no history",
        docs,
    ),
];

/// Returns the reason for which the replies may differ, if a rule allows it.
pub(super) fn allowed(
    asked: &AskedRequest<'_>,
    redis: &Reply,
    farbank: &Reply,
) -> Option<&'static str> {
    let rule = RULES
        .iter()
        .find(|rule| (rule.allows)(asked, redis, farbank));
    rule.map(|rule| rule.reason)
}

/// The reason after which the two servers may hold different values, so that the case ends.
pub(super) const PARTS: &str =
    "the case ends: Farbank does not know a command, or only Farbank ran EXEC";

fn parts(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let is_null = matches!(redis.head.as_slice(), b"*-1" | b"_");
    let exec = asked.word(0) == b"exec" && asked.watches_absent;
    let unknown = farbank.is_error("ERR unknown command") && !redis.is_error("ERR unknown");
    unknown || exec && is_null && farbank.elements().is_some()
}

/// Largest allowed difference of figures that depend on the time of execution, in seconds.
const MOMENT_SECS: i64 = 3;

fn moment(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let unit = match asked.word(0).as_slice() {
        b"ttl" | b"expiretime" => 1,
        b"pttl" | b"pexpiretime" => 1000,
        b"time" => return both_strings(redis, farbank),
        _ => return false,
    };
    match (redis.integer(), farbank.integer()) {
        (Some(a), Some(b)) => a >= 0 && b >= 0 && (a - b).abs() <= MOMENT_SECS * unit,
        _ => false,
    }
}

/// Returns whether both replies are arrays of the same number of strings.
fn both_strings(redis: &Reply, farbank: &Reply) -> bool {
    let strings = |reply: &Reply| {
        let elements = reply.elements()?;
        let all = elements.iter().all(|element| element.text().is_some());
        all.then_some(elements.len())
    };
    strings(redis).is_some() && strings(redis) == strings(farbank)
}

/// Returns the elements of an array in groups of `size`, and the groups in sorted order.
fn sorted(reply: &Reply, size: usize) -> Option<Vec<String>> {
    let elements = reply.elements()?;
    let group = |group: &[Reply]| group.iter().map(|r| format!("{r:?}")).collect::<String>();
    let mut groups: Vec<_> = elements.chunks(size).map(group).collect();
    groups.sort_unstable();
    Some(groups)
}

fn order(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let same = |redis: &Reply, farbank: &Reply, size| {
        redis.head == farbank.head && sorted(redis, size) == sorted(farbank, size)
    };
    match (asked.word(0).as_slice(), asked.word(1).as_slice()) {
        (b"keys", _) => same(redis, farbank, 1),
        (b"config", b"get") => same(redis, farbank, 2),
        (b"command" | b"function", b"list") => same(redis, farbank, 1),
        (b"scan", _) => match (redis.elements(), farbank.elements()) {
            (Some([next, redis]), Some([also, farbank])) => {
                next == also && next.text() == Some(b"0") && same(redis, farbank, 1)
            }
            _ => false,
        },
        _ => false,
    }
}

/// Allows any times in the reply to LATENCY HISTOGRAM, of the same commands with the same numbers of calls.
fn command_times(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let is_histogram = asked.word(0) == b"latency" && asked.word(1) == b"histogram";
    let all = asked.sent.to_redis.len() == 2; // Redis has more commands.
    is_histogram
        && calls(redis).is_some()
        && calls(farbank).is_some()
        && (all || calls(redis) == calls(farbank))
}

/// Returns whether the reply, or an element of it, contains `text`.
fn mentions(reply: &Reply, text: &str) -> bool {
    let found = |bytes: &[u8]| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    let elements = reply.elements().unwrap_or_default();
    found(&reply.head)
        || reply.text().is_some_and(found)
        || elements.iter().any(|element| mentions(element, text))
}

/// Returns the commands in a reply to LATENCY HISTOGRAM, each with its number of calls, in sorted order.
fn calls(reply: &Reply) -> Option<Vec<(&[u8], i64)>> {
    let pairs = reply.elements()?.chunks_exact(2);
    let calls = pairs.map(|pair| match pair[1].elements() {
        Some([_, calls, ..]) => Some((pair[0].text()?, calls.integer()?)),
        _ => None,
    });
    let mut calls: Vec<_> = calls.collect::<Option<_>>()?;
    calls.sort_unstable();
    Some(calls)
}

/// Allows any parameters in the reply to a CONFIG GET with a pattern.
fn parameters(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let mut words = (2..asked.sent.to_redis.len()).map(|at| asked.word(at));
    let has_pattern = words.any(|word| word.iter().any(|byte| b"*?[".contains(byte)));
    let are_pairs = |reply: &Reply| reply.elements().is_some_and(|all| all.len() % 2 == 0);
    let is_get = asked.word(0) == b"config" && asked.word(1) == b"get";
    is_get && has_pattern && are_pairs(redis) && are_pairs(farbank)
}

/// Allows any cursor and any keys, except for a SCAN that visits all keys at once: there both replies must be equal.
fn cursor(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let whole = (0..asked.sent.to_redis.len()).any(|at| asked.word(at) == b"100000")
        && asked.word(1) == b"0";
    let shaped = |reply: &Reply| match reply.elements() {
        Some([next, keys]) => next.text().is_some() && keys.elements().is_some(),
        _ => false,
    };
    asked.word(0) == b"scan" && !whole && shaped(redis) && shaped(farbank)
}

fn random_key(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    asked.word(0) == b"randomkey" && redis.text().is_some() && farbank.text().is_some()
}

fn random_password(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let bytes = |reply: &Reply| reply.text().map(<[u8]>::len);
    let asks = asked.word(0) == b"acl" && asked.word(1) == b"genpass";
    asks && bytes(redis).is_some() && bytes(redis) == bytes(farbank)
}

fn denials(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    /// Values of an entry that may differ: `age-seconds` and `client-info`.
    const OWN: [usize; 2] = [11, 13];
    let is_like = |redis: &Reply, farbank: &Reply| match (redis.elements(), farbank.elements()) {
        (Some(redis), Some(farbank)) => {
            let mut fields = redis.iter().zip(farbank).enumerate();
            redis.len() == farbank.len() && fields.all(|(at, (a, b))| a == b || OWN.contains(&at))
        }
        _ => false,
    };
    let (Some(redis), Some(farbank)) = (redis.elements(), farbank.elements()) else {
        return false;
    };
    let mut pairs = redis.iter().zip(farbank);
    asked.word(0) == b"acl"
        && asked.word(1) == b"log"
        && redis.len() == farbank.len()
        && pairs.all(|(redis, farbank)| is_like(redis, farbank))
}

fn representation(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let are_texts = redis.text().is_some() && farbank.text().is_some();
    let are_numbers = redis.integer().is_some() && farbank.integer().is_some();
    asked.word(0) == b"object"
        && match asked.word(1).as_slice() {
            b"encoding" => are_texts,
            b"refcount" | b"idletime" => are_numbers,
            _ => false,
        }
}

fn expired_digest(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let is_digest = asked.word(0) == b"debug" && asked.word(1) == b"digest-value";
    let (ReplyBody::Nested(redis), ReplyBody::Nested(farbank)) = (&redis.body, &farbank.body)
    else {
        return false;
    };
    let is_absent = |reply: &Reply| reply.head[1..].iter().all(|byte| *byte == b'0');
    let agrees = |(redis, farbank): (&Reply, &Reply)| redis == farbank || is_absent(farbank);
    is_digest && redis.len() == farbank.len() && redis.iter().zip(farbank).all(agrees)
}

fn key_memory(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let is_usage = asked.word(0) == b"memory" && asked.word(1) == b"usage";
    is_usage && redis.integer().is_some() && farbank.integer().is_some()
}

fn client_number(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let same = |redis: &Reply, farbank: &Reply| match (redis.integer(), farbank.integer()) {
        (Some(redis), Some(farbank)) => asked.ids.contains(&(redis, farbank)),
        _ => false,
    };
    match (asked.word(0).as_slice(), asked.word(1).as_slice()) {
        (b"client", b"id") => same(redis, farbank),
        (b"hello", _) => match (redis.elements(), farbank.elements()) {
            (Some(a), Some(b)) if redis.head == farbank.head && a.len() == b.len() => {
                a.iter().zip(b).all(|(a, b)| a == b || same(a, b))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Fields of CLIENT LIST whose values must be equal. For all other fields only names and order must be equal.
const SAME_FIELDS: [&str; 12] = [
    "name", "flags", "db", "sub", "psub", "ssub", "multi", "cmd", "user", "redir", "resp", "events",
];

/// Returns the lines of CLIENT LIST: the names of the fields in order, those of [`SAME_FIELDS`] with their values.
fn client_lines(reply: &Reply) -> Option<Vec<Vec<String>>> {
    let text = String::from_utf8_lossy(reply.text()?).into_owned();
    let field = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        // Redis sets a flag when a watched key changes; Farbank detects the change only in EXEC.
        let flags = value.replace(['d', 'e'], "");
        match (name, flags.as_str()) {
            // Redis stops queueing commands once EXEC is certain to fail.
            ("multi", count) => format!("multi={}", count != "-1"),
            ("flags", "") => "flags=N".to_owned(),
            ("flags", flags) => format!("flags={flags}"),
            _ if SAME_FIELDS.contains(&name) => format!("{name}={value}"),
            _ => name.to_owned(),
        }
    };
    let line = |line: &str| line.split(' ').map(field).collect();
    Some(text.trim_start_matches("txt:").lines().map(line).collect())
}

fn client_list(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    if asked.word(0) != b"client" || !matches!(asked.word(1).as_slice(), b"list" | b"info") {
        return false;
    }
    let newer = ["watch", "lib-name", "lib-ver"].map(str::to_owned);
    let shorter = |mut lines: Vec<Vec<String>>| {
        for line in &mut lines {
            if line.ends_with(&newer) {
                line.truncate(line.len() - newer.len());
            }
        }
        lines
    };
    redis.marker() == farbank.marker()
        && client_lines(redis).is_some()
        && client_lines(redis) == client_lines(farbank).map(shorter)
}

fn info(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    asked.word(0) == b"info"
        && redis.marker() == farbank.marker()
        && redis.text().is_some()
        && farbank.text().is_some()
}

/// Allows differences caused by commands and subcommands that Farbank does not have, and by their number.
fn fewer_commands(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    if farbank.is_error("ERR unknown subcommand") && !redis.is_error("ERR unknown") {
        return true;
    }
    if asked.word(0) == b"module" {
        return farbank.is_error("ERR unknown command");
    }
    if matches!(
        asked.word(0).as_slice(),
        b"eval" | b"evalsha" | b"eval_ro" | b"evalsha_ro"
    ) {
        let is_unknown = |reply| mentions(reply, "Unknown Redis command called from script");
        let is_refused = mentions(redis, "Wrong number of args calling Redis command")
            || mentions(redis, "This Redis command is not allowed from script");
        return is_unknown(farbank) && !is_unknown(redis) && is_refused;
    }
    if asked.word(0) != b"command" {
        return false;
    }
    match asked.word(1).as_slice() {
        b"count" => redis.integer() > farbank.integer(),
        b"list" => match (redis.elements(), farbank.elements()) {
            (Some(redis), Some(farbank)) => {
                let newer = |name: &Reply| {
                    matches!(name.text(), Some(b"client|setinfo" | b"client|no-touch"))
                };
                farbank
                    .iter()
                    .all(|name| redis.contains(name) || newer(name))
            }
            _ => false,
        },
        b"info" => match (redis.elements(), farbank.elements()) {
            (Some(a), Some(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .zip(b)
                        .all(|(a, b)| a == b || fewer_subcommands(a, b))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Returns whether two descriptions of a container command differ only in their subcommands, and all of Farbank's
/// subcommands are also Redis's or belong to newer versions of Redis.
fn fewer_subcommands(redis: &Reply, farbank: &Reply) -> bool {
    let (Some(a), Some(b)) = (redis.elements(), farbank.elements()) else {
        return false;
    };
    let (Some((subs, a)), Some((own, b))) = (a.split_last(), b.split_last()) else {
        return false;
    };
    let (Some(subs), Some(own)) = (subs.elements(), own.elements()) else {
        return false;
    };
    let newer = |sub: &Reply| {
        let name = sub
            .elements()
            .and_then(|e| e.first()?.text())
            .unwrap_or_default();
        matches!(name, b"client|setinfo" | b"client|no-touch")
    };
    a == b && !own.is_empty() && own.iter().all(|sub| subs.contains(sub) || newer(sub))
}

fn early_copy(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    asked.word(0) == b"psync"
        && redis.is_error("ERR SYNC and PSYNC are invalid with pending output")
        && farbank.is_error("ERR value is not an integer")
}

fn copy_id(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let begins = |reply: &Reply| reply.head.starts_with(b"+FULLRESYNC ");
    asked.word(0) == b"psync" && begins(redis) && begins(farbank)
}

fn stream_bytes(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    asked.word(0) == b"role"
        && redis
            .elements()
            .zip(farbank.elements())
            .is_some_and(|(theirs, own)| {
                let others = |list: &[Reply]| [list.first().cloned(), list.get(2).cloned()];
                others(theirs) == others(own)
            })
}

fn help(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    asked.word(1) == b"help" && redis.marker() == b'*' && farbank.marker() == b'*'
}

fn docs(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let are_both = redis.marker() == farbank.marker() && redis.elements().is_some();
    let is_empty = |reply: &Reply| matches!(&reply.body, ReplyBody::Nested(e) if e.is_empty());
    asked.word(0) == b"command"
        && asked.word(1) == b"docs"
        && are_both
        && is_empty(redis) == is_empty(farbank)
}

/// Returns the error line with all `words` removed.
fn without(reply: &Reply, words: &[Vec<u8>]) -> String {
    let mut text = String::from_utf8_lossy(&reply.head).into_owned();
    for word in words.iter().filter(|word| word.len() > 1) {
        text = text.replace(&*String::from_utf8_lossy(word), "");
    }
    text
}

fn quoted(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let SentRequest {
        to_redis,
        to_farbank,
    } = asked.sent;
    to_redis != to_farbank
        && redis.is_error("")
        && without(redis, to_redis) == without(farbank, to_farbank)
}

fn expired(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let counts = (redis.integer(), farbank.integer());
    asked.word(0) == b"dbsize" && matches!(counts, (Some(a), Some(b)) if a > b)
}

fn maxclients(asked: &AskedRequest<'_>, redis: &Reply, farbank: &Reply) -> bool {
    let text = String::from_utf8_lossy(&redis.head);
    asked.word(1) == b"set"
        && text.contains("operating system is not able")
        && farbank.head == b"+OK"
}
