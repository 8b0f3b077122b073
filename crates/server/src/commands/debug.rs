//! DEBUG: what test suites use of it. `enable-debug-command` says which clients may use it; by default no client may.
//!
//! The thread of long requests executes every subcommand, so that none delays the requests of other clients, except
//! other long ones. Subcommands about parts of Redis that do not exist here are accepted and have no effect
//! ([`WITHOUT_EFFECT`]). Those that crash or restart the server do not exist.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farbank_store::{DATABASES, ReadView, Value};
use sha1::{Digest, Sha1};

use super::context::CommandContext;
use super::error::CommandError;
use super::values::STRING;
use super::{config_rewrite, keys, object, text};
use crate::buffers::reply::ReplySink;
use crate::hex::hex;
use crate::protocol::resp::number::{DecimalText, parse_i64};
use crate::protocol::resp::{Args, RespVersion, reply};

const NOT_ALLOWED: CommandError = CommandError::Fixed(
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local \
     connection, otherwise you need to set this option in the configuration file, and then restart the server.",
);
const NOT_POSITIVE: CommandError =
    CommandError::Fixed("ERR value is out of range, must be positive");

/// Subcommands without effect, and the number of their arguments.
const WITHOUT_EFFECT: [(&[u8], usize); 4] = [
    (b"quicklist-packed-threshold", 1),
    (b"change-repl-id", 0),
    (b"pause-cron", 1),
    (b"replybuffer", 2),
];

/// Longest pause between two checks whether the server stops.
const SLEEP_STEP: Duration = Duration::from_millis(20);
/// Keys that POPULATE writes before it waits until they are durable.
const BATCH_KEYS: i64 = 1000;

const HELP: &[&str] = &[
    "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CHANGE-REPL-ID",
    "    Has no effect.",
    "CONFIG-REWRITE-FORCE-ALL",
    "    Like CONFIG REWRITE, but also write the parameters that have their defaults.",
    "DIGEST",
    "    Output a hex signature representing the current content of all databases.",
    "DIGEST-VALUE <key> [<key> ...]",
    "    Output a hex signature of the values of all the specified keys.",
    "ERROR <string>",
    "    Return an error with <string> as message.",
    "LOADAOF",
    "    Make every acknowledged write durable on the medium.",
    "LOG <message>",
    "    Write <message> to the server log.",
    "OBJECT <key>",
    "    Show low level info about `key` and associated value.",
    "PAUSE-CRON <0|1>",
    "    Has no effect.",
    "POPULATE <count> [<prefix>] [<size>]",
    "    Create <count> string keys named <prefix>:<num>; the prefix is 'key' by default.",
    "PROTOCOL <type>",
    "    Reply with a test value of the specified type. <type> can be: string,",
    "    integer, double, bignum, null, array, set, map, attrib, push, verbatim,",
    "    true, false.",
    "QUICKLIST-PACKED-THRESHOLD <size>",
    "    Has no effect.",
    "RELOAD [MERGE] [NOFLUSH]",
    "    Make every acknowledged write durable on the medium.",
    "REPLYBUFFER <PEAK-RESET-TIME|RESIZING> <value>",
    "    Has no effect.",
    "SET-ACTIVE-EXPIRE <0|1>",
    "    Setting it to 0 lets only requests that find expired keys publish their expiry.",
    "SET-DISABLE-DENY-SCRIPTS <0|1>",
    "    Setting it to 1 lets scripts call DEBUG.",
    "SLEEP <seconds>",
    "    Hold up this client, and long requests of others, for <seconds>. Decimals allowed.",
    "HELP",
    "    Prints this help.",
];

