//! Suite `disks`: syncs that fail on a real file system, kills, and starts from an empty page cache.
//!
//! ```text
//!   pool ─▶ ext4 without a journal ─▶ loop device ─▶ a sparse file in a full tmpfs
//!
//!   no space: SETs until one is refused ─▶ SIGKILL ─▶ start, space again: GET all, SET more ─▶ SIGKILL
//!                        ─▶ drop the page cache ─▶ start: GET all
//! ```
//!
//! ext4 sees a write-back for which the tmpfs has no space as an I/O error: `fdatasync` fails, and Linux marks pages
//! clean that the device does not have. An acknowledged write must survive all later restarts, and a value that one
//! start shows must still be present after the page cache is dropped.
//!
//! Needs root and a loop device. Without them the suite fails, as every suite does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::RunSize;
use crate::run::{farbank, install, output, works};
use crate::serving::Serving;
use crate::wire::{ReceivedReply, WireConnection, request};

const MIB: u64 = 1 << 20;
/// Size of the tmpfs in bytes: a little more than a pool.
const ROOM_BYTES: u64 = 64 * MIB;
const POOL_BYTES: u64 = 48 * MIB;
/// Number of cycles on one pool. After these, most of the pool has been written and is allocated in the tmpfs.
const CYCLES_A_POOL: u64 = 10;

/// Installs the tools that create and mount a file system on a loop device.
pub(crate) fn install_tools() -> Result<(), String> {
    let has_all = works("mkfs.ext4", &["-V"]) && works("losetup", &["--version"]);
    match has_all {
        true => Ok(()),
        false => install(&["e2fsprogs", "util-linux", "mount"]),
    }
}

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    install_tools()?;
    let cycles = match size {
        RunSize::Suite => 50,
        RunSize::Gate => 1_000,
    };
    let mut totals = DiskTotals::default();
    for first in (0..cycles).step_by(CYCLES_A_POOL as usize) {
        let disk = FullDisk::new()?;
        let mut known = BTreeMap::new();
        for number in first..cycles.min(first + CYCLES_A_POOL) {
            cycle(&disk, number, &mut known, &mut totals)
                .map_err(|wrong| format!("cycle {number}: {wrong}"))?;
        }
    }
    let DiskTotals {
        acknowledged,
        refused,
        kept,
        failed,
    } = totals;
    println!(
        "{cycles} cycles, {failed} of them with a failed sync; {acknowledged} writes acknowledged, \
         {refused} refused, of which {kept} were present after the restart; nothing lost"
    );
    match failed * 2 < cycles {
        true => Err("no sync failed in most cycles, so the suite has tested nothing".into()),
        false => Ok(()),
    }
}

#[derive(Default)]
struct DiskTotals {
    acknowledged: u64,
    refused: u64,
    /// Refused writes that were present after a restart.
    kept: u64,
    /// Number of cycles in which a sync failed.
    failed: u64,
}

/// Keys and the values they must have.
type ExpectedValues = BTreeMap<String, String>;

fn cycle(
    disk: &FullDisk,
    number: u64,
    known: &mut ExpectedValues,
    totals: &mut DiskTotals,
) -> Result<(), String> {
    disk.fill(number * 7 % 48)?;
    // A start also needs space, and may fail.
    let refused = match disk.serve() {
        Ok((_server, mut link)) => write(&mut link, number, 200, known, totals),
        Err(_) => None,
    };
    disk.empty()?;
    totals.failed += u64::from(refused.is_some());
    {
        let (_server, mut link) = disk.serve()?;
        if let Some((key, value)) = refused {
            totals.refused += 1;
            // A refused write may be present. If it is, it must stay.
            if get(&mut link, &key)? == value {
                known.insert(key, value);
                totals.kept += 1;
            }
        }
        check(&mut link, known).map_err(|e| format!("after the restart: {e}"))?;
        if let Some((key, _)) = write(&mut link, number + 1_000_000, 10, known, totals) {
            return Err(format!(
                "the device has space, but the write of {key} was refused"
            ));
        }
    }
    disk.forget_cached()?;
    let (_server, mut link) = disk.serve()?;
    check(&mut link, known).map_err(|e| format!("after the page cache was dropped: {e}"))
}

/// Sends at most `most` SETs and adds acknowledged writes to `known`. Stops at the first refused write and returns it.
fn write(
    link: &mut WireConnection,
    life: u64,
    most: u64,
    known: &mut ExpectedValues,
    totals: &mut DiskTotals,
) -> Option<(String, String)> {
    for n in 0..most {
        let key = format!("key {} of {}", n % 20, life % 3);
        let value = format!(
            "life {life}, write {n}, {}",
            "x".repeat(n as usize * 97 % 6_000)
        );
        link.send(&request(&["SET", &key, &value]));
        match link.receive() {
            ReceivedReply::Reply(reply) if reply.head == b"+OK" => {
                totals.acknowledged += 1;
                known.insert(key, value);
            }
            _ => return Some((key, value)),
        }
    }
    None
}

