//! Commands about the configuration: CONFIG and its subcommands.
//!
//! Few parameters can change while the server runs. The others exist because clients query them; their values describe
//! how this server behaves.

use std::convert::Infallible;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::help_of;
use super::config_aliases::{ALIASES, name_of};
use super::config_error::ConfigError;
use super::config_fixed::{FIXED, IGNORED, IgnoredParameter, ValueKind, is_switch};
use super::config_numbers::{HARMLESS, NUMBERS, parse_memory, parse_number};
use super::config_paths::{self, FILE, FOLDER, save_file, save_folder};
use super::config_percentiles;
use super::config_tls;
use super::context::CommandContext;
use super::error::{CommandError, SYNTAX};
use super::info::limit;
use super::maxmemory;
use super::text::{self, quote};
use crate::eviction_policy::POLICIES;
use crate::glob::{LetterCase, matches};
use crate::keyspace_events::{KeyspaceEvents, UnknownEventClass};
use crate::protocol::resp::number::parse_i64;
use crate::protocol::resp::{Args, reply};
use crate::settings::{
    Endpoint, LiveParameter, LiveSettings, OutputLimit, ServerOptions, TlsSettings, WireProtocol,
};
use crate::settings_error::SettingsError;
use crate::state::shared::ServerShared;
use crate::state::users::User;

/// The parameters that are no numbers.
pub(super) const EVENTS: &str = "notify-keyspace-events";
pub(super) const OUTPUT_LIMIT: &str = "client-output-buffer-limit";
/// Changes the password of the user `default`.
pub(super) const PASSWORD: &str = "requirepass";

/// A parameter that is `yes` or `no`. Its setting is 1 or 0.
pub(super) struct ConfigSwitch {
    pub(super) name: &'static str,
    setting: fn(&LiveSettings) -> &AtomicU64,
}

impl ConfigSwitch {
    pub(super) fn shown(&self, settings: &LiveSettings) -> String {
        let is_on = (self.setting)(settings).load(Ordering::Relaxed) != 0;
        if is_on { "yes" } else { "no" }.to_owned()
    }
}

pub(super) const SWITCHES: &[ConfigSwitch] = &[
    ConfigSwitch {
        name: "latency-tracking",
        setting: |s| &s.latency_tracking,
    },
    ConfigSwitch {
        name: "protected-mode",
        setting: |s| &s.protected_mode,
    },
];

/// A parameter whose values are words. Its setting is the number of the word.
pub(super) struct ConfigWord {
    pub(super) name: &'static str,
    words: &'static [&'static str],
    setting: fn(&LiveSettings) -> &AtomicU64,
}

impl ConfigWord {
    pub(super) fn shown(&self, settings: &LiveSettings) -> String {
        let number = (self.setting)(settings).load(Ordering::Relaxed);
        self.words[number as usize].to_owned()
    }

    fn parse(&self, value: &[u8]) -> Result<u64, ConfigError> {
        let is = |word: &&str| value.eq_ignore_ascii_case(word.as_bytes());
        let at = self.words.iter().position(is);
        let at = at.ok_or(ConfigError::NotAmong(self.words))?;
        Ok(at as u64)
    }
}

pub(super) const WORDS: &[ConfigWord] = &[
    ConfigWord {
        name: "acl-pubsub-default",
        words: &["allchannels", "resetchannels"],
        setting: |s| &s.pubsub_default,
    },
    ConfigWord {
        name: POLICY,
        words: POLICIES,
        setting: |s| &s.maxmemory_policy,
    },
];

/// The limit of live records, and which keys are evicted above it. The cache has its own.
pub(super) const MAXMEMORY: &str = "maxmemory";
pub(super) const POLICY: &str = "maxmemory-policy";

/// The addresses that Redis clients connect to.
pub(super) fn addresses(shared: &ServerShared<'_>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let resp = |endpoint: &&Endpoint| endpoint.protocol == WireProtocol::Resp;
    for endpoint in shared.identity.endpoints.iter().filter(resp) {
        if !addresses.contains(&endpoint.addr.ip()) {
            addresses.push(endpoint.addr.ip());
        }
    }
    addresses
}

