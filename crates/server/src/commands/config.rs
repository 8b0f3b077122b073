//! Commands about the configuration: CONFIG and its subcommands.
//!
//! Few parameters can change while the server runs. The others exist because clients query them; their values describe
//! how this server behaves.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::help_of;
use super::config_fixed::{FIXED, IGNORED, IgnoredParameter, POLICIES, ValueKind, is_switch};
use super::config_paths::{self, FILE, FOLDER, save_file, save_folder};
use super::config_tls;
use super::context::CommandContext;
use super::error::{CommandError, SYNTAX};
use super::info::limit;
use super::text::{self, quote};
use crate::glob::{LetterCase, matches};
use crate::keyspace_events::{KeyspaceEvents, UnknownEventClass};
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::{
    ClientsMemory, Endpoint, LiveParameter, LiveSettings, OutputLimit, Password, ServerOptions,
    TlsSettings, WireProtocol,
};
use crate::settings_error::SettingsError;
use crate::state::shared::ServerShared;
use crate::state::users::User;

/// Why CONFIG SET refuses a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConfigError {
    /// The client may not change limits.
    Protected,
    /// The parameter cannot change.
    Immutable,
    /// A change would promise what this server does not do: the reason.
    Fixed(&'static str),
    NotSwitch,
    /// The value is none of these words.
    NotAmong(&'static [&'static str]),
    /// The request names the parameter twice.
    Repeated,
    NotInteger,
    NotMemory,
    NotMemoryOrPercent,
    OutOfRange {
        least: i64,
        most: i64,
    },
    /// A buffer limit has a number of words that is no multiple of 4.
    LimitWords,
    LimitClass,
    LimitValue,
    EventClass,
    /// The files of TLS cannot be used.
    Tls,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConfigError::Protected => "can't set protected config",
            ConfigError::Immutable => "can't set immutable config",
            ConfigError::Fixed(reason) => reason,
            ConfigError::NotSwitch => "argument must be 'yes' or 'no'",
            ConfigError::NotAmong(words) => {
                let words = words.join(", ");
                return write!(f, "argument(s) must be one of the following: {words}");
            }
            ConfigError::Repeated => "duplicate parameter",
            ConfigError::NotInteger => "argument couldn't be parsed into an integer",
            ConfigError::NotMemory => "argument must be a memory value",
            ConfigError::NotMemoryOrPercent => "argument must be a memory or percent value",
            ConfigError::OutOfRange { least, most } => {
                return write!(f, "argument must be between {least} and {most} inclusive");
            }
            ConfigError::EventClass => return UnknownEventClass.fmt(f),
            ConfigError::Tls => "Unable to update TLS configuration. Check server logs.",
            ConfigError::LimitWords => "Wrong number of arguments in buffer limit configuration.",
            ConfigError::LimitClass => {
                "Invalid client class specified in buffer limit configuration."
            }
            ConfigError::LimitValue => {
                "Error in hard, soft or soft_seconds setting in buffer limit configuration."
            }
        })
    }
}

/// Format of a number in the configuration.
#[derive(Clone, Copy)]
enum NumberFormat {
    Plain,
    /// May be negative: the setting is an `i64`.
    Signed,
    /// May end in a unit of memory.
    Memory,
    /// As [`NumberFormat::Memory`], or a percentage.
    MemoryOrPercent,
}