fn get(link: &mut WireConnection, key: &str) -> Result<String, String> {
    link.send(&request(&["GET", key]));
    match link.receive() {
        ReceivedReply::Reply(reply) => match reply.text() {
            Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            None => Ok(reply.to_string()),
        },
        other => Err(format!("GET {key}: {other}")),
    }
}

fn check(link: &mut WireConnection, known: &ExpectedValues) -> Result<(), String> {
    for (key, value) in known {
        let found = get(link, key)?;
        if found != *value {
            let shown = |text: &str| text.chars().take(60).collect::<String>();
            let (found, value) = (shown(&found), shown(value));
            return Err(format!(
                "{key} is {found:?}, expected the acknowledged value {value:?}"
            ));
        }
    }
    Ok(())
}

/// A file system on a device that can run out of space.
struct FullDisk {
    folder: PathBuf,
    device: String,
}

impl FullDisk {
    fn new() -> Result<FullDisk, String> {
        let folder = std::env::temp_dir().join(format!("farbank-disks-{}", std::process::id()));
        let mut disk = FullDisk {
            folder,
            device: String::new(),
        };
        for part in [disk.room(), disk.mounted()] {
            fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        }
        let bytes = format!("size={ROOM_BYTES}");
        command(
            "mount",
            &["-t", "tmpfs", "-o", &bytes, "tmpfs"],
            &[&disk.room()],
        )?;
        let file = disk.room().join("disk");
        let sparse = fs::File::create(&file).and_then(|f| f.set_len(4 * ROOM_BYTES));
        sparse.map_err(|e| format!("{}: {e}", file.display()))?;
        let format = ["-q", "-b", "4096", "-O", "^has_journal"];
        command("mkfs.ext4", &format, &[&file])?;
        disk.device = command("losetup", &["--find", "--show"], &[&file])?
            .trim()
            .into();
        disk.write_pages_alone()?;
        command("mount", &[&disk.device], &[&disk.mounted()])?;
        let size = POOL_BYTES.to_string();
        let mut create = farbank();
        create
            .args(["pool", "create", "--size", &size])
            .arg(disk.pool());
        output(&mut create)?;
        Ok(disk)
    }

    /// Limits each request to one page. For a longer request of which only a part finds space, the loop driver reports
    /// that all of it was written.
    fn write_pages_alone(&self) -> Result<(), String> {
        let name = self.device.trim_start_matches("/dev/");
        let limit = format!("/sys/block/{name}/queue/max_sectors_kb");
        fs::write(&limit, "4").map_err(|e| format!("{limit}: {e}"))
    }

    fn room(&self) -> PathBuf {
        self.folder.join("room")
    }

    fn mounted(&self) -> PathBuf {
        self.folder.join("mounted")
    }

    fn pool(&self) -> PathBuf {
        self.mounted().join("pool")
    }

    /// Fills the tmpfs until only `pages` pages are free.
    fn fill(&self, pages: u64) -> Result<(), String> {
        command("sync", &[], &[])?;
        command("fallocate", &["--dig-holes"], &[&self.room().join("disk")])?;
        let path = self.room().join("filler");
        let mut filler = fs::File::create(&path).map_err(|e| e.to_string())?;
        let mut filled = 0;
        loop {
            match filler.write(&[0xff; 4096]) {
                Ok(bytes) => filled += bytes as u64,
                Err(e) if e.kind() == ErrorKind::StorageFull => break,
                Err(e) => return Err(e.to_string()),
            }
        }
        let left = filled.saturating_sub(pages * 4096);
        filler.set_len(left).map_err(|e| e.to_string())
    }

    fn empty(&self) -> Result<(), String> {
        fs::remove_file(self.room().join("filler")).map_err(|e| e.to_string())
    }

    /// Drops all clean pages of the page cache, as a restart of the machine does.
    fn forget_cached(&self) -> Result<(), String> {
        command("sync", &[], &[])?;
        fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))
    }

    /// Starts a server and connects to it. Dropping the server kills it.
    fn serve(&self) -> Result<(Serving, WireConnection), String> {
        let mut serve = farbank();
        serve.args([
            "serve",
            "--port",
            "0",
            "--memcached-port",
            "off",
            "--workers",
            "1",
        ]);
        serve.arg("--pool").arg(self.pool());
        let serving = Serving::start(&mut serve, "redis://")?;
        let port = serving.port.parse().map_err(|e| format!("{e}"))?;
        Ok((serving, WireConnection::connect(port)?))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        // A step fails here only if its counterpart was not executed.
        let _ = command("umount", &[], &[&self.mounted()]);
        if !self.device.is_empty() {
            let _ = command("losetup", &["--detach", &self.device], &[]);
        }
        let _ = command("umount", &[], &[&self.room()]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program on paths without showing its output, and returns its standard output.
pub(crate) fn command(program: &str, args: &[&str], paths: &[&Path]) -> Result<String, String> {
    let done = Command::new(program).args(args).args(paths).output();
    let done = done.map_err(|e| format!("{program} cannot be run: {e}"))?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(format!(
            "{program} {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        )),
    }
}
