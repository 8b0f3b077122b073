//! Suite `media-errors`: a device that cannot read a part of a pool, under a server and at its start.
//!
//! ```text
//!   pool ─▶ ext4 ─▶ loop device, direct I/O ─▶ a file, which is made shorter
//!
//!   SETs ─▶ SIGKILL or a clean end ─▶ no page cached ─▶ the last part of the device is gone: EIO
//!     serving: GET all ─▶ again, after a start ─▶ again, after a second start
//! ```
//!
//! A read of the loop device behind the end of its file is an I/O error (EIO), as of a bad sector, and a
//! page fault there is a SIGBUS. Each GET must have the value that was acknowledged or an error with the offset
//! of a damaged record; each start must name a place, and the process must live. (The device mapper's
//! target `error` would do the same; many kernels do not have it.)
//!
//! Needs root and a loop device. Where they are not to be had the suite fails, as every suite does.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::RunSize;
use crate::disks::{command, install_tools};
use crate::run::{farbank, output};
use crate::serving::Serving;
use crate::wire::{ReceivedReply, WireConnection, request};

const MIB: u64 = 1 << 20;
/// Bytes of the device and of the pool on it.
const DEVICE_BYTES: u64 = 64 * MIB;
const POOL_BYTES: u64 = 48 * MIB;
/// Keys, and bytes of a value.
const KEYS: usize = 16_000;
const VALUE_BYTES: usize = 1_500;

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    install_tools()?;
    let parts: &[u64] = match size {
        RunSize::Suite => &[18, 14],
        RunSize::Gate => &[22, 20, 18, 16, 14, 12],
    };
    for io in ["mapped", "pread", "direct"] {
        // Reads that meet no page cache take minutes in a suite.
        let (parts, ends): (_, &[_]) = match (size, io) {
            (RunSize::Suite, "pread" | "direct") => (&parts[..1], &["serving"]),
            _ => (parts, &["killed", "closed", "serving"]),
        };
        for left_mib in parts {
            for end in ends {
                let what = format!("{left_mib} MiB of the device left, --io {io}, {end}");
                let seen = one(left_mib * MIB, io, end);
                let seen = seen.map_err(|wrong| format!("{what}: {wrong}"))?;
                println!("{what}: {seen}");
            }
        }
    }
    Ok(())
}

/// What GETs of all keys have found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct GetResults {
    served: usize,
    damaged: usize,
    missing: usize,
}

