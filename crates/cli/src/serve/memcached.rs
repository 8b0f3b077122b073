//! memcached's command line: `farbank memcached`, or the binary under the name `memcached`.
//!
//! ```text
//!   memcached -m 64 -p 11211 -c 1024 -e /mnt/pmem0/cache
//!   farbank serve --engine mdb --port off --size 64mb --memcached-port 11211 --maxclients 1024 --pool /mnt/pmem0/cache
//! ```
//!
//! The flags are translated into the options of `serve`, which starts the server. Flags that concern only memcached's
//! own memory or threads are accepted and ignored ([`MEANINGLESS`], [`MEANINGLESS_OPTIONS`]). Unsupported flags are
//! refused by name. docs/compatibility.md lists all of them.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use farbank_cache::{PAGE_BYTES, PAGES_MIN};
use farbank_server::TlsClients;

use super::MEMCACHED_PORT;
use crate::common::options_file::objection;
use crate::common::place::cache_bytes_min;
use crate::common::{Failure, size};

const HELP: &str = "\
memcached's command line for `farbank serve`: serves memcached clients only, not Redis clients
-p, --port=<num>          TCP port to listen on (default: 11211)
-l, --listen=<addr>       addresses to listen on (default: loopback); notls:<addr>:<port> is not encrypted by -Z
-s, --unix-socket=<file>  listen on this Unix socket instead of TCP ports
-a, --unix-mask=<mask>    permissions of the Unix socket, in octal (default: 700)
-m, --memory-limit=<num>  item memory in megabytes (default: 64)
-e, --memory-file=<file>  file that keeps items across a kill and, on media that support it, a power cut;
                          without it items are lost when the process ends
-I, --max-item-size=<num> largest item (default: 1m, max: 512m)
-c, --conn-limit=<num>    maximum number of connections (default: 1024)
-t, --threads=<num>       threads (default: 4)
-F, --disable-flush-all   refuse flush_all
-C, --disable-cas         disable cas: every cas unique is 0
-M, --disable-evictions   refuse writes when full: use the durable store, not the cache
-u, --user=<user>         must be the current user: the process cannot change its user
-Z, --enable-ssl          encrypt by TLS; needs -o ssl_chain_cert
-Y, --auth-file=<file>    names and passwords of clients, one name:password a line; SIGHUP reads the file again
-P, --pidfile=<file>      write the process id to this file
-d, --daemon              run in the background
-v, --verbose             log more (-vv, -vvv)
-V, --version             print the version and exit
-h, --help                print this help and exit
-o, --extended=<list>     comma-separated options: idle_timeout=<secs>; accept_copy, which opens a copy of a memory
                          file that was in use; for -Z ssl_chain_cert=<file>, ssl_key=<file>, ssl_ca_cert=<file>,
                          ssl_verify_mode=0|1|2 (clients need no certificate, may have one, need one; default: 0) and
                          ssl_min_version=2|3 (TLS 1.2, TLS 1.3); options for memcached's own memory and threads are
                          ignored
These are accepted and ignored: -U 0, -k, -L, -r, -f, -n, -R, -b, -B auto|ascii";

