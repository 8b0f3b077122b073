//! `farbank pool` as a process: creation, information, checks and dumps.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use farbank::store::{Key, Value};
use farbank::{Options, open};

fn pool(verb: &str, path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    let output = command.args(["pool", verb]).arg(path).args(more).output();
    output.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Creates a pool with some keys in two databases, one of them with an expiry in the far future.
fn filled(path: &Path) {
    let options = Options {
        pool_bytes: 16 << 20,
        ..Options::default()
    };
    let db = open(path, &options).unwrap();
    let mut session = db.session();
    session.put(b"greeting", b"hello").unwrap();
    session.put(b"bytes", b"\x00\xff\r\n\"").unwrap();
    let lasting = Value {
        bytes: b"until",
        expires_ms: 4_000_000_000_000,
        ..Value::default()
    };
    let key = Key {
        db: 3,
        bytes: b"mayfly",
    };
    session.all().put(key, lasting).unwrap();
    session.commit().unwrap();
    drop(session);
    db.close().unwrap();
}

#[test]
fn create_makes_an_empty_sound_pool_and_refuses_to_overwrite_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let made = pool("create", &path, &["--size", "16mb"]);
    assert!(made.status.success(), "{}", text(&made));
    let again = pool("create", &path, &["--size", "16mb"]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
    let info = text(&pool("info", &path, &[]));
    assert!(
        info.contains("16.0 MiB") && info.contains("closed cleanly: the next open loads"),
        "{info}"
    );
    let checked = pool("check", &path, &[]);
    assert!(
        checked.status.success() && text(&checked).contains("sound, 0 keys"),
        "{}",
        text(&checked)
    );
}

#[test]
fn info_works_while_the_pool_is_open_and_check_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    filled(&path);
    let db = open(&path, &Options::default()).unwrap();
    let info = text(&pool("info", &path, &["--json"]));
    assert!(info.contains("\"closed_cleanly\":false"), "{info}");
    let refused = pool("check", &path, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("in use"), "{}", text(&refused));
    db.close().unwrap();
}

#[test]
fn dump_writes_commands_that_store_all_keys_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    filled(&path);
    let dumped = pool("dump", &path, &[]);
    assert!(dumped.status.success(), "{}", text(&dumped));
    let has = |part: &[u8]| dumped.stdout.windows(part.len()).any(|w| w == part);
    assert!(has(b"*3\r\n$3\r\nSET\r\n$8\r\ngreeting\r\n$5\r\nhello\r\n"));
    assert!(has(
        b"*3\r\n$3\r\nSET\r\n$5\r\nbytes\r\n$5\r\n\x00\xff\r\n\"\r\n"
    ));
    let expiring =
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*5\r\n$3\r\nSET\r\n$6\r\nmayfly\r\n$5\r\nuntil\r\n\
        $4\r\nPXAT\r\n$13\r\n4000000000000\r\n";
    assert!(has(expiring), "{}", dumped.stdout.escape_ascii());
    let json = text(&pool("dump", &path, &["--format", "json"]));
    let lines: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let bytes = lines.iter().find(|line| line["key"] == "bytes").unwrap();
    assert_eq!(bytes["value"], "\u{0}\u{ff}\r\n\"");
    assert!(json.is_ascii() && lines.len() == 3, "{json}");
}

#[test]
fn scrub_finds_a_flipped_bit_of_a_value_and_names_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    filled(&path);
    assert!(pool("scrub", &path, &[]).status.success());
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(13)
        .position(|w| w == b"greetinghello")
        .unwrap() as u64
        + 9;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"E", at).unwrap();
    let scrubbed = pool("scrub", &path, &["--json"]);
    assert_eq!(scrubbed.status.code(), Some(1), "{}", text(&scrubbed));
    let line: serde_json::Value = serde_json::from_slice(&scrubbed.stdout).unwrap();
    assert_eq!(line["holds"], false);
    assert!(
        line["damage"][0]
            .as_str()
            .unwrap()
            .contains("key \"greeting\""),
        "{line}"
    );
}

#[test]
fn a_missing_pool_and_a_file_that_is_not_a_pool_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    for verb in ["info", "check", "scrub", "dump"] {
        let absent = pool(verb, &path, &[]);
        assert_eq!(absent.status.code(), Some(1));
        assert!(
            text(&absent).contains("there is no pool"),
            "{}",
            text(&absent)
        );
    }
    std::fs::write(&path, vec![b'x'; 20_000]).unwrap();
    for verb in ["info", "check", "scrub", "dump"] {
        let foreign = pool(verb, &path, &[]);
        assert_eq!(foreign.status.code(), Some(1));
        assert!(text(&foreign).contains("not a pool"), "{}", text(&foreign));
    }
}