fn one(left_bytes: u64, io: &'static str, end: &str) -> Result<String, String> {
    let disk = FailingDisk::new(io)?;
    let (server, mut link) = disk.serve()?;
    set_all(&mut link)?;
    let mut seen = Vec::new();
    match end {
        "serving" => {
            disk.forget_cached()?;
            disk.shorten(left_bytes)?;
            seen.push(get_all(&mut link)?);
            drop(server);
        }
        "closed" => {
            server.end()?;
            disk.forget_cached()?;
            disk.shorten(left_bytes)?;
        }
        _ => {
            drop(server);
            disk.forget_cached()?;
            disk.shorten(left_bytes)?;
        }
    }
    for start in ["first", "second"] {
        let (server, mut link) = disk.serve().map_err(|e| format!("{start} start: {e}"))?;
        seen.push(get_all(&mut link).map_err(|e| format!("{start} start: {e}"))?);
        drop(server);
    }
    let damage = disk.damage()?;
    let named = damage
        .lines()
        .filter(|line| line.starts_with("damage: "))
        .count();
    if named == 0 {
        return Err(format!("pool check names no place: {damage}"));
    }
    let shown = seen.iter().map(|seen| {
        let GetResults {
            served,
            damaged,
            missing,
        } = seen;
        format!("{served} served, {damaged} damaged, {missing} in reported places")
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    // Under a server the kernel may keep all pages that are mapped; after a start none is cached.
    let is_all_or_none = |seen: &GetResults| seen.served == 0 || seen.served == KEYS;
    match seen.iter().rev().take(2).any(is_all_or_none) {
        true => Err(format!("nothing was tried: {shown}")),
        false => Ok(format!("{shown}; {named} places named")),
    }
}

fn name(n: usize) -> String {
    format!("key:{n}")
}

fn value(n: usize) -> String {
    format!("{n:0VALUE_BYTES$}")
}

fn set_all(link: &mut WireConnection) -> Result<(), String> {
    for n in 0..KEYS {
        link.send(&request(&["SET", &name(n), &value(n)]));
        match link.receive() {
            ReceivedReply::Reply(reply) if reply.head == b"+OK" => {}
            other => return Err(format!("SET {}: {other}", name(n))),
        }
    }
    Ok(())
}

/// GETs every key. A key without a value is one whose whole record is in a place that the start has named.
fn get_all(link: &mut WireConnection) -> Result<GetResults, String> {
    let mut seen = GetResults {
        served: 0,
        damaged: 0,
        missing: 0,
    };
    for n in 0..KEYS {
        link.send(&request(&["GET", &name(n)]));
        let reply = match link.receive() {
            ReceivedReply::Reply(reply) => reply,
            other => return Err(format!("GET {}: {other}", name(n))),
        };
        match reply.text() {
            Some(text) if text == value(n).as_bytes() => seen.served += 1,
            Some(text) => {
                let text = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
                return Err(format!("GET {}: {text}", name(n)));
            }
            None if reply.to_string().contains("is damaged") => seen.damaged += 1,
            None if reply.marker() == b'-' => return Err(format!("GET {}: {reply}", name(n))),
            None => seen.missing += 1,
        }
    }
    Ok(seen)
}

/// A file system on a loop device whose end can be taken away.
struct FailingDisk {
    folder: PathBuf,
    device: String,
    /// How a server reads the pool: `--io`.
    io: &'static str,
}

impl FailingDisk {
    fn new(io: &'static str) -> Result<FailingDisk, String> {
        let name = format!("farbank-media-errors-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mut disk = FailingDisk {
            folder,
            device: String::new(),
            io,
        };
        let mounted = disk.mounted();
        fs::create_dir_all(&mounted).map_err(|e| format!("{}: {e}", mounted.display()))?;
        let file = fs::File::create(disk.file()).and_then(|f| f.set_len(DEVICE_BYTES));
        file.map_err(|e| format!("{}: {e}", disk.file().display()))?;
        // Its own tables come first, and the pool fills the rest.
        let format = ["-q", "-b", "4096", "-O", "^has_journal"];
        command("mkfs.ext4", &format, &[&disk.file()])?;
        let direct = ["--find", "--show", "--direct-io=on"];
        disk.device = command("losetup", &direct, &[&disk.file()])?.trim().into();
        command("mount", &[&disk.device], &[&mounted])?;
        let size = POOL_BYTES.to_string();
        let mut create = farbank();
        create
            .args(["pool", "create", "--size", &size])
            .arg(disk.pool());
        output(&mut create)?;
        Ok(disk)
    }

    fn mounted(&self) -> PathBuf {
        self.folder.join("mounted")
    }

    fn file(&self) -> PathBuf {
        self.folder.join("device")
    }

    fn pool(&self) -> PathBuf {
        self.mounted().join("pool")
    }

    /// Takes all but the first `bytes` of the device away.
    fn shorten(&self, bytes: u64) -> Result<(), String> {
        let file = fs::OpenOptions::new().write(true).open(self.file());
        let cut = file.and_then(|file| file.set_len(bytes));
        cut.map_err(|e| format!("{}: {e}", self.file().display()))
    }

    /// Empties the page cache, as a restart of the machine does.
    fn forget_cached(&self) -> Result<(), String> {
        command("sync", &[], &[])?;
        fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("drop_caches: {e}"))
    }

    fn serve(&self) -> Result<(Serving, WireConnection), String> {
        let mut serve = farbank();
        serve.args(["serve", "--port", "0", "--memcached-port", "off"]);
        serve.args(["--workers", "1", "--read-cache", "0", "--io", self.io]);
        // Each damaged place is a line there, which `pool check` prints as well.
        serve.arg("--pool").arg(self.pool()).stderr(Stdio::null());
        let serving = Serving::start(&mut serve, "redis://")?;
        let port = serving.port.parse().map_err(|e| format!("{e}"))?;
        Ok((serving, WireConnection::connect(port)?))
    }

    /// What `pool check` prints, which fails if there is damage.
    fn damage(&self) -> Result<String, String> {
        let mut check = farbank();
        check.args(["pool", "check"]).arg(self.pool());
        let done = check.output().map_err(|e| format!("pool check: {e}"))?;
        match done.status.code() {
            Some(1) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            other => Err(format!("pool check of a damaged pool ends with {other:?}")),
        }
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        // What cannot be undone was not done. The device is whole again for the file system to leave it.
        let _ = self.shorten(DEVICE_BYTES);
        let _ = command("umount", &[], &[&self.mounted()]);
        if !self.device.is_empty() {
            let _ = command("losetup", &["--detach", &self.device], &[]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