/// Parameters that cannot change, with their values. They hide those of [`NUMBERS`] and [`WORDS`] with the same name.
fn constants(shared: &ServerShared<'_>) -> Vec<(&'static str, String)> {
    let bind: Vec<_> = addresses(shared).iter().map(IpAddr::to_string).collect();
    let port = shared.port(WireProtocol::Resp).unwrap_or(0);
    let text = str::to_owned;
    let socket = shared.options.unix_socket(WireProtocol::Resp);
    let file = shared.options.acl_file.as_ref();
    let mut constants = vec![
        (
            "aclfile",
            file.map_or(String::new(), |file| file.display().to_string()),
        ),
        ("appendfsync", text(shared.options.sync)),
        ("bind", bind.join(" ")),
        ("cluster-enabled", text("no")),
        ("databases", farbank_store::DATABASES.to_string()),
        (
            "io-threads",
            shared.stats.counters.workers.len().to_string(),
        ),
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
        (
            "tls-port",
            shared.tls_port(WireProtocol::Resp).unwrap_or(0).to_string(),
        ),
        (
            "unixsocket",
            socket.map_or(String::new(), |socket| socket.path.display().to_string()),
        ),
        (
            "unixsocketperm",
            socket.map_or_else(|| text("0"), |socket| format!("{:o}", socket.mode)),
        ),
    ];
    if shared.store.as_cache().is_some() {
        let (most, policy) = limit(shared, &shared.store.stats());
        constants.extend([(MAXMEMORY, most.to_string()), (POLICY, text(policy))]);
    }
    constants
}

fn output_limit(settings: &LiveSettings) -> String {
    let class = |name: &str, limit: &OutputLimit| {
        let [hard, soft, secs] = limit.numbers();
        format!("{name} {hard} {soft} {secs}")
    };
    [
        class("normal", &settings.output_normal),
        class("slave", &settings.output_replica),
        class("pubsub", &settings.output_pubsub),
    ]
    .join(" ")
}

/// The parameter `requirepass`; empty without a password.
pub(super) fn password(shared: &ServerShared<'_>) -> Vec<u8> {
    let start = || {
        shared
            .options
            .password
            .as_ref()
            .map(|own| own.bytes().to_vec())
    };
    let password = shared.settings.kept.bytes(PASSWORD).or_else(start);
    password.unwrap_or_default()
}

/// The value of a parameter without effect.
pub(super) fn ignored_text(settings: &LiveSettings, ignored: &IgnoredParameter) -> String {
    let kept = settings.kept.get(ignored.name);
    kept.unwrap_or_else(|| ignored.default.to_owned())
}

/// Every parameter with its value.
fn all(shared: &ServerShared<'_>) -> Vec<(&'static str, Vec<u8>)> {
    let texts = texts(shared).into_iter();
    let mut all: Vec<_> = texts
        .map(|(name, value)| (name, value.into_bytes()))
        .collect();
    all.push((PASSWORD, password(shared)));
    let aliases = ALIASES.iter().filter_map(|&(alias, name)| {
        let (_, value) = all.iter().find(|(known, _)| *known == name)?;
        Some((alias, value.clone()))
    });
    let aliases: Vec<_> = aliases.collect();
    all.extend(aliases);
    all
}

/// Every parameter whose values are UTF-8, with its value.
fn texts(shared: &ServerShared<'_>) -> Vec<(&'static str, String)> {
    let mut all = constants(shared);
    let settings = &shared.settings;
    let live = NUMBERS
        .iter()
        .map(|number| (number.name, number.shown(settings)));
    let live = live.chain(WORDS.iter().map(|word| (word.name, word.shown(settings))));
    let live = live.chain(SWITCHES.iter().map(|own| (own.name, own.shown(settings))));
    let is_constant = |name: &str| all.iter().any(|(constant, _)| *constant == name);
    let live: Vec<_> = live.filter(|(name, _)| !is_constant(name)).collect();
    all.extend(live);
    all.extend(
        FIXED
            .iter()
            .map(|fixed| (fixed.name, fixed.value.to_owned())),
    );
    let ignored = |own: &IgnoredParameter| (own.name, ignored_text(settings, own));
    all.extend(IGNORED.iter().map(ignored));
    all.extend(config_tls::values(&shared.security.tls.settings()));
    all.push((FOLDER, save_folder(shared).display().to_string()));
    all.push((FILE, save_file(shared)));
    all.push((
        config_percentiles::NAME,
        config_percentiles::value(settings),
    ));
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
        reply::bulk(ctx.out, value);
    }
    Ok(())
}