/// A number that CONFIG SET can change.
struct ConfigNumber {
    name: &'static str,
    spelling: NumberFormat,
    least: i64,
    most: i64,
    setting: fn(&LiveSettings) -> &AtomicU64,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const INT_MAX: u64 = i32::MAX as u64;
const LONG_MAX: i64 = i64::MAX;
/// [`INT_MAX`] and [`MIB`] as limits of numbers.
const INT: i64 = i32::MAX as i64;
const MEGABYTE: i64 = 1 << 20;

const fn number(
    name: &'static str,
    spelling: NumberFormat,
    (least, most): (i64, i64),
    setting: fn(&LiveSettings) -> &AtomicU64,
) -> ConfigNumber {
    ConfigNumber {
        name,
        spelling,
        least,
        most,
        setting,
    }
}

const NUMBERS: &[ConfigNumber] = &[
    number(
        "maxclients",
        NumberFormat::Plain,
        (1, u32::MAX as i64),
        |s| &s.clients_max,
    ),
    number("timeout", NumberFormat::Plain, (0, INT), |s| {
        &s.timeout_secs
    }),
    number("tcp-keepalive", NumberFormat::Plain, (0, INT), |s| {
        &s.keepalive_secs
    }),
    number(
        "busy-reply-threshold",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.busy_ms,
    ),
    number("lua-time-limit", NumberFormat::Plain, (0, LONG_MAX), |s| {
        &s.busy_ms
    }),
    number(
        "proto-max-bulk-len",
        NumberFormat::Memory,
        (MEGABYTE, LONG_MAX),
        |s| &s.bulk_bytes_max,
    ),
    number(
        "client-query-buffer-limit",
        NumberFormat::Memory,
        (MEGABYTE, LONG_MAX),
        |s| &s.input_bytes_max,
    ),
    number(
        "maxmemory-clients",
        NumberFormat::MemoryOrPercent,
        (0, LONG_MAX),
        |s| &s.clients_memory,
    ),
    number(MAXMEMORY, NumberFormat::Memory, (0, LONG_MAX), |s| {
        &s.maxmemory
    }),
    number(
        "slowlog-log-slower-than",
        NumberFormat::Signed,
        (-1, LONG_MAX),
        |s| &s.slowlog_micros,
    ),
    number("slowlog-max-len", NumberFormat::Plain, (0, LONG_MAX), |s| {
        &s.slowlog_len
    }),
    number(
        "backup-bytes-per-second",
        NumberFormat::Memory,
        (0, LONG_MAX),
        |s| &s.backup_bytes_per_sec,
    ),
    number(
        "latency-monitor-threshold",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.latency_ms,
    ),
    number(
        "tracking-table-max-keys",
        NumberFormat::Plain,
        (0, LONG_MAX),
        |s| &s.tracked_keys,
    ),
    number("acllog-max-len", NumberFormat::Plain, (0, LONG_MAX), |s| {
        &s.acl_log_len
    }),
];

/// Numbers of [`NUMBERS`] that are no limits: every client may change them.
const HARMLESS: [&str; 5] = [
    "tracking-table-max-keys",
    "acllog-max-len",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "latency-monitor-threshold",
];

/// The parameters that are no numbers.
const EVENTS: &str = "notify-keyspace-events";
const OUTPUT_LIMIT: &str = "client-output-buffer-limit";
const CHANNELS: &str = "acl-pubsub-default";
const PROTECTED_MODE: &str = "protected-mode";
/// Changes the password of the user `default`.
const PASSWORD: &str = "requirepass";

/// A number, and a constant of the cache.
const MAXMEMORY: &str = "maxmemory";
const POLICY: &str = "maxmemory-policy";

/// Values of [`CHANNELS`].
const CHANNEL_WORDS: &[&str] = &["allchannels", "resetchannels"];

/// Parameters that cannot change, with their values.
fn constants(shared: &ServerShared<'_>) -> Vec<(&'static str, String)> {
    let resp = |endpoint: &&Endpoint| endpoint.protocol == WireProtocol::Resp;
    let endpoints = shared.endpoints.iter().filter(resp);
    let bind: Vec<_> = endpoints
        .map(|endpoint| endpoint.addr.ip().to_string())
        .collect();
    let port = shared.port(WireProtocol::Resp).unwrap_or(0);
    let text = str::to_owned;
    let socket = shared.options.unix_socket.as_ref();
    let file = shared.options.acl_file.as_ref();
    let (most, policy) = limit(shared, &shared.store.stats());
    vec![
        (
            "aclfile",
            file.map_or(String::new(), |file| file.display().to_string()),
        ),
        ("appendfsync", text(shared.options.sync)),
        ("bind", bind.join(" ")),
        ("cluster-enabled", text("no")),
        ("databases", farbank_store::DATABASES.to_string()),
        ("io-threads", shared.counters.workers.len().to_string()),
        (MAXMEMORY, most.to_string()),
        (POLICY, text(policy)),
        ("port", port.to_string()),
        (
            "enable-protected-configs",
            text(shared.options.protected_actions.name()),
        ),
        (
            "enable-debug-command",
            text(shared.options.debug_command.name()),
        ),
        ("tcp-backlog", text("511")),
        ("tls-port", shared.tls_port().unwrap_or(0).to_string()),
        (
            "unixsocket",
            socket.map_or(String::new(), |socket| socket.path.display().to_string()),
        ),
        (
            "unixsocketperm",
            socket.map_or_else(|| text("0"), |socket| format!("{:o}", socket.mode)),
        ),
    ]
}

fn output_limit(settings: &LiveSettings) -> String {
    let get = |setting: &AtomicU64| setting.load(Ordering::Relaxed);
    let class = |name: &str, limit: &OutputLimit| {
        format!(
            "{name} {} {} {}",
            get(&limit.hard_bytes),
            get(&limit.soft_bytes),
            get(&limit.soft_secs)
        )
    };
    [
        class("normal", &settings.output_normal),
        class("pubsub", &settings.output_pubsub),
    ]
    .join(" ")
}

/// Every parameter with its value.
fn all(shared: &ServerShared<'_>) -> Vec<(&'static str, String)> {
    let mut all = constants(shared);
    for number in NUMBERS.iter().filter(|number| number.name != MAXMEMORY) {
        let value = (number.setting)(&shared.settings).load(Ordering::Relaxed);
        let text = match number.spelling {
            NumberFormat::Plain | NumberFormat::Memory => value.to_string(),
            NumberFormat::Signed => (value as i64).to_string(),
            NumberFormat::MemoryOrPercent => ClientsMemory::decode(value).to_string(),
        };
        all.push((number.name, text));
    }
    all.extend(
        FIXED
            .iter()
            .map(|fixed| (fixed.name, fixed.value.to_owned())),
    );
    all.extend(IGNORED.iter().map(|ignored| {
        let kept = shared.settings.kept.get(ignored.name);
        (
            ignored.name,
            kept.unwrap_or_else(|| ignored.default.to_owned()),
        )
    }));
    let settings = &shared.settings;
    let channels = CHANNEL_WORDS[usize::from(!settings.has_all_channels())];
    all.push((CHANNELS, channels.to_owned()));
    let is_protected = settings.protected_mode.load(Ordering::Relaxed) != 0;
    let switch = if is_protected { "yes" } else { "no" };
    all.push((PROTECTED_MODE, switch.to_owned()));
    let start = || shared.options.password.as_ref().map(Password::text);
    let password = settings.kept.get(PASSWORD).or_else(start);
    all.push((PASSWORD, password.unwrap_or_default()));
    all.extend(config_tls::values(&shared.tls.settings()));
    all.push((FOLDER, save_folder(shared).display().to_string()));
    all.push((FILE, save_file(shared)));
    all.push((EVENTS, shared.settings.keyspace_events().to_string()));
    all.push((OUTPUT_LIMIT, output_limit(&shared.settings)));
    all
}

/// `CONFIG GET pattern [pattern ...]`
pub(super) fn get(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let known = all(ctx.shared);
    let mut found = Vec::new();
    for (name, value) in &known {
        let name = name.as_bytes();
        let mut patterns = args
            .from(2)
            .filter(|pattern| matches(pattern, name, LetterCase::Fold));
        if let Some(pattern) = patterns.next() {
            // As in Redis, a pattern that is exactly a name is repeated in the client's letter case.
            let literal = pattern.eq_ignore_ascii_case(name);
            found.push((if literal { pattern } else { name }, value));
        }
    }
    reply::map(ctx.out, ctx.client.resp, found.len());
    for (name, value) in found {
        reply::bulk(ctx.out, name);
        reply::bulk(ctx.out, value.as_bytes());
    }
    Ok(())
}

/// A checked change that is not applied yet: the setting and its new value.
type CheckedChange<'a> = (&'a AtomicU64, u64);