/// A flag: its letter, its long name, and whether it takes a value.
struct MemcachedFlag(char, &'static str, bool);

/// Flags that are translated.
const FLAGS: [MemcachedFlag; 24] = [
    MemcachedFlag('p', "port", true),
    MemcachedFlag('s', "unix-socket", true),
    MemcachedFlag('a', "unix-mask", true),
    MemcachedFlag('l', "listen", true),
    MemcachedFlag('m', "memory-limit", true),
    MemcachedFlag('e', "memory-file", true),
    MemcachedFlag('I', "max-item-size", true),
    MemcachedFlag('c', "conn-limit", true),
    MemcachedFlag('t', "threads", true),
    MemcachedFlag('F', "disable-flush-all", false),
    MemcachedFlag('C', "disable-cas", false),
    MemcachedFlag('M', "disable-evictions", false),
    MemcachedFlag('u', "user", true),
    MemcachedFlag('P', "pidfile", true),
    MemcachedFlag('d', "daemon", false),
    MemcachedFlag('v', "verbose", false),
    MemcachedFlag('V', "version", false),
    MemcachedFlag('h', "help", false),
    MemcachedFlag('o', "extended", true),
    MemcachedFlag('U', "udp-port", true),
    MemcachedFlag('B', "protocol", true),
    MemcachedFlag('D', "prefix-delimiter", true),
    MemcachedFlag('Y', "auth-file", true),
    MemcachedFlag('Z', "enable-ssl", false),
];

/// Flags that are accepted and ignored.
const MEANINGLESS: [MemcachedFlag; 7] = [
    MemcachedFlag('k', "lock-memory", false),
    MemcachedFlag('L', "enable-largepages", false),
    MemcachedFlag('r', "enable-coredumps", false),
    MemcachedFlag('f', "slab-growth-factor", true),
    MemcachedFlag('n', "slab-min-size", true),
    MemcachedFlag('R', "max-reqs-per-event", true),
    MemcachedFlag('b', "listen-backlog", true),
];

/// Suboptions of `-o` that are accepted and ignored.
const MEANINGLESS_OPTIONS: [&str; 33] = [
    "modern",
    "no_modern",
    "maxconns_fast",
    "no_maxconns_fast",
    "hashpower",
    "no_hashexpand",
    "hash_algorithm",
    "tail_repair_time",
    "slab_reassign",
    "no_slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "lru_crawler",
    "no_lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "no_lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "read_buf_mem_limit",
    "inline_ascii_resp",
    "no_inline_ascii_resp",
    "relaxed_privileges",
    "ssl_wbuf_size",
    "ssl_session_cache",
];

/// The parsed memcached command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct MemcachedArgs {
    /// The arguments of `serve`.
    serve: Vec<OsString>,
    pidfile: Option<PathBuf>,
    in_background: bool,
    verbose: usize,
    clients: ClientSockets,
    files: bool,
    prints: Option<String>,
    bytes: u64,
    item_bytes: u64,
    keeps_all: bool,
    tls: MemcachedTls,
}

/// Where clients connect.
#[derive(Debug, Default, PartialEq)]
struct ClientSockets {
    /// Whether an address was given.
    has_address: bool,
    port: Option<OsString>,
    /// Clients connect to a Unix socket only.
    is_unix: bool,
}

/// What `-Z` and the suboptions of `-o` for TLS have chosen.
#[derive(Debug, Default, PartialEq)]
struct MemcachedTls {
    is_enabled: bool,
    /// Options of `serve` with their values. Of an option that is there twice, the last one counts.
    options: Vec<(&'static str, String)>,
    /// Port of `-l notls:`.
    plain_port: Option<u16>,
}

impl MemcachedTls {
    /// Applies a suboption of `-o`. Returns `false` if it is none of TLS.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let (option, value) = match (name, value) {
            ("ssl_chain_cert" | "ssl_key" | "ssl_ca_cert", "") => {
                return Err(format!("-o {name} must be given a file"));
            }
            ("ssl_chain_cert", file) => (CERTIFICATE, file),
            ("ssl_key", file) => ("tls-key-file", file),
            ("ssl_ca_cert", file) => (AUTHORITIES, file),
            ("ssl_verify_mode", mode) => {
                let is = |clients: &TlsClients| clients.memcached_mode().to_string() == mode;
                let Some(clients) = TlsClients::ALL.into_iter().find(is) else {
                    return Err(format!("-o ssl_verify_mode={mode}: must be 0, 1 or 2"));
                };
                (CLIENTS, clients.name())
            }
            ("ssl_min_version", "2") => ("tls-protocols", "TLSv1.2 TLSv1.3"),
            ("ssl_min_version", "3") => ("tls-protocols", "TLSv1.3"),
            ("ssl_min_version", version) => {
                let what = "must be 2 (TLS 1.2) or 3 (TLS 1.3)";
                return Err(format!("-o ssl_min_version={version}: {what}"));
            }
            ("ssl_keyformat", "1") => return Ok(true),
            ("ssl_keyformat", format) => {
                return Err(format!("-o ssl_keyformat={format}: must be 1 (PEM)"));
            }
            _ => return Ok(false),
        };
        self.options.push((option, value.to_owned()));
        Ok(true)
    }

    /// Returns the value of an option of `serve`.
    fn value(&self, option: &str) -> Option<&str> {
        let last = self.options.iter().rfind(|(name, _)| *name == option);
        last.map(|(_, value)| &value[..])
    }

    /// Checks that everything that TLS needs is given.
    fn check(&self) -> Result<(), &'static str> {
        if !self.is_enabled {
            return Ok(());
        }
        if self.value(CERTIFICATE).is_none() {
            return Err("-Z needs -o ssl_chain_cert=<file>");
        }
        let asks_clients = self.value(CLIENTS).is_some_and(|clients| clients != "no");
        match asks_clients && self.value(AUTHORITIES).is_none() {
            true => Err("-o ssl_verify_mode=1 and 2 need -o ssl_ca_cert=<file>"),
            false => Ok(()),
        }
    }
}