/// A checked change that is not applied yet.
enum CheckedChange<'a> {
    /// The setting and its new value.
    Number(&'a AtomicU64, u64),
    /// The parameter and the text that CONFIG GET shows.
    Text(&'static str, String),
}

impl CheckedChange<'_> {
    fn apply(self, settings: &LiveSettings) {
        match self {
            CheckedChange::Number(setting, value) => setting.store(value, Ordering::Relaxed),
            CheckedChange::Text(name, text) => settings.kept.set(name, text),
        }
    }
}

/// The largest value of an `int` of Redis.
const INT_MAX: u64 = i32::MAX as u64;

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

/// Parses `class hard soft seconds ...`. The limits of replicas, which this server does not have, have no effect. An
/// empty value changes nothing.
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
            b"normal" => &settings.output_normal,
            b"pubsub" => &settings.output_pubsub,
            b"slave" | b"replica" => &settings.output_replica,
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
        changes.push(CheckedChange::Number(&limit.hard_bytes, hard));
        changes.push(CheckedChange::Number(&limit.soft_bytes, soft));
        changes.push(CheckedChange::Number(&limit.soft_secs, secs));
    }
    Ok(changes)
}

fn check<'a>(
    shared: &'a ServerShared<'_>,
    name: &'static str,
    value: &[u8],
    allowed: bool,
) -> Result<Vec<CheckedChange<'a>>, ConfigError> {
    let name = name_of(name);
    let number = NUMBERS.iter().find(|number| number.name == name);
    let is_limit = number.is_some() && !HARMLESS.contains(&name);
    if !allowed && (is_limit || [OUTPUT_LIMIT, POLICY].contains(&name)) {
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
    if config_paths::named(name).is_some() && !allowed {
        return Err(ConfigError::Protected);
    }
    if let Some((_, now)) = constants(shared).iter().find(|(known, _)| *known == name) {
        return match now.as_bytes() == value {
            true => Ok(Vec::new()),
            false => Err(ConfigError::Immutable),
        };
    }
    if is_settable(name) {
        return check_settable(&shared.settings, name, value);
    }
    if let Some(fixed) = FIXED.iter().find(|fixed| fixed.name == name) {
        return match fixed.value.as_bytes() == value {
            true => Ok(Vec::new()),
            false => Err(ConfigError::Fixed(fixed.reason)),
        };
    }
    Err(ConfigError::Immutable)
}

/// Checks a value of a parameter for which [`is_settable`] is true. `name` is not an alias.
fn check_settable<'a>(
    settings: &'a LiveSettings,
    name: &str,
    value: &[u8],
) -> Result<Vec<CheckedChange<'a>>, ConfigError> {
    if let Some(ignored) = IGNORED.iter().find(|ignored| ignored.name == name) {
        let text = ignored_value(ignored, value)?;
        return Ok(vec![CheckedChange::Text(ignored.name, text)]);
    }
    if name == OUTPUT_LIMIT {
        return parse_output_limit(settings, value);
    }
    if name == config_percentiles::NAME {
        let text = config_percentiles::check(value)?;
        return Ok(vec![CheckedChange::Text(config_percentiles::NAME, text)]);
    }
    if let Some(name) = config_paths::named(name) {
        let path = config_paths::check(name, value).map_err(ConfigError::Fixed)?;
        return Ok(vec![CheckedChange::Text(name, path)]);
    }
    if let Some(number) = NUMBERS.iter().find(|number| number.name == name) {
        let parsed = parse_number(number, value)?;
        return Ok(vec![CheckedChange::Number(
            (number.setting)(settings),
            parsed,
        )]);
    }
    if let Some(word) = WORDS.iter().find(|word| word.name == name) {
        let parsed = word.parse(value)?;
        return Ok(vec![CheckedChange::Number(
            (word.setting)(settings),
            parsed,
        )]);
    }
    if let Some(switch) = SWITCHES.iter().find(|switch| switch.name == name) {
        let is_on = u64::from(value.eq_ignore_ascii_case(b"yes"));
        return match is_switch(value) {
            true => Ok(vec![CheckedChange::Number(
                (switch.setting)(settings),
                is_on,
            )]),
            false => Err(ConfigError::NotSwitch),
        };
    }
    let events: KeyspaceEvents = std::str::from_utf8(quote(value, usize::MAX))
        .map_err(|_| ConfigError::EventClass)?
        .parse()
        .map_err(|UnknownEventClass { .. }| ConfigError::EventClass)?;
    Ok(vec![CheckedChange::Number(
        &settings.keyspace_events,
        events.bits().into(),
    )])
}