/// Parses sizes such as `512mb` as Redis does: a text without digits is 0, text after a NUL is ignored, and a number
/// above 64 bits becomes the largest.
fn parse_memory(text: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 127;
    let text = quote(text, usize::MAX);
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => MIB,
        b"g" => 1_000_000_000,
        b"gb" => GIB,
        _ => return None,
    };
    if digits > DIGITS_MAX {
        return None;
    }
    let add = |sum: u64, digit: &u8| {
        let digit = u64::from(digit - b'0');
        sum.saturating_mul(10).saturating_add(digit)
    };
    Some(number.iter().fold(0, add).saturating_mul(scale))
}

/// Parses percentages such as `25%`.
fn parse_percent(text: &[u8]) -> Option<u8> {
    let digits = text.strip_suffix(b"%")?;
    let percent = parse_i64(digits).and_then(|percent| u8::try_from(percent).ok());
    percent.filter(|percent| *percent <= 100)
}

fn parse_number(number: &ConfigNumber, value: &[u8]) -> Result<u64, ConfigError> {
    let parsed = match number.spelling {
        NumberFormat::Plain | NumberFormat::Signed => {
            Some(parse_i64(value).ok_or(ConfigError::NotInteger)?)
        }
        NumberFormat::Memory => {
            i64::try_from(parse_memory(value).ok_or(ConfigError::NotMemory)?).ok()
        }
        NumberFormat::MemoryOrPercent => {
            if let Some(percent) = parse_percent(value) {
                return Ok(ClientsMemory::Percent(percent).encode());
            }
            let bytes = parse_memory(value).ok_or(ConfigError::NotMemoryOrPercent)?;
            i64::try_from(bytes).ok()
        }
    };
    let ConfigNumber { least, most, .. } = *number;
    match parsed.filter(|parsed| (least..=most).contains(parsed)) {
        Some(parsed) => Ok(parsed as u64),
        None => Err(ConfigError::OutOfRange { least, most }),
    }
}

