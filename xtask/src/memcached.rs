//! Suite `memcached`: runs memcached's own tests, from Debian's source package, on our binary.
//!
//! The tests start a program `memcached-debug` in their own folder. Here it is a script that runs `farbank memcached`
//! with the given flags, except for flags that have no counterpart. The tests advance the clock by a command of a debug
//! build; here they wait instead. This file and docs/compatibility.md list the tests that cannot pass, with the
//! reasons.
//!
//! The suite then runs `memccapable`, a conformance test of the text protocol from libmemcached, and a test like
//! `restart.t` with SIGKILL instead of a clean stop.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::RunSize;
use crate::debian_source;
use crate::run::{farbank, install, root, target, works};
use crate::serving::Serving;

/// Files of `t/` that pass completely.
const WHOLE: &[&str] = &[
    "ascii-auth",
    "bogus-commands",
    "cas",
    "chunked-items",
    "dash-M",
    "expirations",
    "flags",
    "flush-all",
    "getandtouch",
    "getset",
    "idle-timeout",
    "incrdecr",
    "issue_104",
    "issue_108",
    "issue_152",
    "issue_183",
    "issue_192",
    "issue_29",
    "issue_3",
    "issue_41",
    "issue_68",
    "issue_70",
    "item_size_max",
    "malicious-commands",
    "maxconns",
    "metaget",
    "multiversioning",
    "noreply",
    "quit",
    "ssl_cert_refresh",
    "ssl_ports",
    "ssl_proto_version",
    "ssl_session_resumption",
    "ssl_verify_modes",
    "stats-detail",
    "strtol-testing",
    "touch",
    "unixsocket",
];

/// A file of `t/` that passes in part: its name, the number of assertions that fail, and the reason. The file runs to
/// its end.
struct PartialTest(&'static str, usize, &'static str);

const PARTS: &[PartialTest] = &[
    PartialTest("issue_163", 1, "it expects figures of slab classes"),
    PartialTest(
        "issue_22",
        2,
        "it expects evictions, but 1 GiB is enough for all items",
    ),
    PartialTest(
        "issue_14",
        1,
        "its items take a second page; memcached splits them",
    ),
    PartialTest("issue_42", 1, "it expects figures of slab classes"),
    PartialTest(
        "issue_61",
        1,
        "connections do not yield after a number of requests (-R)",
    ),
    PartialTest("ssl_settings", 2, "farbank has no ssl_wbuf_size"),
    PartialTest("stats", 1, "farbank has fewer figures"),
    PartialTest("stats-conns", 1, "farbank has no UDP"),
];

/// Time limit of a file, in seconds.
const SECONDS_MAX: &str = "60";

pub(crate) fn run(_size: RunSize) -> Result<(), String> {
    packages()?;
    let folder = suite()?;
    let (mut ok, mut failed) = (0, 0);
    let mut wrong = Vec::new();
    let whole = WHOLE.iter().map(|name| PartialTest(name, 0, ""));
    let parts = PARTS
        .iter()
        .map(|PartialTest(name, fails, why)| PartialTest(name, *fails, why));
    for PartialTest(name, fails, why) in whole.chain(parts) {
        let tally = file(&folder, name)?;
        println!("{name}: {} ok, {} not ok {why}", tally.ok, tally.failed);
        ok += tally.ok;
        failed += tally.failed;
        if tally.failed > fails || !tally.ended || tally.ok == 0 {
            wrong.push(name);
        }
    }
    let (whole, all) = (WHOLE.len(), WHOLE.len() + PARTS.len());
    println!("{whole} of {all} files pass completely; {ok} assertions pass, {failed} fail");
    if !wrong.is_empty() {
        return Err(format!(
            "these files fail more assertions than listed, or do not end: {}",
            wrong.join(", ")
        ));
    }
    capable()?;
    kill_and_compare()
}

fn packages() -> Result<(), String> {
    let mut missing = Vec::new();
    if !works("prove", &["--version"]) {
        missing.push("perl");
    }
    if !works("perl", &["-MIO::Socket::SSL", "-e", "1"]) {
        missing.push("libio-socket-ssl-perl");
    }
    if !works("xz", &["--version"]) {
        missing.push("xz-utils");
    }
    if !works("memccapable", &["-h", "127.0.0.1", "-p", "1", "-T", "none"])
        && !Path::new("/usr/bin/memccapable").exists()
    {
        missing.push("libmemcached-tools");
    }
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing),
    }
}

