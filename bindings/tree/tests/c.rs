//! The example in C, compiled and linked with the library as its users do, on two memory servers.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::sync::Arc;

use farbank_fabric::server::{LeaseSettings, MemoryNode, MemorySettings, WordMemory};
use farbank_fabric::tcp::{SharedKey, TcpServer, TcpServerSettings};
use farbank_pm::media::Mapped;
use farbank_tree_c::{Bytes, farbank_tree_connect, farbank_tree_error, farbank_tree_free};

const KEY: [u8; 32] = [7; 32];

fn start_servers() -> (Vec<TcpServer>, Vec<SocketAddr>) {
    let (mut servers, mut addresses) = (Vec::new(), Vec::new());
    for number in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let medium = Mapped::anonymous(16 << 20).unwrap();
        let memory = WordMemory::open(medium, MemorySettings::new(number), 1).unwrap();
        let node = Arc::new(MemoryNode::new(memory, LeaseSettings::default()));
        let settings = TcpServerSettings {
            lease_server: addresses.first().copied(),
            ..TcpServerSettings::new(SharedKey::new(KEY).unwrap())
        };
        addresses.push(listener.local_addr().unwrap());
        servers.push(TcpServer::start(listener, node, settings).unwrap());
    }
    (servers, addresses)
}

/// Returns the folder of the libraries that cargo has built with this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

/// Compiles the example in `folder` and links it with `library`.
fn compile(folder: &Path, library: &[&str]) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("counter");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
    ]);
    compiler
        .arg(own.join("include"))
        .arg(own.join("example/counter.c"));
    compiler.arg("-o").arg(&program).arg("-L").arg(libraries());
    let compiled = compiler.args(library).output().unwrap();
    let error = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{error}");
    program
}

#[test]
fn the_example_in_c_counts_with_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, KEY).unwrap();
    let shared = ["-lfarbank_tree_c", "-lpthread"];
    let linked = [
        "-l:libfarbank_tree_c.a",
        "-lpthread",
        "-ldl",
        "-lm",
        "-lgcc_s",
    ];
    for library in [&shared[..], &linked[..]] {
        let (_servers, addresses) = start_servers();
        let program = compile(folder.path(), library);
        let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut run = Command::new(program);
        run.env("LD_LIBRARY_PATH", libraries());
        let output = run.arg(list.join(",")).arg(&key).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{library:?}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "empty = \ncounter = 1000\n", "{library:?}");
        let again = run.output().unwrap();
        let error = String::from_utf8_lossy(&again.stderr);
        assert!(
            error.contains("create: there is a tree"),
            "{library:?}: {error}"
        );
    }
}

#[test]
fn wrong_arguments_are_errors_with_a_description() {
    let error = || {
        // SAFETY: the function returns a string that is valid until the next call.
        let error = unsafe { std::ffi::CStr::from_ptr(farbank_tree_error()) };
        error.to_str().unwrap().to_owned()
    };
    let connect = |servers: *const std::ffi::c_char, key: &[u8]| {
        let key = Bytes {
            data: key.as_ptr().cast(),
            bytes: key.len(),
        };
        // SAFETY: the list is null or ends with a zero byte, and the key can be read.
        assert!(unsafe { farbank_tree_connect(servers, key, 100) }.is_null());
        error()
    };
    assert_eq!(connect(ptr::null(), &KEY), "the list of servers is null");
    assert!(connect(c"localhost".as_ptr(), &KEY).contains("expected IP:PORT"));
    assert!(connect(c"127.0.0.1:1".as_ptr(), b"").contains("key"));
    assert!(connect(c"127.0.0.1:1".as_ptr(), &KEY).contains("127.0.0.1:1"));
    let mut none = Bytes::NONE;
    // SAFETY: null and no bytes are allowed.
    unsafe {
        farbank_tree_free(ptr::null_mut());
        farbank_tree_free(&raw mut none);
    }
}