/// Parses seconds as C's `strtoll` does: an empty text is 0.
fn parse_seconds(text: &[u8]) -> Option<u64> {
    let text = quote(text, usize::MAX);
    match text {
        [] => Some(0),
        _ if text.iter().all(u8::is_ascii_digit) => {
            let text = String::from_utf8_lossy(text);
            text.parse().ok().filter(|secs| *secs <= INT_MAX)
        }
        _ => None,
    }
}

/// Parses `class hard soft seconds ...`. The class of replicas, which this server does not have, is ignored. An empty
/// value changes nothing.
fn parse_output_limit<'a>(
    settings: &'a LiveSettings,
    value: &[u8],
) -> Result<Vec<CheckedChange<'a>>, ConfigError> {
    let words: Vec<_> = match value {
        [] => Vec::new(),
        _ => value.split(|&b| b == b' ').collect(),
    };
    if !words.len().is_multiple_of(4) {
        return Err(ConfigError::LimitWords);
    }
    let mut changes = Vec::new();
    for class in words.chunks(4) {
        let limit = match text::option(class[0]).as_slice() {
            b"normal" => Some(&settings.output_normal),
            b"pubsub" => Some(&settings.output_pubsub),
            b"slave" | b"replica" => None,
            _ => return Err(ConfigError::LimitClass),
        };
        let limits = (
            parse_memory(class[1]),
            parse_memory(class[2]),
            parse_seconds(class[3]),
        );
        let (Some(hard), Some(soft), Some(secs)) = limits else {
            return Err(ConfigError::LimitValue);
        };
        if let Some(limit) = limit {
            changes.push((&limit.hard_bytes, hard));
            changes.push((&limit.soft_bytes, soft));
            changes.push((&limit.soft_secs, secs));
        }
    }
    Ok(changes)
}

