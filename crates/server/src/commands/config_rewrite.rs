//! CONFIG REWRITE: writes the parameters and the users to the redis.conf that the server was started with.
//!
//! | parameter | its line |
//! |---|---|
//! | one that CONFIG SET changes | its value, if the file has the directive or the value is not the default |
//! | one that only a start sets, such as `port` | the same, with the value that the server was started with |
//! | `dir`, `latency-tracking-info-percentiles`, users | always, as in Redis |
//! | one that cannot have another value here, such as `save` | as it is in the file |
//! | `pool` | if the pool is not `farbank.pool` in `dir` |
//!
//! The new file replaces the old one by a rename (`state::durable_file`): after a crash it is the old or the new one. A symbolic
//! link stays, and the file that it leads to is replaced.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::acl::describe;
use super::config::{self, EVENTS, OUTPUT_LIMIT, PASSWORD, SWITCHES, WORDS};
use super::config_aliases::name_of_alias;
use super::config_fixed::{IGNORED, IgnoredParameter, ValueKind};
use super::config_numbers::{NUMBERS, parse_memory};
use super::config_paths::{FILE, FILE_DEFAULT, FOLDER, save_file, save_folder};
use super::config_percentiles;
use super::config_tls;
use super::context::CommandContext;
use super::context::command_table::CommandTable;
use super::error::CommandError;
use crate::config_lines::{ConfigLines, NewLine, bind_words, memory};
use crate::protocol::resp::parse::{quoted, words_of};
use crate::protocol::resp::{Args, reply};
use crate::settings::{ConfigFile, LiveSettings, ServerOptions, WireProtocol};
use crate::state::durable_file::{FileAccess, replace_file};
use crate::state::shared::ServerShared;

/// Most bytes of the old file.
const BYTES_MAX: u64 = 64 << 20;
const NO_FILE: CommandError =
    CommandError::Fixed("ERR The server is running without a config file");
/// File of the pool in the folder `dir`, unless there is a directive `pool`.
const POOL_FILE: &str = "farbank.pool";

/// `CONFIG REWRITE`
pub(super) fn rewrite(ctx: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    rewrite_file(ctx, false, "Rewriting config file")
}

/// `DEBUG CONFIG-REWRITE-FORCE-ALL`: also writes the parameters that have their defaults.
pub(super) fn rewrite_all(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    rewrite_file(ctx, true, "CONFIG-REWRITE-FORCE-ALL failed")
}

fn rewrite_file(
    ctx: &mut CommandContext<'_>,
    appends_all: bool,
    failure: &str,
) -> Result<(), CommandError> {
    let shared = ctx.shared;
    let file = shared.options.config_file.as_ref().ok_or(NO_FILE)?;
    if !ctx.executes_long {
        return Err(CommandError::Long);
    }
    let path = fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
    let written = read_old(&path).and_then(|old| {
        let mut lines = ConfigLines::new(&old, appends_all, rewritten_name);
        set_all(&mut lines, shared, ctx.client.table, file);
        replace_file(&path, &lines.into_text(), FileAccess::AsBefore)
    });
    match written {
        Ok(()) => {
            tracing::info!(path = %path.display(), "CONFIG REWRITE executed with success");
            reply::ok(ctx.out);
            Ok(())
        }
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "CONFIG REWRITE failed");
            let text = format!("ERR {failure}: {}", system_text(&error));
            Err(CommandError::Detailed(text.into_bytes()))
        }
    }
}