/// Returns the folder from which the tests run. Creates it if it does not exist.
fn suite() -> Result<PathBuf, String> {
    let folder = target().join("memcached-suite");
    debian_source::unpack("memcached", &folder, "t/lib", None)?;
    let told = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    let library = folder.join("t/lib/MemcachedTest.pm");
    let text = fs::read_to_string(&library).map_err(told(&library))?;
    let text = text.replace(
        "print $sock \"debugtime $move\\r\\n\";\n    <$sock>;",
        "MemcachedTest::sleep($move);",
    );
    fs::write(&library, text).map_err(told(&library))?;
    let program = target().join("release/farbank");
    let program = program.display();
    // In these tests -U is a port; farbank has no UDP. Items that memcached would evict must fit instead, except where
    // eviction is tested (-M) or the largest item (-I).
    let wrapper = format!(
        "#!/usr/bin/perl\n\
         my (@flags, $limited);\n\
         while (defined(my $flag = shift @ARGV)) {{\n\
             if ($flag eq '-U') {{ shift @ARGV; next; }}\n\
             $limited = 1 if $flag =~ /^-[MI]/;\n\
             push @flags, $flag;\n\
         }}\n\
         push @flags, '-m', '1024' unless $limited;\n\
         exec '{program}', 'memcached', @flags;\n"
    );
    for (name, text) in [
        ("memcached-debug", wrapper.as_str()),
        ("timedrun", "#!/bin/sh\nshift\nexec \"$@\"\n"),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).map_err(told(&path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(told(&path))?;
    }
    Ok(folder)
}

/// Results of a test file.
struct AssertionCounts {
    ok: usize,
    failed: usize,
    /// Whether the file ran to its end.
    ended: bool,
}

fn file(folder: &Path, name: &str) -> Result<AssertionCounts, String> {
    let mut command = Command::new("timeout");
    command.args([SECONDS_MAX, "perl", &format!("t/{name}.t")]);
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if name.starts_with("ssl_") {
        command.env("SSL_TEST", "1");
    }
    let output = command
        .output()
        .map_err(|e| format!("perl cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = |what: &str| text.lines().filter(|line| line.starts_with(what)).count();
    let (ok, failed) = (count("ok "), count("not ok "));
    // perl's exit code is the number of failed assertions.
    let ended = output.status.code() == Some(i32::try_from(failed.min(254)).unwrap_or(0));
    Ok(AssertionCounts { ok, failed, ended })
}

fn capable() -> Result<(), String> {
    let server = serve(&["-m", "64"])?;
    let mut command = Command::new("memccapable");
    command.args(["-h", "127.0.0.1", "-p", &server.port, "-a"]);
    let text = crate::run::output(&mut command)?;
    match text.contains("All tests passed") {
        true => Ok(()),
        false => Err("memccapable did not print \"All tests passed\"".into()),
    }
}

/// Checks that acknowledged items survive SIGKILL: values, flags, expiries and CAS identifiers.
fn kill_and_compare() -> Result<(), String> {
    let pool = target().join("memcached-suite/pool");
    let _ = fs::remove_file(&pool);
    let path = pool.display().to_string();
    let flags = ["-m", "64", "-e", &path];
    let server = serve(&flags)?;
    let mut client = MemcachedConn::of(&server)?;
    for number in 0..1000 {
        let value = "v".repeat(number * 7 % 3000);
        let len = value.len();
        let exptime = if number % 3 == 0 { 86_400 } else { 0 };
        let replies = client.ask(
            &format!("set key{number} {number} {exptime} {len}\r\n{value}\r\n"),
            1,
        )?;
        if replies != ["STORED"] {
            return Err(format!("key{number}: {replies:?}"));
        }
    }
    client.ask(
        "incr key0 1\r\ndelete key1\r\ntouch key2 0\r\nappend key3 0 0 1\r\nx\r\n",
        4,
    )?;
    let before = client.everything()?;
    drop(server);
    let after = MemcachedConn::of(&serve(&flags)?)?.everything()?;
    let _ = fs::remove_file(&pool);
    println!(
        "{} equal lines about 1000 keys before and after SIGKILL",
        before.len()
    );
    match before
        .iter()
        .zip(&after)
        .find(|(before, after)| before != after)
    {
        None if before.len() == after.len() => Ok(()),
        Some((before, after)) => Err(format!("before the kill {before:?}, after it {after:?}")),
        None => Err("there are more or fewer lines of replies after the kill than before".into()),
    }
}

/// A connection to the server.
struct MemcachedConn(BufReader<TcpStream>);

impl MemcachedConn {
    fn of(server: &Serving) -> Result<MemcachedConn, String> {
        let stream = TcpStream::connect(format!("127.0.0.1:{}", server.port));
        let stream = stream.map_err(|e| format!("no connection: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        Ok(MemcachedConn(BufReader::new(stream)))
    }

    /// Sends `text` and reads `lines` lines.
    fn ask(&mut self, text: &str, lines: usize) -> Result<Vec<String>, String> {
        let told = |e: std::io::Error| format!("the server is gone: {e}");
        self.0.get_mut().write_all(text.as_bytes()).map_err(told)?;
        let mut read = Vec::new();
        for _ in 0..lines {
            let mut line = String::new();
            self.0.read_line(&mut line).map_err(told)?;
            read.push(line.trim_end().to_owned());
        }
        Ok(read)
    }

    /// Returns the replies about all keys: value, flags, CAS identifier, and whether the item expires.
    fn everything(&mut self) -> Result<Vec<String>, String> {
        let mut all = Vec::new();
        for number in 0..1000 {
            let line = self.ask(&format!("mg key{number} v f c\r\n"), 1)?.remove(0);
            if line.starts_with("VA ") {
                all.extend(self.ask("", 1)?);
            }
            all.push(line);
            let line = self.ask(&format!("mg key{number} t\r\n"), 1)?.remove(0);
            // The remaining time has changed, so only the presence of an expiry is compared.
            all.push(if line == "HD t-1" || line == "EN" {
                line
            } else {
                "ends".into()
            });
        }
        Ok(all)
    }
}

/// Starts a server with memcached's command line.
fn serve(flags: &[&str]) -> Result<Serving, String> {
    let mut command = farbank();
    command.args(["memcached", "-p", "0"]).args(flags);
    Serving::start(command.current_dir(root()), "memcached://")
}