fn check<'a>(
    shared: &'a ServerShared<'_>,
    name: &'static str,
    value: &[u8],
    allowed: bool,
) -> Result<Vec<CheckedChange<'a>>, ConfigError> {
    let number = NUMBERS.iter().find(|number| number.name == name);
    let is_limit = number.is_some() && !HARMLESS.contains(&name);
    if !allowed && (is_limit || name == OUTPUT_LIMIT) {
        return Err(ConfigError::Protected);
    }
    if name == PASSWORD {
        return Ok(Vec::new()); // Every text is a password.
    }
    if config_tls::is_tls(name) {
        return match config_tls::set(&mut TlsSettings::default(), name, value) {
            true => Ok(Vec::new()),
            false => Err(ConfigError::NotAmong(config_tls::CLIENT_WORDS)),
        };
    }
    if config_paths::named(name).is_some() {
        return match allowed {
            true => config_paths::check(name, value)
                .map(|_| Vec::new())
                .map_err(ConfigError::Fixed),
            false => Err(ConfigError::Protected),
        };
    }
    let is_cache = shared.store.as_cache().is_some();
    if name == POLICY && !is_cache {
        return check_policy(value).map(|()| Vec::new());
    }
    if is_live(name) && !(name == MAXMEMORY && is_cache) {
        return check_live(&shared.settings, name, value);
    }
    if let Some(fixed) = FIXED.iter().find(|fixed| fixed.name == name) {
        return match fixed.value.as_bytes() == value {
            true => Ok(Vec::new()),
            false => Err(ConfigError::Fixed(fixed.reason)),
        };
    }
    if let Some(ignored) = IGNORED.iter().find(|ignored| ignored.name == name) {
        ignored_value(ignored, value)?;
        return Ok(Vec::new());
    }
    // An immutable parameter accepts only its current value.
    let same = |(known, now): &(&str, String)| *known == name && now.as_bytes() == value;
    if constants(shared).iter().any(same) {
        Ok(Vec::new())
    } else {
        Err(ConfigError::Immutable)
    }
}

/// Checks a value of [`POLICY`] for a store that evicts no keys.
fn check_policy(value: &[u8]) -> Result<(), ConfigError> {
    let is = |word: &&&str| value.eq_ignore_ascii_case(word.as_bytes());
    match POLICIES.iter().find(is) {
        Some(&"noeviction") => Ok(()),
        Some(_) => Err(ConfigError::Fixed(
            "this server evicts no keys: only noeviction can be set",
        )),
        None => Err(ConfigError::NotAmong(POLICIES)),
    }
}

/// Checks a parameter that has an effect.
fn check_live<'a>(
    settings: &'a LiveSettings,
    name: &str,
    value: &[u8],
) -> Result<Vec<CheckedChange<'a>>, ConfigError> {
    if name == OUTPUT_LIMIT {
        return parse_output_limit(settings, value);
    }
    if let Some(number) = NUMBERS.iter().find(|number| number.name == name) {
        let parsed = parse_number(number, value)?;
        return Ok(vec![((number.setting)(settings), parsed)]);
    }
    if name == CHANNELS {
        let is = |word: &&str| value.eq_ignore_ascii_case(word.as_bytes());
        let at = CHANNEL_WORDS.iter().position(is);
        let at = at.ok_or(ConfigError::NotAmong(CHANNEL_WORDS))?;
        return Ok(vec![(&settings.all_channels, u64::from(at == 0))]);
    }
    if name == PROTECTED_MODE {
        let is_on = value.eq_ignore_ascii_case(b"yes");
        return match is_switch(value) {
            true => Ok(vec![(&settings.protected_mode, u64::from(is_on))]),
            false => Err(ConfigError::NotSwitch),
        };
    }
    let events: KeyspaceEvents = std::str::from_utf8(quote(value, usize::MAX))
        .map_err(|_| ConfigError::EventClass)?
        .parse()
        .map_err(|UnknownEventClass { .. }| ConfigError::EventClass)?;
    Ok(vec![(&settings.keyspace_events, events.bits().into())])
}

