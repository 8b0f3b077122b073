//! redis-server's command line: the binary under the name `redis-server`.
//!
//! ```text
//!   redis-server redis.conf --port 7777 --save ""
//!   farbank serve redis.conf --port=7777 --memcached-port=off --redis-lines
//! ```
//!
//! Options of the command line are directives of redis.conf, as in Redis: a word that begins with `--` is the name of a
//! directive, and the words up to the next one are its values. The first value may begin with `--` too, and a word may
//! contain both: `"--port 7777"`. The options follow the lines of the file.
//!
//! As Redis, the server listens on all addresses unless `bind` names some, and protected mode is on unless
//! `protected-mode` says otherwise.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::common::Failure;
use crate::common::redis_conf::ConfDirectives;

const HELP: &str = "\
Usage: redis-server [FILE|-] [--DIRECTIVE VALUE ...]...
redis-server's command line for `farbank serve`: directives of redis.conf in a file, on standard input (-), and on the
command line. A directive that has no meaning here is a warning. `dir` is the folder of the pool, farbank.pool.
Without `bind` the server listens on all addresses. Protected mode refuses clients of other machines until a password
is set.
-v, --version  print the version and exit
-h, --help     print this help and exit

Examples:
  redis-server
  redis-server /etc/redis/6379.conf
  redis-server --port 7777 --save \"\"";

/// Returns the words after the program's name if that is `redis-server`.
pub(crate) fn flags(args: &[OsString]) -> Option<&[OsString]> {
    let program = Path::new(args.first()?);
    (program.file_name() == Some(OsStr::new("redis-server"))).then(|| &args[1..])
}

/// Translates `args`, the words after the program's name, to arguments for `serve`. Returns `None` if this process
/// has nothing more to do.
pub(crate) fn translate(args: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    match args {
        [word] if word == "-v" || word == "--version" => {
            let (redis, own) = (farbank_server::REDIS_VERSION, env!("CARGO_PKG_VERSION"));
            println!("Redis server v={redis} (farbank {own})");
            return Ok(None);
        }
        [word] if word == "-h" || word == "--help" => {
            println!("{HELP}");
            return Ok(None);
        }
        _ => {}
    }
    let (mut given, mut rest) = (ConfDirectives::default(), args);
    if let Some((file, others)) = args.split_first()
        && !file.as_encoded_bytes().starts_with(b"-")
    {
        given.add_file(Path::new(file))?;
        rest = others;
    }
    let from_stdin = match rest {
        [first, others @ ..] if first == "-" => Some(others),
        [others @ .., last] if last == "-" => Some(others),
        _ => None,
    };
    if let Some(others) = from_stdin {
        let mut text = Vec::new();
        std::io::stdin()
            .read_to_end(&mut text)
            .map_err(|e| Failure::Usage(format!("cannot read standard input: {e}")))?;
        given.add_lines(&text, "standard input")?;
        rest = others;
    }
    given.add_lines(&directives(rest)?, "command line")?;
    let options = given.into_options()?;
    let fixed = [
        "farbank",
        "serve",
        "--memcached-port=off",
        "--redis-lines",
        "--protected-mode",
    ];
    let mut words = fixed.map(OsString::from).to_vec();
    if !options.iter().any(is_bind) {
        words.push(bind_all().into());
    }
    words.extend(options);
    Ok(Some(words))
}

fn is_bind(option: &OsString) -> bool {
    option.as_encoded_bytes().starts_with(b"--bind=")
}

/// The addresses of this machine: those of IPv6 only if it has any, as in Redis.
pub(crate) fn every_address() -> Vec<IpAddr> {
    let mut every = vec![IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    if TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        every.push(Ipv6Addr::UNSPECIFIED.into());
    }
    every
}

/// The option that selects all addresses.
fn bind_all() -> String {
    let every: Vec<_> = every_address().iter().map(IpAddr::to_string).collect();
    format!("--bind={}", every.join(","))
}

/// The options `args` as lines of a redis.conf.
fn directives(args: &[OsString]) -> Result<Vec<u8>, Failure> {
    let (mut lines, mut may_begin) = (Vec::new(), true);
    let mut words = args.iter().map(|word| word.as_bytes()).peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix(b"--").filter(|_| may_begin) else {
            lines.extend_from_slice(&farbank_server::quoted_word(word));
            lines.push(b' ');
            may_begin = true;
            continue;
        };
        if [&b"sentinel"[..], b"check-system", b"test-memory"].contains(&name) {
            let word = String::from_utf8_lossy(word);
            return Err(Failure::Usage(format!("{word} is not supported")));
        }
        if !lines.is_empty() {
            lines.push(b'\n');
        }
        lines.extend_from_slice(name);
        lines.push(b' ');
        may_begin = name.trim_ascii_end().contains(&b' ');
        // As in Redis, this directive alone has no value if none follows.
        let ends = words.peek().is_none_or(|next| next.starts_with(b"--"));
        if name.eq_ignore_ascii_case(b"save") && ends {
            lines.extend_from_slice(b"\"\"");
            may_begin = true;
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    #[test]
    fn options_are_directives() {
        let args = words(&[
            "redis-server",
            "--port",
            "7777",
            "--save",
            "",
            "--bind",
            "127.0.0.1",
            "--requirepass",
            "a b",
            "--unknown",
            "x",
        ]);
        let options = translate(flags(&args).unwrap()).ok().flatten().unwrap();
        let expected = [
            "farbank",
            "serve",
            "--memcached-port=off",
            "--redis-lines",
            "--protected-mode",
            "--port=7777",
            "--bind=127.0.0.1",
            "--requirepass=a b",
        ];
        assert_eq!(options, words(&expected));
        let options = translate(&words(&["--port", "7777"])).ok().flatten();
        let is_any = |option: &OsString| option.as_encoded_bytes().starts_with(b"--bind=0.0.0.0");
        assert!(options.unwrap().iter().any(is_any));
        let lines =
            |line: &[&str]| String::from_utf8(directives(&words(line)).ok().unwrap()).unwrap();
        assert_eq!(
            lines(&["--port 1", "--save", "--dir", "a b"]),
            "port 1 \nsave \"\"\ndir \"a b\" "
        );
        assert_eq!(
            lines(&["loglevel", "verbose", "--title", "--own", "--x"]),
            "\"loglevel\" \"verbose\" \ntitle \"--own\" \nx "
        );
        assert!(flags(&words(&["farbank", "serve"])).is_none());
        assert!(translate(&words(&["--port", "1", "--sentinel"])).is_err());
    }
}