/// `DEBUG subcommand [arg ...]`
pub(super) fn debug(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let actions = ctx.shared.options.debug_command;
    if !actions.allows(ctx.client.client_info.is_local) {
        return Err(NOT_ALLOWED);
    }
    // A script may run on a worker.
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let name = text::option(args.at(1));
    match (name.as_slice(), args.len()) {
        (b"help", 2) => help(ctx),
        (b"sleep", 3) => sleep(ctx, args.at(2)),
        (b"object", 3) => return object::describe(ctx, args),
        (b"digest", 2) => return digest(ctx),
        (b"digest-value", _) => return digest_value(ctx, args),
        (b"protocol", 3) => return protocol(ctx, args.at(2)),
        (b"error", 3) => return Err(CommandError::Detailed(args.at(2).to_vec())),
        (b"log", 3) => {
            tracing::warn!("DEBUG LOG: {}", String::from_utf8_lossy(args.at(2)));
            reply::ok(ctx.out);
        }
        (b"set-active-expire", 3) => {
            let is_on = parse_i64(args.at(2)).is_some_and(|value| value != 0);
            ctx.shared.threads.expiries().set_active(is_on);
            reply::ok(ctx.out);
        }
        (b"set-disable-deny-scripts", 3) => {
            let is_on = parse_i64(args.at(2)).is_some_and(|value| value != 0);
            ctx.shared
                .programs
                .scripts
                .may_debug
                .store(is_on, Ordering::Relaxed);
            reply::ok(ctx.out);
        }
        (b"config-rewrite-force-all", 2) => return config_rewrite::rewrite_all(ctx),
        (b"reload", _) => return reload(ctx, args),
        (b"loadaof", 2) => {
            ctx.session()?.sync()?;
            reply::ok(ctx.out);
        }
        (b"populate", 3..=5) => return populate(ctx, args),
        (name, len) if WITHOUT_EFFECT.contains(&(name, len - 2)) => reply::ok(ctx.out),
        _ => return Err(text::subcommand_syntax("DEBUG", args.at(1))),
    }
    Ok(())
}

fn help(ctx: &mut CommandContext<'_>) {
    reply::array(ctx.out, HELP.len());
    for line in HELP {
        reply::simple(ctx.out, line);
    }
}

/// As in Redis, what is no number counts as 0.
fn sleep(ctx: &mut CommandContext<'_>, seconds: &[u8]) {
    let seconds = std::str::from_utf8(seconds)
        .ok()
        .and_then(|s| s.parse().ok());
    let time = Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default();
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()) {
        if left.is_zero() || ctx.shared.threads.is_stopping() {
            break;
        }
        std::thread::sleep(left.min(SLEEP_STEP));
    }
    reply::ok(ctx.out);
}

/// A digest of Redis's: 20 bytes, into which texts are mixed.
#[derive(Clone, Copy, Default)]
struct DataDigest([u8; 20]);

impl DataDigest {
    /// Mixes `text` in; the order of such texts does not matter.
    fn combine(&mut self, text: &[u8]) {
        for (byte, hashed) in self.0.iter_mut().zip(Sha1::digest(text)) {
            *byte ^= hashed;
        }
    }

    /// Mixes `text` in; the order of such texts matters.
    fn mix(&mut self, text: &[u8]) {
        self.combine(text);
        self.0 = Sha1::digest(self.0).into();
    }

    /// Mixes the value of `key` in. Returns whether there is one.
    fn mix_value(
        &mut self,
        ctx: &mut CommandContext<'_>,
        key: &[u8],
    ) -> Result<bool, CommandError> {
        let (key, view, mut bytes, mut expires) = (ctx.key(key), ctx.view(), Vec::new(), false);
        let found = ctx.ops().get(key, view, &mut bytes, &mut |meta, _| {
            expires = meta.expires_ms != 0;
            true
        })?;
        if found {
            self.mix(&[0; 4]); // Redis's number of the type string, in 32 bits
            self.mix(&bytes);
            if expires {
                self.combine(b"!!expire!!");
            }
        }
        Ok(found)
    }
}

/// `DEBUG DIGEST`
fn digest(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let own_db = ctx.client.db;
    let digest = digest_of_all(ctx);
    ctx.client.db = own_db;
    reply::simple(ctx.out, &hex(&digest?.0));
    Ok(())
}

fn digest_of_all(ctx: &mut CommandContext<'_>) -> Result<DataDigest, CommandError> {
    let mut all = DataDigest::default();
    for db in 0..u8::try_from(DATABASES).unwrap_or(u8::MAX) {
        ctx.client.db = db;
        let bytes_max = ctx.out.bytes_max();
        let names = keys::all_keys(ctx, bytes_max, &|_| true)?;
        let names = names.ok_or(CommandError::Fixed("ERR there are too many keys"))?;
        if names.is_empty() {
            continue;
        }
        all.mix(&[0, 0, 0, db]);
        for name in names {
            let mut own = DataDigest::default();
            own.mix(&name);
            if own.mix_value(ctx, &name)? {
                all.combine(&own.0);
            }
        }
    }
    Ok(all)
}