/// Options of `serve` for TLS.
const CERTIFICATE: &str = "tls-cert-file";
const AUTHORITIES: &str = "tls-ca-cert-file";
const CLIENTS: &str = "tls-auth-clients";

/// Returns the flags of a memcached command line: the program's name is `memcached`, or the first argument is.
pub(crate) fn flags(args: &[OsString]) -> Option<&[OsString]> {
    let program = std::path::Path::new(args.first()?);
    if program.file_name() == Some(OsStr::new("memcached")) {
        return args.get(1..);
    }
    let verb = args.get(1)?;
    (verb == "memcached").then(|| &args[2..])
}

/// Translates `args`, the words after the program's name, to arguments for `serve`. Returns `None` if this process
/// has nothing more to do.
pub(crate) fn translate(args: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let asked = read(args)?;
    if let Some(text) = asked.prints {
        println!("{text}");
        return Ok(None);
    }
    let (pidfile, in_background) = (asked.pidfile.clone(), asked.in_background);
    let arguments = asked.arguments();
    let process = match in_background {
        true => start(&arguments)?,
        false => std::process::id(),
    };
    if let Some(path) = &pidfile {
        std::fs::write(path, format!("{process}\n"))
            .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
    }
    Ok(Some(arguments).filter(|_| !in_background))
}

/// Starts this program in the background with `arguments`, which include the program's name. Returns the process id.
fn start(arguments: &[OsString]) -> Result<u32, Failure> {
    let program = std::env::current_exe().map_err(Failure::failed)?;
    let mut command = Command::new(program);
    command.args(&arguments[1..]).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.spawn().map_err(Failure::failed)?;
    Ok(child.id())
}

impl MemcachedArgs {
    fn arguments(mut self) -> Vec<OsString> {
        if !self.clients.has_address {
            self.put("bind", "127.0.0.1");
        }
        if !self.files {
            self.put("pool", "none");
        }
        self.put_port();
        let engine = if self.keeps_all { "kv" } else { "mdb" };
        self.put("engine", engine);
        let level = ["warn", "info", "debug", "trace"][self.verbose.min(3)];
        self.put("log-level", level);
        let mut arguments: Vec<OsString> = ["farbank", "serve", "--port", "off", "--size", "64mb"]
            .map(OsString::from)
            .into();
        arguments.extend(["--maxclients", "1024", "--workers", "4"].map(OsString::from));
        arguments.extend(self.serve);
        arguments
    }

    /// Adds the port, and what concerns TLS if it is enabled. memcached ignores the certificate without `-Z`.
    fn put_port(&mut self) {
        if self.clients.is_unix {
            // As in memcached, a socket replaces the ports.
            self.put("memcached-port", "off");
            return;
        }
        let port = self.clients.port.take();
        let plain = self.tls.plain_port.map(|port| port.to_string().into());
        if !self.tls.is_enabled {
            if let Some(port) = plain.or(port) {
                self.put("memcached-port", port);
            }
            return;
        }
        self.put("memcached-port", plain.unwrap_or_else(|| "off".into()));
        let port = port.unwrap_or_else(|| MEMCACHED_PORT.to_string().into());
        self.put("memcached-tls-port", port);
        if self.tls.value(CLIENTS).is_none() {
            self.put(CLIENTS, "no");
        }
        for (option, value) in std::mem::take(&mut self.tls.options) {
            self.put(option, value);
        }
    }

