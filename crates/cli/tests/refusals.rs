//! Error messages for wrong input: what is wrong, where, and what is accepted.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// Returns the exit code and standard error of a command line.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbank"));
    let output = command.args(args).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error)
}

fn says(args: &[&str], code: i32, text: &str) {
    let (status, error) = refused(args);
    assert_eq!(status, Some(code), "{args:?}: {error}");
    assert!(error.contains(text), "{args:?}: {error}");
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

#[test]
fn invalid_options_are_refused_by_check_config_and_other_commands() {
    for (options, text) in [
        (["--workers", "100000"], "100000 is not in 0..=256"),
        (["--maxclients", "0"], "0 is not in 1.."),
        (
            ["--idle-timeout", "99999999999"],
            "99999999999 is not in 0..=2147483647",
        ),
        (["--size", "16000000tb"], "--size must be at most 4.0 TiB"),
        (
            ["--max-size", "16000000tb"],
            "--max-size must be at most 4.0 TiB",
        ),
        (
            ["--segment-bytes", "2gb"],
            "--segment-bytes must be a power of two from 4kb to 1gb",
        ),
        (["--unixsocketperm", "888"], "an octal number up to 777"),
        (["--enable-protected-configs", "maybe"], "no, yes, local"),
    ] {
        let args = ["serve", "--check-config", options[0], options[1]];
        says(&args, 2, text);
    }
    // The options are checked before the device is written to.
    let create = [
        "pool",
        "create",
        "/dev/null",
        "--segment-bytes",
        "2gb",
        "--size",
        "40gb",
    ];
    says(&create, 2, "--segment-bytes must be a power of two");
    let create = ["pool", "create", "/dev/null", "--size", "16mb"];
    says(&create, 1, "not a devdax device");
    let text = "--pool none is memory of this process: --medium must be auto or dram";
    says(
        &[
            "serve",
            "--check-config",
            "--pool",
            "none",
            "--medium",
            "dax",
        ],
        2,
        text,
    );
    says(
        &["bench", "kv", "--size", "16000000tb"],
        2,
        "--size must be at most 4.0 TiB",
    );
    says(
        &["bench", "cache", "--requests", "0"],
        2,
        "0 is not in 1000..",
    );
    says(&["check", "kill", "--cycles", "0"], 2, "0 is not in 1..");
    says(
        &["check", "schedules", "--schedules", "0"],
        2,
        "0 is not in 1..",
    );
}

#[test]
fn an_error_names_only_the_address_that_cannot_be_bound() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").port().to_string();
    let args = |port, memcached, bind| {
        let fixed = [
            "serve",
            "--pool",
            "none",
            "--unsafe-no-auth",
            "--bind",
            bind,
        ];
        [&fixed[..], &["--port", port, "--memcached-port", memcached]].concat()
    };
    let (status, error) = refused(&args("0", "off", "192.0.2.1"));
    assert_eq!(status, Some(1), "{error}");
    let text = "error: cannot listen on 192.0.2.1:0: Cannot assign requested address (os error 99)\n\
                hint: --bind must name addresses of this machine\n";
    assert_eq!(error, text);
    let (status, error) = refused(&args("0", "off", "127.0.0.1,192.0.2.1"));
    assert_eq!((status, error.as_str()), (Some(1), text));
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener
        .local_addr()
        .expect("an address")
        .port()
        .to_string();
    let (status, error) = refused(&args("0", &port, "127.0.0.1"));
    assert_eq!(status, Some(1), "{error}");
    let text = format!(
        "error: cannot listen on 127.0.0.1:{port}: Address already in use (os error 98)\nhint: another server"
    );
    assert!(error.starts_with(&text), "{error}");
    assert!(!error.contains(&format!(":{taken}")), "{error}");
}

#[test]
fn an_error_in_a_config_file_names_the_file_and_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file(
        folder.path(),
        "farbank.toml",
        "port = 7000\n\nprot = 7001\n",
    );
    let text = format!(
        "error: {path}: line 3: serve has no option \"prot\"; a similar argument exists: '--port'\n"
    );
    let (status, error) = refused(&["serve", "--check-config", "--config", &path]);
    assert_eq!((status, error), (Some(2), text));
    let path = file(
        folder.path(),
        "other.toml",
        "# a comment\nworkers = 'many'\n",
    );
    let text =
        format!("error: {path}: line 2: invalid value 'many' for '--workers <N>': invalid digit");
    says(&["serve", "--check-config", "--config", &path], 2, &text);
    let path = file(
        folder.path(),
        "load.toml",
        "bench = 'kv'\nquestion = '?'\nkyes = 1\n",
    );
    let text = format!("{path}: line 3: bench kv has no option \"kyes\"");
    says(&["bench", "kv", "--workload", &path], 2, &text);
}

#[test]
fn a_file_that_is_not_a_pool_is_refused_with_one_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = file(folder.path(), "short", "24 bytes, and no pool...");
    for verb in ["info", "check", "scrub", "dump"] {
        let (status, error) = refused(&["pool", verb, &short]);
        assert_eq!(status, Some(1), "{verb}");
        for part in [short.as_str(), "24 bytes", "a superblock\n"] {
            assert_eq!(error.matches(part).count(), 1, "{verb}: {error}");
        }

        let (status, error) = refused(&["pool", verb, "/etc"]);
        assert_eq!(status, Some(1), "{verb}: {error}");
        assert_eq!(error.matches("/etc").count(), 1, "{verb}: {error}");
    }
}

#[test]
fn options_of_a_cluster_that_do_not_belong_together_are_refused() {
    let check = ["check", "cluster"];
    for (options, text) in [
        (
            &["--provider", "tcp;ofi_rxm"][..],
            "--provider needs --fabric libfabric",
        ),
        (
            &["--hosts", "--listen", "127.0.0.1"][..],
            "cannot be used with",
        ),
        (&["--lease-ms", "99"][..], "99 is not in 100..=60000"),
    ] {
        says(&[&check[..], options].concat(), 2, text);
    }
}
