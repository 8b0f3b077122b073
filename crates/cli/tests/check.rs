//! `farbank check` as a process: its output, its exit codes, and that it can fail.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use farbank_check::child::{RunFailure, ServerLaunch};
use farbank_check::{histories, kill};

fn check(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    let Output {
        status,
        stdout,
        stderr,
    } = command.arg("check").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn last_line(text: &str) -> serde_json::Value {
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// Creates a folder, in memory if possible, because the tests are not about syncs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

#[test]
fn a_server_killed_three_times_under_load_loses_nothing() {
    let folder = folder();
    for medium in ["auto", "file"] {
        let pool = folder.path().join(medium);
        let pool_text = pool.to_str().unwrap();
        let (code, out, error) = check(&[
            "kill", "--cycles", "3", "--size", "32mb", "--pool", pool_text, "--medium", medium,
            "--json",
        ]);
        assert_eq!(code, Some(0), "{medium}: {error}");
        let figures = last_line(&out);
        assert_eq!(
            (&figures["holds"], &figures["cycles"]),
            (&true.into(), &3.into()),
            "{figures}"
        );
        assert!(figures["live_share_min"].as_f64() > Some(0.77), "{figures}");
        assert!(figures["segments_cleaned"].as_u64() > Some(0), "{figures}");
        assert!(!pool.exists(), "the pool was not removed");
    }
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_killed_server_with_every_eviction_policy_restores_no_evicted_key() {
    let folder = folder();
    let pool = folder.path().join("pool");
    let (code, out, error) = check(&[
        "kill",
        "--cycles",
        "9",
        "--size",
        "32mb",
        "--maxmemory",
        "16mb",
        "--pool",
        pool.to_str().unwrap(),
        "--json",
    ]);
    assert_eq!(code, Some(0), "{error}");
    let figures = last_line(&out);
    assert_eq!(figures["holds"], true, "{figures}");
    assert!(figures["keys_evicted"].as_u64() > Some(1_000), "{figures}");
    assert!(figures["refused"].as_u64() > Some(100), "{figures}");
}

/// Creates a script that starts `farbank`, and restores the pool of the second start at every start from the third
/// on.
fn forgetful(folder: &Path, pool: &Path) -> std::path::PathBuf {
    let (program, pool) = (folder.join("forgetful"), pool.display());
    let script = format!(
        "#!/bin/sh\nif [ -e {pool}.old ]; then cp {pool}.old {pool}\n\
         elif [ -e {pool} ]; then cp {pool} {pool}.old; fi\nexec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_farbank")
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_server_that_loses_acknowledged_writes_is_detected() {
    let folder = folder();
    let launch = |name: &str, memcached| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let pool = folder.join("pool");
        ServerLaunch {
            program: forgetful(&folder, &pool),
            pool,
            pool_bytes: 32 << 20,
            arguments: Vec::new(),
            memcached,
        }
    };
    let (cycles, seed) = (5, 1);
    let kill = kill::KillOptions {
        launch: launch("kill", false),
        cycles,
        connections: 2,
        seed,
        eviction: None,
    };
    let histories = histories::HistoryOptions {
        cycles,
        connections: 2,
        full: false,
        seed,
    };
    let killed = kill::run(&kill, &mut |_| ()).map(drop);
    let mut server = histories::ServerProcess::new(launch("histories", true));
    let searched = histories::run(&mut server, &histories, &mut |_| ()).map(drop);
    for found in [killed, searched] {
        match found {
            Err(RunFailure::Violation(violation)) => {
                assert!(!violation.history.is_empty(), "{violation:?}");
            }
            other => panic!("a pool of an earlier cycle passed: {other:?}"),
        }
    }
}

#[test]
fn histories_of_a_killed_server_are_linearizable() {
    for more in [&["--medium", "file"][..], &["--full"]] {
        let folder = folder();
        let pool = folder.path().join("pool");
        let pool = pool.to_str().unwrap();
        let own = [
            "histories",
            "--cycles",
            "2",
            "--size",
            "32mb",
            "--pool",
            pool,
            "--json",
        ];
        let (code, out, error) = check(&[&own[..], more].concat());
        assert_eq!(code, Some(0), "{error}");
        let figures = last_line(&out);
        assert_eq!(figures["histories"], 12, "{figures}");
        assert_eq!(figures["given_up"], 0, "{figures}");
    }
}

#[test]
fn histories_of_a_server_whose_power_is_cut_are_linearizable() {
    check_histories("adr", "--max-size=64mb");
}

#[test]
fn histories_of_a_full_server_whose_power_is_cut_are_linearizable() {
    check_histories("page", "--full");
}

fn check_histories(persistency: &str, more: &str) {
    let (code, out, error) = check(&[
        "histories",
        "--persistency",
        persistency,
        "--cycles",
        "8",
        "--size",
        "32mb",
        "--json",
        more,
    ]);
    assert_eq!(code, Some(0), "{error}");
    let figures = last_line(&out);
    assert_eq!(figures["histories"], 48, "{figures}");
    assert_eq!(figures["given_up"], 0, "{figures}");
    assert_ne!(figures["power_cuts"], 0, "{figures}");
}

#[test]
fn a_pool_too_small_for_the_values_is_refused_on_every_medium() {
    for more in [&[][..], &["--persistency", "page"]] {
        let (code, _, error) = check(&[&["histories", "--size", "1mb"][..], more].concat());
        assert_eq!(code, Some(2), "{error}");
        assert_eq!(error, "error: --size must be at least 32mb\n");
    }
}

#[test]
fn one_crash_of_one_seed_can_be_repeated() {
    for pick in ["0", "kill"] {
        let (code, out, error) = check(&[
            "crash",
            "--persistency",
            "adr",
            "--seeds",
            "0x2",
            "--crash",
            "40",
            "--image",
            pick,
            "--json",
        ]);
        assert_eq!(code, Some(0), "{error}");
        let figures = last_line(&out);
        assert_eq!(figures["holds"], true, "{figures}");
        assert_eq!(figures["runs"][0]["seeds"], 1, "{figures}");
    }
}

#[test]
fn a_run_too_short_to_crash_at_every_place_fails() {
    let (code, out, error) = check(&[
        "crash",
        "--persistency",
        "adr",
        "--seeds",
        "1..3",
        "--steps",
        "2",
    ]);
    assert_eq!(code, Some(1), "{out}");
    assert!(error.contains("no crash was tried where"), "{error}");
    assert!(
        out.lines().last().unwrap().contains("DOES NOT HOLD"),
        "{out}"
    );
}

#[test]
fn further_seeds_run_until_every_place_was_reached() {
    let arguments = [
        "crash",
        "--persistency",
        "adr",
        "--seeds",
        "1..2",
        "--steps",
        "2",
    ];
    let seeds_of = |more: &str| {
        let options = [&arguments[..], &["--more-seeds", more, "--json"]].concat();
        let (_, out, _) = check(&options);
        last_line(&out)["runs"][0]["seeds"].as_u64().unwrap()
    };
    assert_eq!(seeds_of("0"), 1);
    assert_eq!(seeds_of("2"), 3, "two steps do not reach every place");
}

#[test]
fn invalid_options_are_refused() {
    for (arguments, text) in [
        (&["crash", "--crash", "3"][..], "--crash needs one seed"),
        (&["crash", "--seeds", "4..4"], "the range of seeds is empty"),
        (&["crash", "--image", "3"], "--crash"),
        (
            &["crash", "--persistency", "words"],
            "possible values: adr, eadr, word, page, relaxed, all",
        ),
        (&["kill", "--size", "1mb"], "--size must be at least"),
        (&["kill", "--pool", "/"], "already exists"),
    ] {
        let (code, _, error) = check(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
}

#[test]
fn schedules_of_the_tree_hold_and_the_same_seeds_give_the_same_digest() {
    let run = |seed: &str| {
        let arguments = [
            "schedules",
            "--target",
            "tree",
            "--schedules",
            "30",
            "--seed",
            seed,
            "--json",
        ];
        let (code, out, error) = check(&arguments);
        assert_eq!(code, Some(0), "{error}");
        last_line(&out)
    };
    let [first, again, other] = ["0x10", "16", "17"].map(run);
    assert_eq!(first["holds"], true, "{first}");
    assert_eq!(first["schedules"], 30, "{first}");
    assert_eq!(first["digest"], again["digest"]);
    assert_ne!(first["digest"], other["digest"]);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_failure_of_the_tree_is_reported_with_its_history_and_a_command_that_reproduces_it() {
    let (code, out, _) = check(&[
        "schedules",
        "--target",
        "tree",
        "--controls",
        "--schedules",
        "4000",
        "--json",
    ]);
    assert_eq!(code, Some(0));
    let caught = last_line(&out)["found"][0]["run"].clone();
    let command = caught["command"].as_str().unwrap().to_owned();
    let again: Vec<&str> = command.split(' ').skip(2).collect();
    let (code, out, error) = check(&again);
    assert_eq!(code, Some(1), "{command}: {error}");
    assert!(out.contains(caught["what"].as_str().unwrap()), "{out}");
    assert!(out.contains(&format!("again: {command}")), "{out}");
    assert!(out.contains("client "), "{out}");
}