    /// Adds an option as [`Self::put`] does. If `serve` refuses its value, the error names `flag`, which the user
    /// gave.
    fn put_for(&mut self, flag: &str, option: &str, value: &OsStr) -> Result<(), String> {
        check(flag, option, value)?;
        self.put(option, value);
        Ok(())
    }

    fn put(&mut self, option: &str, value: impl AsRef<OsStr>) {
        self.serve.push(argument(option, value));
    }

    /// Applies one flag with its value.
    fn take(&mut self, letter: char, value: &OsStr) -> Result<(), String> {
        let text = value.to_string_lossy();
        match letter {
            'p' => {
                check("-p", "memcached-port", value)?;
                self.clients.port = Some(value.into());
            }
            's' => {
                self.clients.is_unix = true;
                self.put("memcached-unixsocket", value);
            }
            'a' => self.put_for("-a", "memcached-unixsocketperm", value)?,
            'Z' => self.tls.is_enabled = true,
            'l' => self.listen(&text)?,
            'm' => {
                let megabytes: u64 = text.parse().unwrap_or(0);
                self.bytes = megabytes.saturating_mul(1 << 20);
                if megabytes == 0 || self.bytes == u64::MAX {
                    return Err(format!(
                        "-m {text}: must be a number of megabytes greater than 0"
                    ));
                }
                self.put("size", format!("{text}mb"));
            }
            'e' => {
                self.files = true;
                self.put("pool", value);
            }
            'I' => {
                self.item_bytes = size::parse(&text).map_err(|why| format!("-I {text}: {why}"))?;
                if !(1024..=512 << 20).contains(&self.item_bytes) {
                    return Err(format!("-I {text}: an item size must be from 1k to 512m"));
                }
                self.put("memcached-item-size", value);
            }
            'c' | 't' if text.parse().is_ok_and(|n: u64| n == 0) => {
                return Err(format!("-{letter} must be greater than 0"));
            }
            'c' => self.put_for("-c", "maxclients", value)?,
            't' => self.put_for("-t", "workers", value)?,
            'F' => self.serve.push("--memcached-no-flush".into()),
            'C' => self.serve.push("--memcached-no-cas".into()),
            'M' => self.keeps_all = true,
            'u' => runs_as(&text)?,
            'Y' => self.put("memcached-auth-file", value),
            'P' => self.pidfile = Some(value.into()),
            'd' => self.in_background = true,
            'v' => self.verbose += 1,
            'V' => self.prints = Some(format!("memcached 1.6.18 (farbank {VERSION})")),
            'h' => self.prints = Some(format!("memcached 1.6.18 (farbank {VERSION})\n{HELP}")),
            'o' => {
                for option in text.split(',') {
                    let (name, value) = option.split_once('=').unwrap_or((option, ""));
                    if name == "idle_timeout" {
                        self.put_for("-o idle_timeout", "idle-timeout", OsStr::new(value))?;
                    } else if name == "accept_copy" {
                        self.serve.push("--accept-copy".into());
                    } else if !self.tls.take(name, value)? && !MEANINGLESS_OPTIONS.contains(&name) {
                        return Err(format!("Illegal suboption \"{name}\""));
                    }
                }
            }
            'U' if text != "0" => {
                return Err("-U: UDP is not supported; only -U 0 is accepted".into());
            }
            'B' if text != "auto" && text != "ascii" => {
                return Err(format!("-B {text}: only the text protocol is supported"));
            }
            'D' if text != ":" => return Err("-D: the delimiter can only be \":\"".into()),
            _ => {}
        }
        Ok(())
    }

