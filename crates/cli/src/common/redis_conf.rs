//! Options from a file in the syntax of redis.conf: `farbank serve redis.conf`.
//!
//! ```text
//!   port 7000                      is   --port=7000
//!   bind 127.0.0.1 -::1                 --bind=127.0.0.1
//!   requirepass "a secret"              --requirepass=a secret
//! ```
//!
//! A directive that this server does not have is a warning with its line. A directive whose absence would be unsafe or
//! surprising, for example a replica or a renamed command, is an error.

use std::ffi::OsString;
use std::path::Path;

use farbank_store::DATABASES;

use crate::common::{Failure, options_file::objection};

/// What a directive means here.
#[derive(PartialEq, Eq, Debug)]
enum Meaning {
    /// These command-line options, without their dashes.
    Options(Vec<(&'static str, String)>),
    /// Nothing needs to change.
    Fulfilled,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// The server would not do what the directive says, for this reason.
    Refused(&'static str),
    Unknown,
}

/// Directives that keep their names as options: Redis's, and those of this server's own options that a file may need.
const SAME: [&str; 24] = [
    "size",
    "max-size",
    "sync",
    "engine",
    "read-cache",
    "checkpoint-bytes",
    "admin",
    "memcached-port",
    "tls-port",
    "tls-cert-file",
    "tls-key-file",
    "tls-ca-cert-file",
    "tls-auth-clients",
    "tls-protocols",
    "aclfile",
    "port",
    "unixsocket",
    "unixsocketperm",
    "maxclients",
    "maxmemory-clients",
    "notify-keyspace-events",
    "requirepass",
    "enable-protected-configs",
    "enable-debug-command",
];

/// Options that are paths of files. As in Redis, relative ones are in the folder `dir`.
const PATHS: [&str; 5] = [
    "aclfile",
    "unixsocket",
    "tls-cert-file",
    "tls-key-file",
    "tls-ca-cert-file",
];

/// Splits a line into words, which may be quoted as in Redis. Returns `None` if quotes are not balanced.
fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut chars) = (Vec::new(), line.chars().peekable());
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut word = String::new();
        match chars.peek() {
            None => return Some(words),
            Some(&quote @ ('"' | '\'')) => {
                chars.next();
                loop {
                    match chars.next()? {
                        '\\' if quote == '"' => word.push(escaped(chars.next()?)),
                        '\\' if chars.next_if_eq(&'\'').is_some() => word.push('\''),
                        c if c == quote => break,
                        c => word.push(c),
                    }
                }
                // As in Redis, a closing quote ends the word.
                if chars.peek().is_some_and(|c| !c.is_whitespace()) {
                    return None;
                }
            }
            Some(_) => {
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
            }
        }
        words.push(word);
    }
}

/// The character that `\` and `c` stand for between double quotes.
fn escaped(c: char) -> char {
    match c {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        other => other,
    }
}

/// Addresses of `bind`. Redis does not fail if an address with `-` is not available, so these are left out.
fn addresses(values: &[String]) -> String {
    let known = values.iter().filter(|address| !address.starts_with('-'));
    let address = |address: &String| match address.as_str() {
        "*" => "0.0.0.0".to_owned(),
        other => other.to_owned(),
    };
    known.map(address).collect::<Vec<_>>().join(",")
}