/// Sets the parameters that the server starts with. A later value of a parameter replaces an earlier one.
pub(crate) fn apply(settings: &LiveSettings, parameters: &[LiveParameter]) {
    for parameter in parameters {
        // They were checked when they were parsed.
        let changes = check_settable(settings, &parameter.name, parameter.value.as_bytes());
        for change in changes.unwrap_or_default() {
            change.apply(settings);
        }
    }
    settings.note_slow_thresholds();
}

impl FromStr for LiveParameter {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<LiveParameter, SettingsError> {
        let parts = text.split_once('=');
        let (name, value) = parts.ok_or_else(|| SettingsError::new("must be NAME=VALUE"))?;
        let name = name_of(&name.to_ascii_lowercase()).to_owned();
        if !is_settable(&name) {
            let why = format!("CONFIG SET cannot change a parameter {name:?}");
            return Err(SettingsError::new(why));
        }
        let settings = LiveSettings::new(1, &ServerOptions::default());
        let checked = check_settable(&settings, &name, value.as_bytes()).map(drop);
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
        ValueKind::Memory(least) => {
            let bytes = parse_memory(value).ok_or(ConfigError::NotMemory)?;
            let (least, most) = (least.cast_signed(), i64::MAX);
            match i64::try_from(bytes).is_ok_and(|bytes| bytes >= least) {
                true => Ok(bytes.to_string()),
                false => Err(ConfigError::OutOfRange { least, most }),
            }
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
    let (mut changes, mut password) = (Vec::new(), None);
    let mut tls = Vec::new();
    for (name, value) in parameters(shared, args)? {
        let change = check(shared, name, value, allowed);
        changes.extend(change.map_err(|why| refused(name.as_bytes(), why))?);
        if name == PASSWORD {
            password = Some(value);
        }
        if config_tls::is_tls(name) {
            tls.push((name, value));
        }
    }
    if let Some((name, _)) = tls.first() {
        if !ctx.executes_long {
            return Err(CommandError::Long); // It reads files.
        }
        change_tls(shared, name, &tls)?;
    }
    for change in changes {
        change.apply(&shared.settings);
    }
    shared.settings.note_slow_thresholds();
    shared.follow_eviction_policy();
    maxmemory::evict_for(ctx); // The limit may be lower now.
    if let Some(password) = password {
        set_password(ctx, password);
    }
    reply::ok(ctx.out);
    Ok(())
}

/// Sets `parameters` of TLS, reads its files and uses them for the next connections. `name`: the first parameter that the request sets.
fn change_tls(
    shared: &ServerShared<'_>,
    name: &str,
    parameters: &[(&str, &[u8])],
) -> Result<(), CommandError> {
    let change = |settings: &mut TlsSettings| {
        for (name, value) in parameters {
            config_tls::set(settings, name, value);
        }
    };
    shared.security.tls.change(change).map_err(|why| {
        tracing::error!("cannot change the settings of TLS: {why}");
        refused(name.as_bytes(), ConfigError::Tls)
    })
}

/// Sets the password of the user `default`. Connections that have authenticated stay so.
fn set_password(ctx: &mut CommandContext<'_>, password: &[u8]) {
    ctx.shared.settings.kept.set(PASSWORD, password);
    let changed: Result<(), Infallible> = ctx.shared.security.users.change(|users| {
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

/// Whether a start and CONFIG SET can give the parameter `name` any of its values.
#[must_use]
pub fn is_settable(name: &str) -> bool {
    let name = name_of(name);
    [EVENTS, OUTPUT_LIMIT, config_percentiles::NAME].contains(&name)
        || config_paths::named(name).is_some()
        || SWITCHES.iter().any(|switch| switch.name == name)
        || NUMBERS.iter().any(|number| number.name == name)
        || WORDS.iter().any(|word| word.name == name)
        || IGNORED.iter().any(|ignored| ignored.name == name)
}

/// `CONFIG RESETSTAT`
pub(super) fn resetstat(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    ctx.shared.stats.counters.reset();
    ctx.shared.security.users.reset_counts();
    ctx.shared.stats.accepted.store(0, Ordering::Relaxed);
    ctx.shared.stats.rejected.store(0, Ordering::Relaxed);
    let expired = ctx.shared.store.stats().expired_keys;
    ctx.shared
        .stats
        .expired_at_reset
        .store(expired, Ordering::Relaxed);
    reply::ok(ctx.out);
    Ok(())
}

/// `CONFIG HELP`
pub(super) fn help(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    help_of(ctx, "config");
    Ok(())
}