    /// `-l addr[:port][,addr[:port]...]`; with `-Z` the port of an address after `notls:` is not for TLS.
    fn listen(&mut self, list: &str) -> Result<(), String> {
        let mut addrs: Vec<IpAddr> = Vec::new();
        for addr in list.split(',') {
            let (bare, is_plain) = match addr.strip_prefix("notls:") {
                Some(bare) => (bare, true),
                None => (addr, false),
            };
            let local = bare.replacen("localhost", "127.0.0.1", 1);
            let (ip, port) = match local.parse::<SocketAddr>() {
                Ok(addr) => (addr.ip(), Some(addr.port())),
                Err(_) => {
                    let ip = local.parse::<IpAddr>();
                    let what =
                        "an address must be an IP or localhost, optionally followed by :port";
                    (ip.map_err(|_| format!("-l {addr}: {what}"))?, None)
                }
            };
            match (port, is_plain) {
                (Some(port), true) => self.tls.plain_port = Some(port),
                (Some(port), false) => self.clients.port = Some(port.to_string().into()),
                (None, true) => return Err(format!("-l {addr}: needs a port")),
                (None, false) => {}
            }
            if !addrs.contains(&ip) {
                addrs.push(ip);
            }
        }
        self.clients.has_address = true;
        let addrs: Vec<_> = addrs.iter().map(IpAddr::to_string).collect();
        self.put("bind", addrs.join(","));
        // An explicit address counts as consent to serve without authentication, as in memcached. With -Y clients give a
        // password even so.
        self.serve.push("--unsafe-no-auth".into());
        Ok(())
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn argument(option: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut argument = OsString::from(format!("--{option}="));
    argument.push(value);
    argument
}

/// Checks that `serve` accepts a value of an option. An error names `flag`, which the user gave.
fn check(flag: &str, option: &str, value: &OsStr) -> Result<(), String> {
    match objection(&["serve"], &argument(option, value)) {
        None => Ok(()),
        Some(why) => Err(format!("{flag} {}: {why}", value.to_string_lossy())),
    }
}

fn runs_as(user: &str) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let id_of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(user)).then(|| fields.nth(1).map(str::to_owned))?
    };
    if user == own || users.lines().find_map(id_of) == Some(own) {
        return Ok(());
    }
    Err(format!(
        "-u {user}: the process cannot change its user; start it as {user}"
    ))
}

fn read(args: &[OsString]) -> Result<MemcachedArgs, Failure> {
    let mut asked = MemcachedArgs {
        bytes: 64 << 20,
        ..MemcachedArgs::default()
    };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let taken = match text.strip_prefix("--") {
            Some(long) => take_long(&mut asked, long, &mut words),
            None => match text.strip_prefix('-') {
                Some(letters) => take_letters(&mut asked, letters, &mut words),
                None => Err(format!("{text:?}: a flag must start with -")),
            },
        };
        taken.map_err(Failure::Usage)?;
    }
    asked
        .tls
        .check()
        .map_err(|why| Failure::Usage(why.into()))?;
    if asked.item_bytes > asked.bytes / 2 {
        let text = "-I: the item size must be at most half of -m";
        return Err(Failure::Usage(text.into()));
    }
    let large = !asked.keeps_all && asked.item_bytes > PAGE_BYTES;
    let least = cache_bytes_min(asked.item_bytes.next_power_of_two());
    if large && least > asked.bytes {
        return Err(Failure::Usage(format!(
            "-I: a cache needs at least {} pages as large as the largest item, so -m must be at least {}",
            PAGES_MIN + 1,
            least.div_ceil(1 << 20)
        )));
    }
    Ok(asked)
}

fn known() -> impl Iterator<Item = &'static MemcachedFlag> {
    FLAGS.iter().chain(&MEANINGLESS)
}

type RemainingArgs<'a> = std::slice::Iter<'a, OsString>;