/// `DEBUG DIGEST-VALUE [key ...]`
fn digest_value(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    reply::array(ctx.out, args.len() - 2);
    for key in args.from(2) {
        let mut own = DataDigest::default();
        own.mix_value(ctx, key)?;
        reply::simple(ctx.out, &hex(&own.0));
    }
    Ok(())
}

/// `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`. The pool is what is served, so there is nothing to reload.
fn reload(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    for option in args.from(2) {
        match text::option(option).as_slice() {
            b"merge" | b"noflush" => {}
            b"nosave" => {
                let text =
                    "ERR this server loads no RDB file: DEBUG RELOAD NOSAVE is not supported";
                return Err(CommandError::Fixed(text));
            }
            _ => {
                let text = "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.";
                return Err(CommandError::Fixed(text));
            }
        }
    }
    ctx.session()?.sync()?;
    reply::ok(ctx.out);
    Ok(())
}

/// `DEBUG POPULATE count [prefix] [size]`. Keys that exist stay as they are.
fn populate(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let positive = |at| {
        let number = parse_i64(args.at(at)).filter(|number| *number >= 0);
        number.ok_or(NOT_POSITIVE)
    };
    let count = positive(2)?;
    let prefix = args.get(3).unwrap_or(b"key");
    let size = if args.len() == 5 { positive(4)? } else { 0 };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    super::execute::check_key(prefix)?;
    if size > ctx.shared.store.item_bytes_max() {
        return Err(super::error::TOO_LONG);
    }
    for number in 0..count {
        if number % BATCH_KEYS == 0 {
            if ctx.shared.threads.is_stopping() {
                break;
            }
            ctx.session()?.sync()?;
        }
        let number = DecimalText::new(number);
        let name = [prefix, b":", number.as_bytes()].concat();
        let key = ctx.key(&name);
        if ctx.ops().meta(key, ReadView::Pending)?.is_some() {
            continue;
        }
        let mut bytes = [b"value:", number.as_bytes()].concat();
        if size > 0 {
            bytes.resize(size, 0);
        }
        let value = Value {
            bytes: &bytes,
            expires_ms: 0,
            flags: 0,
            kind: STRING,
        };
        ctx.ops().put(key, value)?;
    }
    ctx.session()?.sync()?;
    reply::ok(ctx.out);
    Ok(())
}

/// `DEBUG PROTOCOL type`
fn protocol(ctx: &mut CommandContext<'_>, kind: &[u8]) -> Result<(), CommandError> {
    const NUMBERS: [i64; 3] = [0, 1, 2];
    const BIG: &[u8] = b"1234567999999999999999999999999999999";
    let (resp, out) = (ctx.client.resp, &mut *ctx.out);
    let is_v3 = resp == RespVersion::V3;
    match text::option(kind).as_slice() {
        b"string" => reply::bulk(out, b"Hello World"),
        b"integer" => reply::integer(out, 12345),
        b"double" if is_v3 => reply::double(out, "3.141"),
        b"double" => reply::bulk(out, b"3.141"),
        b"bignum" if is_v3 => out.extend_from_slice(&[b"(", BIG, b"\r\n"].concat()),
        b"bignum" => reply::bulk(out, BIG),
        b"null" => reply::null(out, resp),
        b"array" => {
            reply::array(out, NUMBERS.len());
            NUMBERS.iter().for_each(|n| reply::integer(out, *n));
        }
        b"set" => {
            reply::set(out, resp, NUMBERS.len());
            NUMBERS.iter().for_each(|n| reply::integer(out, *n));
        }
        b"map" => {
            reply::map(out, resp, NUMBERS.len());
            for number in NUMBERS {
                reply::integer(out, number);
                reply::boolean(out, resp, number == 1);
            }
        }
        b"attrib" => {
            if is_v3 {
                out.extend_from_slice(
                    b"|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n",
                );
            }
            reply::bulk(out, b"Some real reply following the attribute");
        }
        b"push" if is_v3 => {
            reply::push(out, resp, 2);
            reply::bulk(out, b"server-cpu-usage");
            reply::integer(out, 42);
            reply::bulk(out, b"Some real reply following the push reply");
        }
        b"push" => {
            let text = "ERR RESP2 is not supported by this command";
            return Err(CommandError::Fixed(text));
        }
        b"verbatim" => reply::verbatim(out, resp, "This is a verbatim\nstring"),
        b"true" => reply::boolean(out, resp, true),
        b"false" => reply::boolean(out, resp, false),
        _ => {
            return Err(CommandError::Fixed(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}
