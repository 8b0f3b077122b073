//! Suite `disks`: syncs that fail on a real file system, kills, and starts from an empty page cache.
//!
//! ```text
//!   pool ─▶ ext4 without a journal ─▶ loop device ─▶ a sparse file in a full tmpfs
//!
//!   no room: SETs until one is refused ─▶ SIGKILL ─▶ start, room again: GET all, SET more ─▶ SIGKILL
//!                        ─▶ drop the page cache ─▶ start: GET all
//! ```
//!
//! A write-back that finds no room in the tmpfs is an I/O error to ext4: `fdatasync` fails, and Linux
//! calls pages clean that the device does not have. What is acknowledged in any life must be there in
//! all later ones, and what a start shows must still be there when the page cache is gone.
//!
//! Needs root and a loop device. Where they are not to be had the suite fails, as every suite does.

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
/// Bytes of the tmpfs: a little more than a pool.
const ROOM_BYTES: u64 = 64 * MIB;
const POOL_BYTES: u64 = 48 * MIB;
/// Cycles on one pool: later, little of it is left that was never written.
const CYCLES_A_POOL: u64 = 10;

/// What makes and mounts a file system on a loop device.
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
        "{cycles} cycles: {failed} with a failed sync, {acknowledged} writes acknowledged, \
         {refused} refused, {kept} of these there after the restart; nothing lost"
    );
    match failed * 2 < cycles {
        true => Err("in most cycles no sync failed: nothing was tried".into()),
        false => Ok(()),
    }
}

#[derive(Default)]
struct DiskTotals {
    acknowledged: u64,
    refused: u64,
    /// Refused writes that a restart showed.
    kept: u64,
    /// Cycles in which a sync failed.
    failed: u64,
}

/// Keys and the values they must have.
type Known = BTreeMap<String, String>;

fn cycle(
    disk: &FullDisk,
    number: u64,
    known: &mut Known,
    totals: &mut DiskTotals,
) -> Result<(), String> {
    disk.fill(number * 7 % 48)?;
    // A start needs room, too, and may be refused.
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
            // A write that was refused may be there. From then on it must stay.
            if get(&mut link, &key)? == value {
                known.insert(key, value);
                totals.kept += 1;
            }
        }
        check(&mut link, known).map_err(|e| format!("after the restart: {e}"))?;
        if let Some((key, _)) = write(&mut link, number + 1_000_000, 10, known, totals) {
            return Err(format!("the device has room, but {key} is refused"));
        }
    }
    disk.forget_cached()?;
    let (_server, mut link) = disk.serve()?;
    check(&mut link, known).map_err(|e| format!("after the page cache was dropped: {e}"))
}

/// Sends SETs, at most `most`, and notes what is acknowledged; the first that is refused, if one is.
fn write(
    link: &mut WireConnection,
    life: u64,
    most: u64,
    known: &mut Known,
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

fn check(link: &mut WireConnection, known: &Known) -> Result<(), String> {
    for (key, value) in known {
        let found = get(link, key)?;
        if found != *value {
            let shown = |text: &str| text.chars().take(60).collect::<String>();
            let (found, value) = (shown(&found), shown(value));
            return Err(format!("{key} is {found:?}, acknowledged was {value:?}"));
        }
    }
    Ok(())
}

/// A file system whose device can be full.
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

    /// Has each request be a page: of a longer one that finds room for a part only, the loop driver
    /// says that all of it was written.
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

    /// Takes away the room for all but `pages` pages of what was never written.
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

    /// Empties the page cache of what is clean, as a restart of the machine does.
    fn forget_cached(&self) -> Result<(), String> {
        command("sync", &[], &[])?;
        fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))
    }

    /// A server, which is killed when it goes, and a connection to it.
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
        // What cannot be undone was not done.
        let _ = command("umount", &[], &[&self.mounted()]);
        if !self.device.is_empty() {
            let _ = command("losetup", &["--detach", &self.device], &[]);
        }
        let _ = command("umount", &[], &[&self.room()]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program on paths, quietly: what it printed.
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
