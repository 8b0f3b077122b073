//! Options from a file in the syntax of redis.conf: `farbank serve redis.conf`.
//!
//! ```text
//!   port 7000                      is   --port=7000
//!   bind 127.0.0.1 -::1                 --bind=127.0.0.1
//!   requirepass "a secret"              --requirepass=a secret
//! ```
//!
//! `dir` is the folder of backups and, unless a directive `pool` names another place, of the pool. CONFIG REWRITE writes the
//! file; the option `--redis-conf` names it for that.
//!
//! A directive that this server does not have is a warning with its line. A directive whose absence would be unsafe or
//! surprising, for example a replica or a renamed command, is an error.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use farbank_server::bind_words;
use farbank_store::DATABASES;

use crate::common::{Failure, absolute, options_file::objection};

/// What a directive means here.
#[derive(PartialEq, Eq, Debug)]
enum Meaning {
    /// These command-line options, without their dashes.
    Options(Vec<(&'static str, OsString)>),
    /// Nothing needs to change.
    Fulfilled,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// The server would not do what the directive says, for this reason.
    Refused(&'static str),
    Unknown,
}

/// Directives that keep their names as options: Redis's, and those of this server's own options that a file may need.
const SAME: [&str; 29] = [
    "pool",
    "size",
    "max-size",
    "sync",
    "engine",
    "read-cache",
    "checkpoint-bytes",
    "admin",
    "memcached-port",
    "memcached-tls-port",
    "memcached-auth-file",
    "memcached-unixsocket",
    "memcached-unixsocketperm",
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
const PATHS: [&str; 7] = [
    "memcached-auth-file",
    "memcached-unixsocket",
    "aclfile",
    "unixsocket",
    "tls-cert-file",
    "tls-key-file",
    "tls-ca-cert-file",
];

/// Addresses of `bind`, which may also be the words of one value.
fn addresses(values: &[Vec<u8>]) -> OsString {
    let words = values
        .iter()
        .flat_map(|value| value.split(|&byte| byte == b' '))
        .filter(|word| !word.is_empty());
    OsString::from_vec(bind_words(words).collect::<Vec<_>>().join(&b','))
}

/// What a directive with these values means.
fn meaning(directive: &str, values: &[Vec<u8>]) -> Meaning {
    let first: &[u8] = values.first().map_or(b"", Vec::as_slice);
    let one = |name, value: &[u8]| Meaning::Options(vec![(name, OsStr::from_bytes(value).into())]);
    let is = |word: &str| first.eq_ignore_ascii_case(word.as_bytes());
    if let Some(same) = SAME.iter().find(|same| **same == directive) {
        return match (*same, first) {
            ("port", b"0") => one("port", b"off"),
            ("tls-port", b"0") => one("tls-port", b"off"),
            ("unixsocketperm", b"0") | ("aclfile" | "unixsocket", b"") => Meaning::Fulfilled,
            (same, value) => one(same, value),
        };
    }
    match directive {
        "bind" => Meaning::Options(vec![("bind", addresses(values))]),
        "timeout" => one("idle-timeout", first),
        "io-threads" => one("workers", first),
        "appendfsync" if is("no") => one("sync", b"never"),
        "appendfsync" => one("sync", first),
        "loglevel" => {
            let level: &[u8] = match first.to_ascii_lowercase().as_slice() {
                b"debug" => b"trace",
                b"verbose" => b"debug",
                b"notice" => b"info",
                _ => b"warn",
            };
            let shown = [b"loglevel=", first].concat();
            Meaning::Options(vec![
                ("log-level", OsString::from_vec(level.to_vec())),
                ("set", OsString::from_vec(shown)),
            ])
        }
        "protected-mode" if is("no") => Meaning::Options(vec![("unsafe-no-auth", OsString::new())]),
        "protected-mode" => Meaning::Options(vec![("protected-mode", OsString::new())]),
        "appendonly" | "always-show-logo" => Meaning::Fulfilled,
        "databases" if number(first).is_some_and(|n| n <= DATABASES) => Meaning::Fulfilled,
        "rdbchecksum" if is("yes") => Meaning::Fulfilled,
        "daemonize" | "cluster-enabled" | "tls-replication" | "tls-cluster" if is("no") => {
            Meaning::Fulfilled
        }
        "save" if values.iter().all(Vec::is_empty) => Meaning::Fulfilled,
        "user" => {
            let words = values.iter().map(|word| farbank_server::quoted_word(word));
            one("user", &words.collect::<Vec<_>>().join(&b' '))
        }
        name => unfulfilled(name, first).unwrap_or_else(|| {
            let name = farbank_server::parameter_of_alias(name).unwrap_or(name);
            if !farbank_server::is_settable_parameter(name) {
                return Meaning::Unknown;
            }
            one(
                "set",
                &[name.as_bytes(), b"=", values.join(&b' ').as_slice()].concat(),
            )
        }),
    }
}

fn number(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The meaning of a directive that cannot be fulfilled here. `value`: its first value.
fn unfulfilled(directive: &str, value: &[u8]) -> Option<Meaning> {
    Some(match directive {
        "save" => Meaning::Ignored("every acknowledged write is durable; BGSAVE writes backups"),
        "daemonize" | "supervised" | "pidfile" => {
            Meaning::Ignored("the server runs in the foreground, and a service manager watches it")
        }
        "logfile" => Meaning::Ignored("the log goes to stderr"),
        "include" => Meaning::Refused("files cannot include others"),
        "rename-command" => Meaning::Refused("commands cannot be renamed"),
        "replicaof" | "slaveof" => Meaning::Refused("this server cannot be a replica"),
        "cluster-enabled" => Meaning::Refused("this server cannot be a member of a cluster"),
        "tls-ca-cert-dir" => Meaning::Refused("name one file with tls-ca-cert-file"),
        "tls-key-file-pass" => Meaning::Refused("the key must have no password"),
        "tls-ciphers" | "tls-ciphersuites" | "tls-dh-params-file" => {
            Meaning::Ignored("only suites without known weaknesses are offered")
        }
        "loadmodule" => Meaning::Refused("this server has no modules"),
        "min-replicas-to-write" | "min-slaves-to-write" if value != b"0" => {
            Meaning::Refused("this server has no replicas")
        }
        _ => return None,
    })
}

/// Returns `args` with the options of the file that is the first argument of `serve`, if one is, in its place.
pub(crate) fn with_file(args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    match args.as_slice() {
        [program, verb, file, rest @ ..]
            if verb == "serve" && !file.as_encoded_bytes().starts_with(b"-") =>
        {
            let mut directives = ConfDirectives::default();
            directives.add_file(Path::new(file))?;
            let mut merged = vec![program.clone(), verb.clone()];
            merged.extend(directives.into_options()?);
            merged.extend_from_slice(rest);
            Ok(merged)
        }
        _ => Ok(args),
    }
}

/// The directives of several sources, as options of `serve`. A later directive replaces an earlier one.
#[derive(Default)]
pub(crate) struct ConfDirectives {
    options: Vec<OsString>,
    /// Value of the last `dir`, and where it is.
    folder: Option<(PathBuf, String)>,
    has_pool: bool,
}

impl ConfDirectives {
    /// Adds the directives of the file `path`, which CONFIG REWRITE will write. Prints warnings to stderr.
    pub(crate) fn add_file(&mut self, path: &Path) -> Result<(), Failure> {
        let shown = path.display().to_string();
        let text = std::fs::read(path)
            .map_err(|e| Failure::Usage(format!("{shown}: cannot read the file: {e}")))?;
        self.add_lines(&text, &shown)?;
        let mut option = OsString::from("--redis-conf=");
        option.push(absolute(path));
        self.options.push(option);
        Ok(())
    }

    /// Adds the lines `text` of `shown`. Prints warnings to stderr.
    pub(crate) fn add_lines(&mut self, text: &[u8], shown: &str) -> Result<(), Failure> {
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let place = format!("{shown}: line {}", at + 1);
            let warning = self.add(line.trim_ascii(), &place);
            let warning = warning.map_err(|why| Failure::Usage(format!("{place}: {why}")))?;
            if let Some(warning) = warning {
                eprintln!("warning: {place}: {warning}");
            }
        }
        Ok(())
    }

    /// Adds the directive of a line. Returns a warning if it has no effect, and an error if it is refused.
    fn add(&mut self, line: &[u8], place: &str) -> Result<Option<String>, String> {
        if line.starts_with(b"#") {
            return Ok(None);
        }
        let words = farbank_server::split_words(line).ok_or("unbalanced quotes")?;
        let Some((directive, values)) = words.split_first() else {
            return Ok(None);
        };
        let directive = String::from_utf8_lossy(directive).to_ascii_lowercase();
        if directive == "dir" {
            let folder = values.first().cloned().unwrap_or_default();
            self.folder = Some((OsString::from_vec(folder).into(), place.to_owned()));
            return Ok(None);
        }
        self.has_pool |= directive == "pool";
        match meaning(&directive, values) {
            Meaning::Options(given) => {
                for (name, value) in given {
                    let option = checked(name, &value);
                    self.options
                        .push(option.map_err(|why| format!("{directive}: {why}"))?);
                }
                Ok(None)
            }
            Meaning::Fulfilled => Ok(None),
            Meaning::Ignored(why) => Ok(Some(format!("{directive} is ignored: {why}"))),
            Meaning::Refused(why) => Err(format!("{directive}: {why}")),
            Meaning::Unknown => Ok(Some(format!("unknown directive {directive:?} is ignored"))),
        }
    }

    /// The options that the directives stand for.
    pub(crate) fn into_options(self) -> Result<Vec<OsString>, Failure> {
        let mut options = self.options;
        let Some((folder, place)) = self.folder else {
            return Ok(options);
        };
        for option in &mut options {
            move_to(&folder, option);
        }
        let option = match self.has_pool {
            true => {
                let mut parameter = OsString::from("dir=");
                parameter.push(&folder);
                checked("set", &parameter)
            }
            false => checked("pool", folder.join("farbank.pool").as_os_str()),
        };
        options.push(option.map_err(|why| Failure::Usage(format!("{place}: dir: {why}")))?);
        Ok(options)
    }
}

/// Returns an option of `serve`, or why its value is refused.
fn checked(name: &str, value: &OsStr) -> Result<OsString, String> {
    let mut option = OsString::from(format!("--{name}"));
    if !["unsafe-no-auth", "protected-mode"].contains(&name) {
        option.push("=");
        option.push(value);
    }
    match objection(&["serve"], &option) {
        Some(why) => Err(why),
        None => Ok(option),
    }
}

/// Makes the path of an option one in `folder` if it is relative.
fn move_to(folder: &Path, option: &mut OsString) {
    let bytes = option.as_bytes();
    let Some(at) = bytes.iter().position(|&byte| byte == b'=') else {
        return;
    };
    let (name, path) = (&bytes[..at], OsStr::from_bytes(&bytes[at + 1..]));
    let is_path = |own: &&str| name.strip_prefix(b"--") == Some(own.as_bytes());
    if PATHS.iter().any(is_path) && !path.is_empty() {
        let mut moved = OsStr::from_bytes(name).to_owned();
        moved.push("=");
        moved.push(folder.join(path));
        *option = moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: &str) -> Vec<OsString> {
        let mut directives = ConfDirectives::default();
        directives.add_lines(file.as_bytes(), "file").ok().unwrap();
        directives.into_options().ok().unwrap()
    }

    #[test]
    fn directives_become_options() {
        let file = "# a comment\n\nport 7000\nbind 127.0.0.1 -::1\nrequirepass \"a \\\"b\"\ntimeout 5\n\
                    appendonly no\nsave \"\"\nhz 20\nloglevel verbose\nlua-time-limit 1\n\
                    slowlog-max-len 5\ndbfilename all.rdb\nrdbchecksum yes\nclient-output-buffer-limit pubsub 64mb 16mb 90\ndir /var/lib/redis/\nprotected-mode no\n";
        let expected = [
            "--port=7000",
            "--bind=127.0.0.1",
            "--requirepass=a \"b",
            "--idle-timeout=5",
            "--set=hz=20",
            "--log-level=debug",
            "--set=loglevel=verbose",
            "--set=busy-reply-threshold=1",
            "--set=slowlog-max-len=5",
            "--set=dbfilename=all.rdb",
            "--set=client-output-buffer-limit=pubsub 64mb 16mb 90",
            "--unsafe-no-auth",
            "--pool=/var/lib/redis/farbank.pool",
        ];
        assert_eq!(options(file), expected.map(OsString::from));
    }

    #[test]
    fn words_keep_their_bytes() {
        let file =
            "user a on \">pass word\" ~* +@all\nuser b >'x\"y' ~\"\\xff\"\nrequirepass \"\\xfe\"";
        let found = options(file);
        let expected = [
            &b"--user=\"a\" \"on\" \">pass word\" \"~*\" \"+@all\""[..],
            b"--user=\"b\" \">x\\\"y\" \"~\\xff\"",
            b"--requirepass=\xfe",
        ];
        let found: Vec<_> = found.iter().map(|option| option.as_bytes()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn relative_paths_are_in_the_folder_dir() {
        let expected = [
            "--aclfile=/data/users.acl",
            "--unixsocket=/run/socket",
            "--pool=/data/farbank.pool",
        ];
        let file = "aclfile users.acl\ndir /data\nunixsocket /run/socket";
        assert_eq!(options(file), expected.map(OsString::from));
    }

    #[test]
    fn dir_is_the_folder_of_backups_only_beside_the_directive_pool() {
        let expected = ["--pool=/data/pool", "--set=dir=/tmp"];
        for file in [
            "dir /tmp\npool /data/pool",
            "pool /data/pool\ndir /var\ndir /tmp",
        ] {
            assert_eq!(options(file), expected.map(OsString::from));
        }
    }

    #[test]
    fn a_warning_says_that_a_directive_is_not_known() {
        let mut directives = ConfDirectives::default();
        for (line, warning) in [
            ("prot 1", Some("unknown directive \"prot\" is ignored")),
            ("", None),
            (
                "save 900 1",
                Some("save is ignored: every acknowledged write is durable; BGSAVE writes backups"),
            ),
            ("appendonly no", None),
        ] {
            let found = directives.add(line.as_bytes(), "").unwrap();
            assert_eq!(found.as_deref(), warning, "{line}");
        }
        assert!(directives.options.is_empty());
    }

    #[test]
    fn what_would_be_unsafe_to_ignore_is_an_error() {
        for (file, place, why) in [
            ("port 1\nuser", "file: line 2: user: ", "must be NAME RULE"),
            (
                "replicaof other 6379",
                "file: line 1: replicaof: ",
                "replica",
            ),
            ("requirepass \"open", "file: line 1: ", "unbalanced quotes"),
            (
                "\n\nport 70000",
                "file: line 3: port: ",
                "a port must be a number",
            ),
            (
                "tcp-keepalive -1",
                "file: line 1: tcp-keepalive: ",
                "must be between 0 and",
            ),
            (
                "hz x",
                "file: line 1: hz: ",
                "couldn't be parsed into an integer",
            ),
            (
                "pool /p\ndir /absent",
                "file: line 2: dir: ",
                "No such file or directory",
            ),
        ] {
            let mut directives = ConfDirectives::default();
            let added = directives.add_lines(file.as_bytes(), "file");
            let Err(Failure::Usage(error)) = added.and_then(|()| directives.into_options()) else {
                panic!("{file:?} is accepted");
            };
            assert!(
                error.starts_with(place) && error.contains(why),
                "{file:?}: {error}"
            );
        }
    }
}