/// The text of a system error, as C's `strerror` returns it.
fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error ").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Reads the file. It is empty if it does not exist any more.
fn read_old(path: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(path) {
        Ok(found) if found.len() > BYTES_MAX => {
            let text = format!("{} bytes, at most {BYTES_MAX} are allowed", found.len());
            Err(io::Error::other(text))
        }
        Ok(_) => fs::read(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the name under which a directive is rewritten, if that is not its own.
fn rewritten_name(directive: &[u8]) -> Option<&'static str> {
    match std::str::from_utf8(directive).ok()? {
        "sync" => Some("appendfsync"),
        directive => name_of_alias(directive),
    }
}

/// Sets the lines of all parameters and users.
fn set_all(
    lines: &mut ConfigLines,
    shared: &ServerShared<'_>,
    table: &'static CommandTable,
    file: &ConfigFile,
) {
    let defaults = ServerOptions::default();
    let defaults = LiveSettings::new(defaults.clients_max, &defaults);
    set_live(lines, shared, &defaults);
    for ignored in IGNORED {
        set_ignored(lines, &shared.settings, ignored);
    }
    set_output_limits(lines, &shared.settings, &defaults);
    set_tls(lines, shared);
    set_start(lines, shared);
    set_bind(lines, shared, &file.default_bind);
    set_folder(lines, shared, &file.pool);
    set_users(lines, shared, table);
}

/// Sets the line of a text that has quotes.
fn set_text(lines: &mut ConfigLines, name: &'static str, value: &[u8], default: &[u8]) {
    lines.set(name, &quoted(value), NewLine::unless(value == default));
}

/// As [`set_text`], for a text that is not in the file if it is empty.
fn set_optional(lines: &mut ConfigLines, name: &'static str, value: &[u8]) {
    match value {
        [] => lines.remove(name),
        _ => set_text(lines, name, value, b""),
    }
}

fn set_word(lines: &mut ConfigLines, name: &'static str, value: &str, default: &str) {
    lines.set(name, value.as_bytes(), NewLine::unless(value == default));
}

/// Sets the parameters that have an effect and that CONFIG SET changes.
fn set_live(lines: &mut ConfigLines, shared: &ServerShared<'_>, defaults: &LiveSettings) {
    let settings = &shared.settings;
    let is_cache = shared.store.as_cache().is_some();
    for number in NUMBERS {
        // The limit of a cache is its capacity.
        if !(is_cache && number.name == config::MAXMEMORY) {
            let (value, default) = (number.rewritten(settings), number.rewritten(defaults));
            set_word(lines, number.name, &value, &default);
        }
    }
    for word in WORDS {
        if !(is_cache && word.name == config::POLICY) {
            set_word(
                lines,
                word.name,
                &word.shown(settings),
                &word.shown(defaults),
            );
        }
    }
    for switch in SWITCHES {
        set_word(
            lines,
            switch.name,
            &switch.shown(settings),
            &switch.shown(defaults),
        );
    }
    let events = settings.keyspace_events().to_string();
    set_text(lines, EVENTS, events.as_bytes(), b"");
    let percentiles = match config_percentiles::value(settings) {
        none if none.is_empty() => "\"\"".to_owned(),
        percentiles => percentiles,
    };
    lines.set(
        config_percentiles::NAME,
        percentiles.as_bytes(),
        NewLine::Appended,
    );
    // With an ACL file, the password of the user `default` is there.
    match shared.options.acl_file {
        Some(_) => lines.remove(PASSWORD),
        None => set_optional(lines, PASSWORD, &config::password(shared)),
    }
}

fn set_ignored(lines: &mut ConfigLines, settings: &LiveSettings, ignored: &IgnoredParameter) {
    let value = config::ignored_text(settings, ignored);
    match ignored.kind {
        ValueKind::Text => set_optional(lines, ignored.name, value.as_bytes()),
        ValueKind::Memory(_) => {
            let in_units = |text: &str| parse_memory(text.as_bytes()).map_or(text.into(), memory);
            let (value, default) = (in_units(&value), in_units(ignored.default));
            set_word(lines, ignored.name, &value, &default);
        }
        ValueKind::Switch | ValueKind::Number(..) | ValueKind::Word(_) => {
            set_word(lines, ignored.name, &value, ignored.default);
        }
    }
}

/// As in Redis, each class takes the next line of the directive, whatever class that line is about.
fn set_output_limits(lines: &mut ConfigLines, settings: &LiveSettings, defaults: &LiveSettings) {
    let limits = |of: &LiveSettings| {
        [&of.output_normal, &of.output_replica, &of.output_pubsub].map(|limit| limit.numbers())
    };
    let classes = ["normal", "replica", "pubsub"].into_iter();
    for (class, (own, default)) in classes.zip(limits(settings).into_iter().zip(limits(defaults))) {
        let [hard, soft, secs] = own;
        let value = format!("{class} {} {} {secs}", memory(hard), memory(soft));
        lines.set(
            OUTPUT_LIMIT,
            value.as_bytes(),
            NewLine::unless(own == default),
        );
    }
}

fn set_tls(lines: &mut ConfigLines, shared: &ServerShared<'_>) {
    for (name, value) in config_tls::values(&shared.security.tls.settings()) {
        if name == config_tls::CLIENTS {
            set_word(lines, name, &value, "yes");
        } else if name == config_tls::PROTOCOLS || value.is_empty() {
            set_optional(lines, name, value.as_bytes());
        } else {
            set_optional(
                lines,
                name,
                absolute(Path::new(&value)).as_os_str().as_bytes(),
            );
        }
    }
}

/// A path that means the same file when the server starts in another folder, and for a directive in `dir`.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Sets the parameters that only a start sets.
fn set_start(lines: &mut ConfigLines, shared: &ServerShared<'_>) {
    let options = shared.options;
    let port = shared.port(WireProtocol::Resp).unwrap_or(0);
    set_word(lines, "port", &port.to_string(), "6379");
    let tls_port = shared.tls_port(WireProtocol::Resp).unwrap_or(0);
    set_word(lines, "tls-port", &tls_port.to_string(), "0");
    if options.workers > 0 {
        set_word(lines, "io-threads", &options.workers.to_string(), "");
    }
    let acl_file = options
        .acl_file
        .as_deref()
        .map(absolute)
        .unwrap_or_default();
    set_text(lines, "aclfile", acl_file.as_os_str().as_bytes(), b"");
    match options.unix_socket(WireProtocol::Resp) {
        Some(socket) => {
            let path = absolute(&socket.path);
            set_optional(lines, "unixsocket", path.as_os_str().as_bytes());
            set_word(
                lines,
                "unixsocketperm",
                &format!("{:o}", socket.mode),
                "700",
            );
        }
        None => lines.remove("unixsocket"),
    }
    let defaults = ServerOptions::default();
    set_word(lines, "appendfsync", options.sync, defaults.sync);
    set_word(
        lines,
        "enable-protected-configs",
        options.protected_actions.name(),
        defaults.protected_actions.name(),
    );
    set_word(
        lines,
        "enable-debug-command",
        options.debug_command.name(),
        defaults.debug_command.name(),
    );
}

/// Sets `bind`, unless the file's line means the addresses that the server listens on. That line can name more, with a
/// `-` before them.
fn set_bind(lines: &mut ConfigLines, shared: &ServerShared<'_>, default: &[IpAddr]) {
    let addresses = config::addresses(shared);
    if addresses.is_empty() {
        return; // The server listens on a Unix socket only.
    }
    let old = lines.values("bind");
    let is_same = match &old {
        Some(words) => bind_addresses(words).is_some_and(|old| old == addresses),
        None => addresses == default,
    };
    let words = old.filter(|_| is_same).unwrap_or_else(|| {
        let words = addresses.iter().map(|ip| ip.to_string().into_bytes());
        words.collect()
    });
    lines.set("bind", &words.join(&b' '), NewLine::unless(is_same));
}

/// The addresses of the words of `bind`, without those that may be missing.
fn bind_addresses(words: &[Vec<u8>]) -> Option<Vec<IpAddr>> {
    bind_words(words.iter().map(Vec::as_slice))
        .map(|word| std::str::from_utf8(word).ok()?.parse().ok())
        .collect()
}

/// Sets the folder of backups, which is that of the pool unless `pool` names another one.
fn set_folder(lines: &mut ConfigLines, shared: &ServerShared<'_>, pool: &Path) {
    let folder = absolute(&save_folder(shared));
    lines.set(
        FOLDER,
        &quoted(folder.as_os_str().as_bytes()),
        NewLine::Appended,
    );
    let pool_folder = pool.parent().and_then(|parent| parent.canonicalize().ok());
    let is_default = pool.ends_with(POOL_FILE) && pool_folder == folder.canonicalize().ok();
    let quoted_pool = quoted(pool.as_os_str().as_bytes());
    lines.set("pool", &quoted_pool, NewLine::unless(is_default));
    set_text(
        lines,
        FILE,
        save_file(shared).as_bytes(),
        FILE_DEFAULT.as_bytes(),
    );
}

/// Sets the lines of users. With an ACL file, the users are there.
fn set_users(lines: &mut ConfigLines, shared: &ServerShared<'_>, table: &'static CommandTable) {
    const USER: &str = "user";
    lines.remove(USER);
    if shared.options.acl_file.is_some() {
        return;
    }
    for user in shared.security.users.current().iter() {
        let line = describe::line(table, user);
        let value = line.strip_prefix(b"user ").unwrap_or(&line);
        lines.set(USER, &readable(value), NewLine::Appended);
    }
}

/// Puts words in quotes if they would be read as other words.
fn readable(value: &[u8]) -> Vec<u8> {
    let words: Vec<&[u8]> = value.split(|&byte| byte == b' ').collect();
    let is_same = |read: Vec<Vec<u8>>| read == words && value.is_ascii();
    match words_of(value).is_some_and(is_same) {
        true => value.to_vec(),
        false => words
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(&b' '),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_quotes_are_read_back() {
        let plain = b"a on #12 ~* resetchannels -@all +get";
        assert_eq!(readable(plain), plain);
        for value in [
            &b"a on ~\"x +get"[..],
            b"a on ~x'y +get",
            b"a on ~\xff +get",
        ] {
            let words: Vec<_> = value.split(|&byte| byte == b' ').collect();
            assert_eq!(words_of(&readable(value)).unwrap(), words);
        }
    }

    #[test]
    fn addresses_that_may_be_missing_are_left_out() {
        let words = |line: &str| words_of(line.as_bytes()).unwrap();
        let found = bind_addresses(&words("127.0.0.1 -::1 *")).unwrap();
        assert_eq!(found, [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0; 4])]);
        assert_eq!(bind_addresses(&words("localhost")), None);
    }

    #[test]
    fn a_system_error_has_its_c_text() {
        let error = io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        assert_eq!(system_text(&error), "No space left on device");
        assert_eq!(system_text(&io::Error::other("x")), "x");
    }
}