/// Sets the parameters that the server starts with. A later value of a parameter replaces an earlier one.
pub(crate) fn apply(settings: &LiveSettings, parameters: &[LiveParameter]) {
    for parameter in parameters {
        // They were checked when they were parsed.
        if let Some(name) = config_paths::named(&parameter.name) {
            if let Ok(path) = config_paths::check(name, parameter.value.as_bytes()) {
                settings.kept.set(name, path);
            }
            continue;
        }
        let changes = check_live(settings, &parameter.name, parameter.value.as_bytes());
        for (setting, value) in changes.unwrap_or_default() {
            setting.store(value, Ordering::Relaxed);
        }
    }
    settings.note_slow_thresholds();
}

impl FromStr for LiveParameter {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<LiveParameter, SettingsError> {
        let parts = text.split_once('=');
        let (name, value) = parts.ok_or_else(|| SettingsError::new("must be NAME=VALUE"))?;
        let name = name.to_ascii_lowercase();
        if !is_live(&name) {
            let why = format!("CONFIG SET cannot change a parameter {name:?}");
            return Err(SettingsError::new(why));
        }
        let settings = LiveSettings::new(1, &ServerOptions::default());
        let checked = match config_paths::named(&name) {
            Some(name) => config_paths::check(name, value.as_bytes())
                .map(drop)
                .map_err(ConfigError::Fixed),
            None => check_live(&settings, &name, value.as_bytes()).map(drop),
        };
        checked.map_err(|why| SettingsError::new(format!("{name}: {why}")))?;
        let value = value.to_owned();
        Ok(LiveParameter { name, value })
    }
}

/// Returns the value of a parameter without effect as CONFIG GET shows it.
fn ignored_value(parameter: &IgnoredParameter, value: &[u8]) -> Result<String, ConfigError> {
    let shown = quote(value, usize::MAX);
    let text = || String::from_utf8_lossy(shown).into_owned();
    match parameter.kind {
        ValueKind::Text => Ok(text()),
        ValueKind::Switch if is_switch(shown) => Ok(text().to_ascii_lowercase()),
        ValueKind::Switch => Err(ConfigError::NotSwitch),
        ValueKind::Number(least, most) => match parse_i64(value) {
            None => Err(ConfigError::NotInteger),
            Some(number) if (least..=most).contains(&number) => Ok(number.to_string()),
            Some(_) => Err(ConfigError::OutOfRange { least, most }),
        },
        ValueKind::Memory => {
            let bytes = parse_memory(value).ok_or(ConfigError::NotMemory)?;
            Ok(bytes.to_string())
        }
        ValueKind::Word(words) => {
            let mut words_like = words
                .iter()
                .filter(|word| shown.eq_ignore_ascii_case(word.as_bytes()));
            let word = words_like.next().ok_or(ConfigError::NotAmong(words))?;
            Ok((*word).to_owned())
        }
    }
}

/// `CONFIG SET parameter value [parameter value ...]`
pub(super) fn set(ctx: &mut CommandContext<'_>, args: Args<'_>) -> Result<(), CommandError> {
    if !args.len().is_multiple_of(2) {
        return Err(SYNTAX);
    }
    let shared = ctx.shared;
    let allowed = ctx.may_protected();
    // As in Redis, all names are checked before any value.
    let (mut changes, mut ignored, mut password) = (Vec::new(), Vec::new(), None);
    let mut tls: Option<(&str, TlsSettings)> = None;
    for (name, value) in parameters(shared, args)? {
        let change = check(shared, name, value, allowed);
        changes.extend(change.map_err(|why| refused(name.as_bytes(), why))?);
        if name == PASSWORD {
            password = Some(value);
        }
        if config_tls::is_tls(name) {
            let (_, settings) = tls.get_or_insert_with(|| (name, shared.tls.settings()));
            config_tls::set(settings, name, value);
        }
        let own = IGNORED.iter().find(|own| own.name == name);
        ignored.extend(own.and_then(|own| Some((name, ignored_value(own, value).ok()?))));
        if config_paths::named(name).is_some() {
            ignored.extend(
                config_paths::check(name, value)
                    .ok()
                    .map(|path| (name, path)),
            );
        }
    }
    if let Some((name, settings)) = tls {
        if !ctx.executes_long {
            return Err(CommandError::Long); // It reads files.
        }
        replace_tls(shared, name, settings)?;
    }
    for (name, value) in ignored {
        shared.settings.kept.set(name, value);
    }
    for (setting, value) in changes {
        setting.store(value, Ordering::Relaxed);
    }
    shared.settings.note_slow_thresholds();
    if let Some(password) = password {
        set_password(ctx, password);
    }
    reply::ok(ctx.out);
    Ok(())
}