/// A word that `words` reads as `word`, in quotes if it needs them.
pub(crate) fn quoted(word: &str) -> String {
    let needs_quotes = |c: char| c.is_whitespace() || c == '"' || c == '\'';
    if !word.is_empty() && !word.contains(needs_quotes) {
        return word.to_owned();
    }
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// What a directive with these values means.
fn meaning(directive: &str, values: &[String]) -> Meaning {
    let one = |name, value: &str| Meaning::Options(vec![(name, value.to_owned())]);
    let value = values.first().map_or("", String::as_str);
    let is = |word: &str| value.eq_ignore_ascii_case(word);
    if let Some(same) = SAME.iter().find(|same| **same == directive) {
        return match (*same, value) {
            ("port", "0") => one("port", "off"),
            ("tls-port", "0") => one("tls-port", "off"),
            ("unixsocketperm", "0") => Meaning::Fulfilled,
            (same, value) => one(same, value),
        };
    }
    match directive {
        "bind" => one("bind", &addresses(values)),
        "timeout" => one("idle-timeout", value),
        "io-threads" => one("workers", value),
        "dir" => one(
            "pool",
            &format!("{}/farbank.pool", value.trim_end_matches('/')),
        ),
        "appendfsync" if is("no") => one("sync", "never"),
        "appendfsync" => one("sync", value),
        "loglevel" => match value {
            "debug" => one("log-level", "trace"),
            "verbose" => one("log-level", "debug"),
            "notice" => one("log-level", "info"),
            _ => one("log-level", "warn"),
        },
        "protected-mode" if is("no") => Meaning::Options(vec![("unsafe-no-auth", String::new())]),
        "protected-mode" => Meaning::Options(vec![("protected-mode", String::new())]),
        "appendonly" | "always-show-logo" => Meaning::Fulfilled,
        "databases" if value.parse().is_ok_and(|n: usize| n <= DATABASES) => Meaning::Fulfilled,
        "rdbchecksum" if is("yes") => Meaning::Fulfilled,
        "daemonize" | "cluster-enabled" | "tls-replication" | "tls-cluster" if is("no") => {
            Meaning::Fulfilled
        }
        "save" if values.iter().all(String::is_empty) => Meaning::Fulfilled,
        "save" => Meaning::Ignored("every acknowledged write is durable; BGSAVE writes backups"),
        "daemonize" | "supervised" | "pidfile" => {
            Meaning::Ignored("the server runs in the foreground, and a service manager watches it")
        }
        "logfile" => Meaning::Ignored("the log goes to stderr"),
        "include" => Meaning::Refused("files cannot include others"),
        "user" => one(
            "user",
            &values
                .iter()
                .map(|word| quoted(word))
                .collect::<Vec<_>>()
                .join(" "),
        ),
        "rename-command" => Meaning::Refused("commands cannot be renamed"),
        "replicaof" | "slaveof" => Meaning::Refused("this server cannot be a replica"),
        "cluster-enabled" => Meaning::Refused("this server cannot be a member of a cluster"),
        "tls-ca-cert-dir" => Meaning::Refused("name one file with tls-ca-cert-file"),
        "tls-key-file-pass" => Meaning::Refused("the key must have no password"),
        "tls-ciphers" | "tls-ciphersuites" | "tls-dh-params-file" => {
            Meaning::Ignored("only suites without known weaknesses are offered")
        }
        "loadmodule" => Meaning::Refused("this server has no modules"),
        "min-replicas-to-write" if value != "0" => Meaning::Refused("this server has no replicas"),
        name if farbank_server::is_ignored_parameter(name) => Meaning::Fulfilled,
        name if farbank_server::is_live_parameter(name) => {
            Meaning::Options(vec![("set", format!("{name}={}", values.join(" ")))])
        }
        _ => Meaning::Unknown,
    }
}

/// Returns `args` with the options of the file that is the first argument of `serve`, if one is, in its place.
pub(crate) fn with_file(args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    match args.as_slice() {
        [program, verb, file, rest @ ..]
            if verb == "serve" && !file.as_encoded_bytes().starts_with(b"-") =>
        {
            let mut merged = vec![program.clone(), verb.clone()];
            merged.extend(options(Path::new(file))?);
            merged.extend_from_slice(rest);
            Ok(merged)
        }
        _ => Ok(args),
    }
}

/// Returns the options that the file `path` stands for. Prints warnings to stderr.
pub(crate) fn options(path: &Path) -> Result<Vec<OsString>, Failure> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::Usage(format!("{shown}: cannot read the file: {e}")))?;
    options_of(&text, &shown)
}

/// Returns the options that the lines `text` of `shown` stand for. Prints warnings to stderr.
pub(crate) fn options_of(text: &str, shown: &str) -> Result<Vec<OsString>, Failure> {
    let (options, warnings) = parse(text)
        .map_err(|(line, why)| Failure::Usage(format!("{shown}: line {line}: {why}")))?;
    for (line, why) in warnings {
        eprintln!("warning: {shown}: line {line}: {why}");
    }
    Ok(options)
}

/// Numbers of lines, from 1, and texts about them.
type Notes = Vec<(usize, String)>;

