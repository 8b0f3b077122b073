//! Suite `media-errors`: a device cannot read a part of a pool, while a server runs and when it starts.
//!
//! ```text
//!   pool ─▶ ext4 ─▶ loop device, direct I/O ─▶ a file, which is truncated
//!
//!   SETs ─▶ SIGKILL or a clean stop ─▶ drop the page cache ─▶ the end of the device is missing: EIO
//!     serving: GET all ─▶ GET all after a start ─▶ GET all after a second start
//! ```
//!
//! A read of the loop device beyond the end of its file is an I/O error (EIO), like that of a bad sector. A page fault
//! there is a SIGBUS. Each GET must return the acknowledged value or an error with the offset of a damaged record. Each
//! start must report a place, and the process must keep running. (The device mapper's target `error` would do the same,
//! but many kernels do not have it.)
//!
//! Needs root and a loop device. Without them the suite fails, as every suite does.

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
/// Number of keys, and bytes of each value.
const KEYS: usize = 16_000;
const VALUE_BYTES: usize = 1_500;

pub(crate) fn run(size: RunSize) -> Result<(), String> {
    install_tools()?;
    let parts: &[u64] = match size {
        RunSize::Suite => &[18, 14],
        RunSize::Gate => &[22, 20, 18, 16, 14, 12],
    };
    for io in ["mapped", "pread", "direct"] {
        // Reads without a page cache take minutes, so a suite makes only one such run.
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

/// Number of keys by the result of their GET.
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
        return Err(format!("pool check reports no damaged place: {damage}"));
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
    // While a server runs, the kernel may keep all mapped pages. After a start no page is cached.
    let is_all_or_none = |seen: &GetResults| seen.served == 0 || seen.served == KEYS;
    match seen.iter().rev().take(2).any(is_all_or_none) {
        true => Err(format!(
            "the device's damage had no effect or damaged everything: {shown}"
        )),
        false => Ok(format!("{shown}; {named} places reported")),
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

/// Reads every key. A key is missing if its whole record is in a place that the start has reported.
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
                return Err(format!("GET {}: wrong value {text}", name(n)));
            }
            None if reply.to_string().contains("is damaged") => seen.damaged += 1,
            None if reply.marker() == b'-' => return Err(format!("GET {}: {reply}", name(n))),
            None => seen.missing += 1,
        }
    }
    Ok(seen)
}

/// A file system on a loop device that can be truncated.
struct FailingDisk {
    folder: PathBuf,
    device: String,
    /// Value of the server's option `--io`: how it reads the pool.
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
        // The file system's own tables are at the start of the device, and the pool follows them.
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

    /// Truncates the device to its first `bytes` bytes.
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
        // Standard error has one line for each damaged place; `pool check` prints the same lines.
        serve.arg("--pool").arg(self.pool()).stderr(Stdio::null());
        let serving = Serving::start(&mut serve, "redis://")?;
        let port = serving.port.parse().map_err(|e| format!("{e}"))?;
        Ok((serving, WireConnection::connect(port)?))
    }

    /// Returns the output of `pool check`, which must end with 1 because of the damage.
    fn damage(&self) -> Result<String, String> {
        let mut check = farbank();
        check.args(["pool", "check"]).arg(self.pool());
        let done = check.output().map_err(|e| format!("pool check: {e}"))?;
        match done.status.code() {
            Some(1) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            other => Err(format!(
                "pool check of a damaged pool ended with {other:?}, expected 1"
            )),
        }
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        // A step fails here only if its counterpart was not executed. The device gets its full length again, so that
        // the file system can be unmounted.
        let _ = self.shorten(DEVICE_BYTES);
        let _ = command("umount", &[], &[&self.mounted()]);
        if !self.device.is_empty() {
            let _ = command("losetup", &["--detach", &self.device], &[]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