/// `--name`, `--name=value`, `--name value`
fn take_long(
    asked: &mut MemcachedArgs,
    long: &str,
    words: &mut RemainingArgs<'_>,
) -> Result<(), String> {
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(OsString::from(value))),
        None => (long, None),
    };
    let flag = known().find(|flag| flag.1 == name);
    let MemcachedFlag(letter, _, valued) = flag.ok_or(format!("unrecognized option '--{name}'"))?;
    let value = match (valued, value) {
        (true, None) => words.next().cloned(),
        (true, value) => value,
        (false, _) => Some(OsString::new()),
    };
    let value = value.ok_or(format!("option '--{name}' requires an argument"))?;
    asked.take(*letter, &value)
}

/// `-v`, `-vv`, `-p 11211`, `-p11211`
fn take_letters(
    asked: &mut MemcachedArgs,
    letters: &str,
    words: &mut RemainingArgs<'_>,
) -> Result<(), String> {
    for (at, letter) in letters.char_indices() {
        let flag = known().find(|flag| flag.0 == letter);
        let MemcachedFlag(_, _, valued) = flag.ok_or(format!("invalid option -- '{letter}'"))?;
        if !valued {
            asked.take(letter, OsStr::new(""))?;
            continue;
        }
        let joined = &letters[at + letter.len_utf8()..];
        let value = match joined {
            "" => words.next().cloned(),
            joined => Some(OsString::from(joined)),
        };
        let value = value.ok_or(format!("option requires an argument -- '{letter}'"))?;
        return asked.take(letter, &value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Result<Vec<String>, String> {
        let args: Vec<_> = line.split_whitespace().map(OsString::from).collect();
        match translate(&args) {
            Ok(Some(args)) => Ok(args.into_iter().map(|a| a.into_string().unwrap()).collect()),
            Ok(None) => Ok(Vec::new()),
            Err(Failure::Usage(why)) => Err(why),
            Err(_) => panic!("a wrong flag must be a usage error"),
        }
    }

    #[track_caller]
    fn assert_all_in(given: &[String], expected: &[&str]) {
        for expected in expected {
            assert!(
                given.iter().any(|arg| arg == expected),
                "{expected}: {given:?}"
            );
        }
    }

    #[test]
    fn flags_are_translated_to_options_of_serve() {
        let given =
            arguments("-m 128 -p11212 -l 127.0.0.1 -c 50 -t2 -I 2m -e /x/y -F -vv -U 0 -o modern");
        let given = given.unwrap();
        assert_all_in(
            &given,
            &[
                "--size=128mb",
                "--memcached-port=11212",
                "--bind=127.0.0.1",
                "--maxclients=50",
                "--workers=2",
                "--memcached-item-size=2m",
                "--pool=/x/y",
                "--memcached-no-flush",
                "--log-level=debug",
            ],
        );
        let given = arguments("-l localhost:7").unwrap();
        assert!(given.contains(&"--bind=127.0.0.1".to_owned()), "{given:?}");
        assert!(
            given.contains(&"--memcached-port=7".to_owned()),
            "{given:?}"
        );
        let given = arguments("--port=1 --memory-limit 2 --listen ::1,127.0.0.1:5").unwrap();
        assert_all_in(
            &given,
            &[
                "--memcached-port=5",
                "--size=2mb",
                "--bind=::1,127.0.0.1",
                "--pool=none",
            ],
        );
    }

    #[test]
    fn the_flags_of_tls_are_translated_if_it_is_enabled() {
        let options = "-o ssl_chain_cert=/c,ssl_key=/k,ssl_keyformat=1,ssl_wbuf_size=16";
        let given = arguments(&format!("{options} -p 7")).unwrap();
        assert!(
            given.contains(&"--memcached-port=7".to_owned()),
            "{given:?}"
        );
        assert!(!given.iter().any(|arg| arg.contains("tls")), "{given:?}");
        let given = arguments(&format!("{options} -Z")).unwrap();
        assert_all_in(
            &given,
            &[
                "--memcached-port=off",
                "--memcached-tls-port=11211",
                "--tls-auth-clients=no",
                "--tls-cert-file=/c",
                "--tls-key-file=/k",
            ],
        );
        let given = arguments(&format!("-l notls:127.0.0.1:8,127.0.0.1:9 -Z {options}")).unwrap();
        assert_all_in(
            &given,
            &[
                "--memcached-port=8",
                "--memcached-tls-port=9",
                "--bind=127.0.0.1",
            ],
        );
        let more = ",ssl_verify_mode=2,ssl_ca_cert=/a,ssl_min_version=3";
        let given = arguments(&format!("-l 127.0.0.1:9 -Z {options}{more}")).unwrap();
        assert_all_in(
            &given,
            &[
                "--memcached-tls-port=9",
                "--tls-auth-clients=yes",
                "--tls-ca-cert-file=/a",
                "--tls-protocols=TLSv1.3",
            ],
        );
        assert!(
            !given.contains(&"--tls-auth-clients=no".to_owned()),
            "{given:?}"
        );
    }

    #[test]
    fn a_unix_socket_replaces_the_ports() {
        let given = arguments("-p 7 -s /run/socket -a 770").unwrap();
        let expected = [
            "--memcached-unixsocket=/run/socket",
            "--memcached-unixsocketperm=770",
            "--memcached-port=off",
        ];
        assert_all_in(&given, &expected);
        assert!(!given.iter().any(|word| word.ends_with("port=7")));
    }

    #[test]
    fn every_translation_is_a_command_line_of_serve() {
        use clap::Parser;
        for line in [
            "",
            "-m 10 -p 0 -l ::1 -c 1 -t 1 -I 1m -F -C -v",
            "-k -L -r -M -f 1.2 -R 5 -b 9",
            "-s /run/socket -a 0770",
            "-Z -o ssl_chain_cert=/c,ssl_key=/k,ssl_ca_cert=/a,ssl_verify_mode=1,ssl_min_version=2",
        ] {
            let given = arguments(line).unwrap();
            assert!(crate::Cli::try_parse_from(&given).is_ok(), "{given:?}");
        }
    }

    #[test]
    fn invalid_and_unsupported_flags_are_refused_by_name() {
        for (line, why) in [
            ("-S", "invalid option -- 'S'"),
            ("-a 888", "an octal number up to 777"),
            ("--enable-ssl", "-Z needs -o ssl_chain_cert"),
            (
                "-Z -o ssl_chain_cert=c,ssl_verify_mode=3",
                "must be 0, 1 or 2",
            ),
            ("-o ssl_min_version=1", "must be 2 (TLS 1.2) or 3 (TLS 1.3)"),
            ("-o ssl_keyformat=2", "must be 1 (PEM)"),
            ("-o ssl_key", "-o ssl_key must be given a file"),
            (
                "-Z -o ssl_chain_cert=c,ssl_verify_mode=2",
                "need -o ssl_ca_cert",
            ),
            ("-o ssl_ciphers=x", "Illegal suboption \"ssl_ciphers\""),
            ("-p", "requires an argument"),
            (
                "-p 99999",
                "-p 99999: a port must be a number up to 65535, or off",
            ),
            ("-t 100000", "-t 100000: 100000 is not in 0..=256"),
            ("-c x", "-c x: invalid digit found in string"),
            ("-m x", "-m x: must be a number of megabytes greater than 0"),
            ("-m 0", "-m 0: must be a number of megabytes greater than 0"),
            ("-I 1", "-I 1: an item size must be from 1k to 512m"),
            ("-l there", "-l there: an address must be an IP"),
            ("-l notls:127.0.0.1", "-l notls:127.0.0.1: needs a port"),
            (
                "-o idle_timeout=x",
                "-o idle_timeout x: invalid digit found in string",
            ),
            ("-U 11211", "UDP is not supported"),
            ("-B binary", "only the text protocol"),
            ("-o modern,ext_path=/x", "Illegal suboption \"ext_path\""),
            ("-I 256m", "half of -m"),
            ("-m 11 -I 2m", "-m must be at least 12"),
            ("-t 0", "greater than 0"),
            ("-u no-such-user", "cannot change its user"),
            ("stray", "a flag must start with -"),
        ] {
            let error = arguments(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