fn parse(text: &str) -> Result<(Vec<OsString>, Notes), (usize, String)> {
    let (mut options, mut warnings) = (Vec::new(), Vec::new());
    let mut folder = None;
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        if line.trim_start().starts_with('#') {
            continue;
        }
        let words = words(line).ok_or((number, "unbalanced quotes".to_owned()))?;
        let Some((directive, values)) = words.split_first() else {
            continue;
        };
        let directive = directive.to_ascii_lowercase();
        if directive == "dir" {
            folder = values.first().cloned();
        }
        match meaning(&directive, values) {
            Meaning::Options(given) => {
                for (name, value) in given {
                    let option = match value.as_str() {
                        "" if name == "unsafe-no-auth" => OsString::from(format!("--{name}")),
                        value => OsString::from(format!("--{name}={value}")),
                    };
                    if let Some(why) = objection(&["serve"], &option) {
                        return Err((number, format!("{directive}: {why}")));
                    }
                    options.push(option);
                }
            }
            Meaning::Fulfilled => {}
            Meaning::Ignored(why) => {
                warnings.push((number, format!("{directive} is ignored: {why}")));
            }
            Meaning::Refused(why) => return Err((number, format!("{directive}: {why}"))),
            Meaning::Unknown => {
                warnings.push((
                    number,
                    format!("unknown directive {directive:?} is ignored"),
                ));
            }
        }
    }
    if let Some(folder) = folder {
        options
            .iter_mut()
            .for_each(|option| move_to(&folder, option));
    }
    Ok((options, warnings))
}

/// Makes the path of an option one in `folder` if it is relative.
fn move_to(folder: &str, option: &mut OsString) {
    let parts = option.to_str().and_then(|option| option.split_once('='));
    if let Some((name, path)) = parts
        && PATHS.iter().any(|own| name.strip_prefix("--") == Some(own))
        && !path.is_empty()
    {
        let path = Path::new(folder).join(path);
        *option = format!("{name}={}", path.display()).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_become_options() {
        let file = "# a comment\n\nport 7000\nbind 127.0.0.1 -::1\nrequirepass \"a \\\"b\"\ntimeout 5\n\
                    appendonly no\nsave \"\"\nhz 20\n\
                    slowlog-max-len 5\ndbfilename all.rdb\nrdbchecksum yes\nclient-output-buffer-limit pubsub 64mb 16mb 90\ndir /var/lib/redis/\nprotected-mode no\n";
        let (options, warnings) = parse(file).unwrap();
        let expected = [
            "--port=7000",
            "--bind=127.0.0.1",
            "--requirepass=a \"b",
            "--idle-timeout=5",
            "--set=slowlog-max-len=5",
            "--set=dbfilename=all.rdb",
            "--set=client-output-buffer-limit=pubsub 64mb 16mb 90",
            "--pool=/var/lib/redis/farbank.pool",
            "--unsafe-no-auth",
        ];
        assert_eq!(options, expected.map(OsString::from));
        assert!(warnings.is_empty());
    }

    #[test]
    fn a_user_keeps_its_words() {
        let file = "user a on \">pass word\" ~* +@all\nuser b >'x\"y'\naclfile users.acl";
        let (options, _) = parse(file).unwrap();
        let expected = [
            "--user=a on \">pass word\" ~* +@all",
            "--user=b \">'x\\\"y'\"",
            "--aclfile=users.acl",
        ];
        assert_eq!(options, expected.map(OsString::from));
    }

    #[test]
    fn relative_paths_are_in_the_folder_dir() {
        let (options, _) = parse("aclfile users.acl\ndir /data\nunixsocket /run/socket").unwrap();
        let expected = [
            "--aclfile=/data/users.acl",
            "--pool=/data/farbank.pool",
            "--unixsocket=/run/socket",
        ];
        assert_eq!(options, expected.map(OsString::from));
    }

    #[test]
    fn a_warning_names_the_line_of_an_unknown_directive() {
        let (options, warnings) = parse("prot 1\n\nsave 900 1\nhz 5").unwrap();
        assert!(options.is_empty());
        let lines: Vec<_> = warnings.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 3]);
        assert_eq!(warnings[0].1, "unknown directive \"prot\" is ignored");
    }

    #[test]
    fn what_would_be_unsafe_to_ignore_is_an_error() {
        for (file, line, why) in [
            ("port 1\nuser", 2, "must be NAME RULE"),
            ("replicaof other 6379", 1, "replica"),
            ("requirepass \"open", 1, "unbalanced quotes"),
            ("\n\nport 70000", 3, "a port must be a number"),
            ("tcp-keepalive -1", 1, "must be between 0 and"),
        ] {
            let (found, error) = parse(file).unwrap_err();
            assert!(
                found == line && error.contains(why),
                "{file:?}: {found}: {error}"
            );
        }
    }
}