/// Reads the files of TLS and uses them for the next connections. `name`: the first parameter that the request sets.
fn replace_tls(
    shared: &ServerShared<'_>,
    name: &str,
    settings: TlsSettings,
) -> Result<(), CommandError> {
    shared.tls.replace(settings).map_err(|why| {
        tracing::error!("cannot change the settings of TLS: {why}");
        refused(name.as_bytes(), ConfigError::Tls)
    })
}

/// Sets the password of the user `default`. Connections that have authenticated stay so.
fn set_password(ctx: &mut CommandContext<'_>, password: &[u8]) {
    let shown = String::from_utf8_lossy(password).into_owned();
    ctx.shared.settings.kept.set(PASSWORD, shown);
    let changed: Result<(), Infallible> = ctx.shared.users.change(|users| {
        let mut default = User::clone(&users.default_user());
        default.set_password(password);
        users.insert(default);
        Ok(())
    });
    match changed {
        Ok(()) => ctx.users_changed(),
    }
}

fn refused(argument: &[u8], why: ConfigError) -> CommandError {
    let why = why.to_string();
    let text = [
        b"ERR CONFIG SET failed (possibly related to argument '",
        quote(argument, usize::MAX),
        b"') - ",
        why.as_bytes(),
    ];
    CommandError::Detailed(text.concat())
}

/// Returns the names and values of CONFIG SET. Fails on unknown and repeated names.
fn parameters<'a>(
    shared: &ServerShared<'_>,
    args: Args<'a>,
) -> Result<Vec<(&'static str, &'a [u8])>, CommandError> {
    let known: Vec<_> = all(shared).into_iter().map(|(name, _)| name).collect();
    let mut named: Vec<(&'static str, &[u8])> = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let asked = args.at(at);
        let name = known
            .iter()
            .find(|name| asked.eq_ignore_ascii_case(name.as_bytes()));
        let Some(&name) = name else {
            let text = [
                b"ERR Unknown option or number of arguments for CONFIG SET - '",
                quote(asked, usize::MAX),
                b"'",
            ];
            return Err(CommandError::Detailed(text.concat()));
        };
        if named.iter().any(|(other, _)| *other == name) {
            return Err(refused(asked, ConfigError::Repeated));
        }
        named.push((name, args.at(at + 1)));
    }
    Ok(named)
}

/// Whether CONFIG SET can change the parameter `name` while the server runs, with an effect.
#[must_use]
pub fn is_live(name: &str) -> bool {
    [EVENTS, OUTPUT_LIMIT, CHANNELS, PROTECTED_MODE].contains(&name)
        || config_paths::named(name).is_some()
        || NUMBERS.iter().any(|number| number.name == name)
}

/// `CONFIG RESETSTAT`
pub(super) fn resetstat(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.shared.counters.reset();
    ctx.shared.users.reset_counts();
    ctx.shared.accepted.store(0, Ordering::Relaxed);
    ctx.shared.rejected.store(0, Ordering::Relaxed);
    let expired = ctx.shared.store.stats().expired_keys;
    ctx.shared
        .expired_at_reset
        .store(expired, Ordering::Relaxed);
    reply::ok(ctx.out);
    Ok(())
}

/// `CONFIG REWRITE`
pub(super) fn rewrite(_: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    Err(CommandError::Fixed(
        "ERR The server is running without a config file",
    ))
}

/// `CONFIG HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "config");
    Ok(())
}
