//! Part of the suite `file-systems`: pools and a tree's memory on hugetlbfs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::pool;
use crate::run::{farbank, output, succeed};
use crate::serving::Serving;

/// Number of huge pages of this machine.
const NUMBER_FILE: &str = "/proc/sys/vm/nr_hugepages";
/// Pages of 2 MiB that the checks need.
const PAGES: u64 = 100;

/// Huge pages that were reserved for the checks. Dropping this value returns them to the kernel.
pub(crate) struct ReservedPages {
    before: u64,
}

impl ReservedPages {
    /// Reserves pages. `None` if this machine has too few, or pages of another size.
    pub(crate) fn reserve() -> Option<ReservedPages> {
        let pages = ReservedPages {
            before: figure(NUMBER_FILE, "")?,
        };
        let wanted = (pages.before + PAGES).to_string();
        let has_size = figure("/proc/meminfo", "Hugepagesize:") == Some(2048);
        let is_set = has_size && fs::write(NUMBER_FILE, wanted).is_ok();
        let free = figure("/proc/meminfo", "HugePages_Free:");
        (is_set && free >= Some(PAGES)).then_some(pages)
    }
}

impl Drop for ReservedPages {
    fn drop(&mut self) {
        // If it fails, the pages stay reserved until the machine restarts.
        let _ = fs::write(NUMBER_FILE, self.before.to_string());
    }
}

/// Returns the number after `name` in `file`, if both exist.
fn figure(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Checks pools and a memory server on hugetlbfs, which is mounted at `folder`.
pub(crate) fn check(folder: &Path) -> Result<(), String> {
    refused(folder, &["--size", "8gb"], "not enough space")?;
    refused(folder, &["--medium", "file"], "which only dram can be")?;
    let killed = folder.join("killed");
    let mut kills = farbank();
    kills.args(["check", "kill", "--cycles", "5", "--pool"]);
    output(kills.arg(&killed))?;
    let mut histories = farbank();
    histories.args(["check", "histories", "--cycles", "5", "--pool"]);
    histories.arg(&killed);
    output(histories.args(["--size", "32mb", "--max-size", "96mb"]))?;
    shared_memory(folder)
}

fn refused(folder: &Path, options: &[&str], expected: &str) -> Result<(), String> {
    let path = folder.join("refused");
    let made = pool(&[&["create"], options].concat(), &path)?;
    let text = String::from_utf8_lossy(&made.stderr);
    match !made.status.success() && text.contains(expected) && !path.exists() {
        true => Ok(()),
        false => Err(format!(
            "{options:?}: expected {expected:?}, found {text:?}"
        )),
    }
}

/// Puts a value into a tree in the memory of a server, and reads it after a restart of the server.
fn shared_memory(folder: &Path) -> Result<(), String> {
    let (memory, key) = (folder.join("memory"), folder.with_extension("key"));
    fs::write(&key, [7; 32]).map_err(|e| e.to_string())?;
    succeed(Command::new("chmod").arg("600").arg(&key))?;
    let servers = format!("shm:{}", memory.display());
    let tree = |arguments: &[&str]| {
        let mut command = farbank();
        command.args(["tree", arguments[0], "--servers", &servers, "--key-file"]);
        output(command.arg(&key).args(&arguments[1..]))
    };
    let server = memory_server(&memory, &key)?;
    tree(&["create"])?;
    tree(&["put", "greeting", "hello"])?;
    drop(server);
    let _server = memory_server(&memory, &key)?;
    match tree(&["get", "greeting"])?.trim() {
        "hello" => fs::remove_file(&key).map_err(|e| e.to_string()),
        found => Err(format!("the tree has {found:?} in place of \"hello\"")),
    }
}

/// Starts a memory server.
fn memory_server(memory: &Path, key: &Path) -> Result<Serving, String> {
    let mut command = farbank();
    command.args(["memory-server", "--listen", "127.0.0.1:0", "--size", "32mb"]);
    command.arg("--key-file").arg(key).arg("--pool").arg(memory);
    Serving::await_banner(&mut command, "listens on ", 1)
}
