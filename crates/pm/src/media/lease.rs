//! The lease on a pool's file: records which host has the pool open, so that a second host detects it.
//!
//! A file lock is local to one machine. Two machines that share a disk, or mount the same network file system, could
//! both lock the file. So a process that has a pool open writes a lease record into the pool's first page, and
//! increments its count once a second:
//!
//! ```text
//!   host 1   take 1 ── 2 ── 3 ── 4 ── 5 ...        increments once a second
//!   host 2                 open: reads 3, then 4 ──▶ refused, the holder is alive
//!   host 3                                             ...  5 = 5 = 5 for 2.5 s ──▶ takes the lease
//! ```
//!
//! The lease detects concurrent use, it does not fence. A host that was suspended for longer than 2.5 seconds may have
//! lost its lease. It detects that at its next increment, up to a second later.
//!
//! # Invariants
//! LEASE-1  A process writes a record only after it has read the present one, from the device if the file system
//!     supports direct reads. It never overwrites the record of another holder whose count is still rising.
//! LEASE-2  A holder that reads the record of another holder has lost its lease. It poisons the medium and writes no
//!     more records.
//! LEASE-3  A record of the same boot of this machine needs no wait: this process holds the file lock, so the process
//!     that wrote the record has ended.
//! LEASE-4  The lease consumes no sync error of the medium: it writes records through a file description of its own.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use super::open_error::OpenError;
use super::space::PoolFile;
use crate::crc::crc32c_append;
use crate::offset::PAGE;
use crate::pool;

/// Interval between two increments of a holder.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Time after which a holder whose count has not changed has lost its lease.
const EXPIRY: Duration = Duration::from_millis(2500);
/// Interval between two reads of the count while an open waits.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Offset of the record in the file, in bytes: in the first page, behind the superblock's first copy.
const AT: u64 = 1024;
const BYTES: usize = 512;
const MAGIC: [u8; 8] = *b"FBLEASE\n";
const HELD: usize = 8;
const COUNT: usize = 16;
const HOLDER: Range<usize> = 24..40;
const BOOT: Range<usize> = 40..76;
const NAME: Range<usize> = 80..208;
const CHECKSUM: usize = 508;

const _: () = assert!(AT >= pool::COPY_BYTES as u64 && AT as usize + BYTES <= PAGE as usize);

/// Identity of a machine since its last boot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HostBoot {
    /// Random id that the kernel chose at boot.
    boot: [u8; 36],
    /// Host name, for messages.
    name: String,
}

impl HostBoot {
    /// Returns the identity of this machine. `None` if the kernel does not report a boot id.
    fn this() -> Option<HostBoot> {
        let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Some(HostBoot {
            boot: boot.get(..36)?.try_into().ok()?,
            name: name.trim().to_owned(),
        })
    }
}

/// Content of the lease sector.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LeaseRecord {
    is_held: bool,
    count: u64,
    /// Random id of one open of the pool.
    holder: [u8; 16],
    host: HostBoot,
}

impl LeaseRecord {
    fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[HELD] = u8::from(self.is_held);
        bytes[COUNT..COUNT + 8].copy_from_slice(&self.count.to_le_bytes());
        bytes[HOLDER].copy_from_slice(&self.holder);
        bytes[BOOT].copy_from_slice(&self.host.boot);
        let name = self.host.name.as_bytes();
        let len = name.len().min(NAME.len());
        bytes[NAME][..len].copy_from_slice(&name[..len]);
        let checksum = crc32c_append(0, &bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the record in `bytes`. `None` if there is no record, or it is damaged.
    fn of(bytes: &[u8; BYTES]) -> Option<LeaseRecord> {
        let checksum = crc32c_append(0, &bytes[..CHECKSUM]);
        if bytes[..8] != MAGIC || bytes[CHECKSUM..] != checksum.to_le_bytes() {
            return None;
        }
        let name = bytes[NAME].split(|byte| *byte == 0).next();
        Some(LeaseRecord {
            is_held: bytes[HELD] == 1,
            count: u64::from_le_bytes(bytes[COUNT..COUNT + 8].try_into().ok()?),
            holder: bytes[HOLDER].try_into().ok()?,
            host: HostBoot {
                boot: bytes[BOOT].try_into().ok()?,
                name: String::from_utf8_lossy(name.unwrap_or_default()).into_owned(),
            },
        })
    }
}

/// Sector of the pool's file that holds the lease record.
#[derive(Debug)]
struct LeaseSector {
    /// The file, opened a second time, so that its write-back errors are reported here and to the medium (LEASE-4).
    file: fs::File,
    /// The file opened with `O_DIRECT`, if the file system supports direct reads.
    direct: Option<fs::File>,
}

impl LeaseSector {
    fn open(file: &PoolFile) -> io::Result<LeaseSector> {
        LeaseSector::at(&format!("/proc/self/fd/{}", file.fd().as_raw_fd()))
    }

    fn at(path: &str) -> io::Result<LeaseSector> {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        Ok(LeaseSector {
            file: fs::OpenOptions::new().read(true).write(true).open(path)?,
            direct: options.open(path).ok(),
        })
    }

    fn read(&self) -> io::Result<Option<LeaseRecord>> {
        self.read_bytes().map(|bytes| LeaseRecord::of(&bytes))
    }

    /// Returns the bytes of the sector, or zeros if the file is too short.
    fn read_bytes(&self) -> io::Result<[u8; BYTES]> {
        let mut buffer = [0; 2 * PAGE as usize];
        let from = buffer.as_ptr().align_offset(PAGE as usize);
        let page = &mut buffer[from..][..PAGE as usize];
        let direct = self.direct.as_ref();
        let read = match direct.map(|direct| direct.read_at(page, 0)) {
            Some(Ok(read)) => read,
            // No direct reads, or the direct read failed.
            _ => self.file.read_at(page, 0)?,
        };
        let sector = page[..read].get(AT as usize..).unwrap_or_default();
        Ok(sector.first_chunk().copied().unwrap_or([0; BYTES]))
    }

    fn write(&self, bytes: &[u8; BYTES]) -> io::Result<()> {
        if self.file.metadata()?.len() < PAGE {
            return Ok(()); // The file was truncated. A write would lengthen it again.
        }
        self.file.write_all_at(bytes, AT)?;
        write_back(&self.file)
    }
}

/// Writes back only the first page of the file to the device.
fn write_back(file: &fs::File) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no pointers.
    match unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, PAGE as i64, how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lease that this process holds, or has lost. Dropping it gives it back, also if the open fails after
/// [`FreeLease::take`].
#[derive(Debug)]
pub(super) struct Lease {
    sector: LeaseSector,
    mine: LeaseRecord,
    /// Former bytes of the sector, if they were not the record of a holder. Giving the lease back restores them, so a
    /// pool whose open is refused is unchanged.
    before: Option<[u8; BYTES]>,
    lost_to: Option<HostBoot>,
    /// Whether dropping leaves the record in place, as a kill would.
    is_kept: bool,
}

/// Lease that can be taken: no other host increments its count.
pub(super) struct FreeLease {
    sector: LeaseSector,
    host: HostBoot,
}

impl FreeLease {
    /// Checks whether the lease on `file` can be taken. If the record is held by another host, calls `notice` and waits
    /// up to [`PATIENCE`]. Writes nothing. `None` if the kernel does not report a boot id, or the first page cannot be
    /// read.
    ///
    /// # Errors
    /// [`OpenError::OtherHost`] if the other holder is alive.
    pub(super) fn find(
        file: &PoolFile,
        notice: &dyn Fn(&str),
    ) -> Result<Option<FreeLease>, OpenError> {
        let (Some(host), Ok(sector)) = (HostBoot::this(), LeaseSector::open(file)) else {
            return Ok(None);
        };
        match sector.living_holder(&host, notice) {
            Err(_) => Ok(None), // Unreadable page: the superblock has a second copy, the lease record has none.
            Ok(None) => Ok(Some(FreeLease { sector, host })),
            Ok(Some(holder)) => Err(OpenError::OtherHost {
                path: file.path().into(),
                host: holder.name,
            }),
        }
    }

    /// Takes the lease.
    pub(super) fn take(self) -> Option<Lease> {
        let bytes = self.sector.read_bytes().ok()?;
        let mut holder = [0; 16];
        pool::fill_random(&mut holder).ok()?;
        let found = LeaseRecord::of(&bytes);
        let is_held = found.as_ref().is_some_and(|found| found.is_held);
        let mut lease = Lease {
            sector: self.sector,
            mine: LeaseRecord {
                is_held: true,
                count: found.map_or(0, |found| found.count),
                holder,
                host: self.host,
            },
            before: (!is_held).then_some(bytes),
            lost_to: None,
            is_kept: false,
        };
        // If the device fails, the medium's own writes report it.
        let _ = lease.count_up();
        Some(lease)
    }
}

impl LeaseSector {
    /// Returns the host, other than `host`, that holds the lease and is alive. Waits if another host may hold it.
    fn living_holder(
        &self,
        host: &HostBoot,
        notice: &dyn Fn(&str),
    ) -> io::Result<Option<HostBoot>> {
        let Some(found) = self.read_whole()? else {
            return Ok(None);
        };
        if !found.is_held || found.host.boot == host.boot {
            return Ok(None);
        }
        notice(&format!(
            "the pool was last open on host {:?} and not closed there: waiting {} s to see whether that host \
             still has it open",
            found.host.name,
            EXPIRY.as_secs_f64()
        ));
        let began = Instant::now();
        while began.elapsed() < EXPIRY {
            std::thread::sleep(POLL_INTERVAL);
            if self.read()?.is_some_and(|now| now != found) {
                return Ok(Some(found.host));
            }
        }
        Ok(None)
    }

    /// Reads the record. Retries a damaged record, because its holder may be writing it at this moment.
    fn read_whole(&self) -> io::Result<Option<LeaseRecord>> {
        for _ in 0..4 {
            let bytes = self.read_bytes()?;
            let found = LeaseRecord::of(&bytes);
            if found.is_some() || bytes[..8] != MAGIC {
                return Ok(found);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }
}

impl Lease {
    /// Increments the count, unless another host has taken the lease (LEASE-2).
    pub(super) fn refresh(&mut self) {
        if self.lost_to.is_some() {
            return;
        }
        match self.sector.read() {
            Ok(Some(found)) if found.holder != self.mine.holder => self.lost_to = Some(found.host),
            // A page that is unreadable or damaged does not show that another host took the lease.
            _ => {
                let _ = self.count_up();
            }
        }
    }

    /// Returns the name of the host that took the lease from this process, if that was detected.
    pub(super) fn lost_to(&self) -> Option<&str> {
        self.lost_to.as_ref().map(|host| host.name.as_str())
    }

    fn count_up(&mut self) -> io::Result<()> {
        self.mine.count = self.mine.count.wrapping_add(1);
        self.sector.write(&self.mine.to_bytes())
    }

    /// Drops the lease without giving it back, because nothing may be written to a poisoned medium.
    pub(super) fn forget_without_return(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Lease {
    /// Gives the lease back, so that the next host need not wait.
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.refresh();
        if self.lost_to.is_none() {
            self.mine.is_held = false;
            let bytes = self.before.unwrap_or_else(|| self.mine.to_bytes());
            // If this write fails, the next host waits.
            let _ = self.sector.write(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn host(number: u8) -> HostBoot {
        HostBoot {
            boot: [number; 36],
            name: format!("host-{number}"),
        }
    }

    fn pool() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("pool");
        fs::write(&path, vec![0; 2 * PAGE as usize]).expect("a file");
        let path = path.to_str().expect("a plain name").to_owned();
        (folder, path)
    }

    /// Takes the lease. Also returns whether `notice` was called for a wait.
    fn take(path: &str, host: HostBoot) -> (Result<Lease, HostBoot>, bool) {
        let has_waited = Cell::new(false);
        let sector = LeaseSector::at(path).expect("the file");
        let living = sector.living_holder(&host, &|_| has_waited.set(true));
        let taken = match living.expect("no error") {
            Some(holder) => Err(holder),
            None => Ok(FreeLease { sector, host }.take().expect("no error")),
        };
        (taken, has_waited.get())
    }

    #[test]
    fn a_record_round_trips_and_any_flipped_bit_is_detected() {
        let record = LeaseRecord {
            is_held: true,
            count: 77,
            holder: [5; 16],
            host: host(3),
        };
        let bytes = record.to_bytes();
        assert_eq!(LeaseRecord::of(&bytes), Some(record));
        for bit in 0..BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LeaseRecord::of(&flipped), None, "bit {bit}");
        }
        assert_eq!(LeaseRecord::of(&[0; BYTES]), None);
    }

    #[test]
    fn a_live_host_keeps_its_lease() {
        let (_folder, path) = pool();
        let mut first = take(&path, host(1)).0.expect("a fresh file");
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    first.refresh();
                    assert_eq!(first.lost_to(), None);
                    std::thread::sleep(PERIOD);
                }
            });
            let (refused, has_waited) = take(&path, host(2));
            ends.store(true, Ordering::Relaxed);
            assert_eq!(refused.err(), Some(host(1)));
            assert!(has_waited);
        });
    }

    #[test]
    fn a_suspended_host_loses_its_lease_and_writes_no_more_records() {
        let (_folder, path) = pool();
        let mut first = take(&path, host(1)).0.expect("a fresh file");
        let (second, has_waited) = take(&path, host(2));
        let second = second.expect("the first host does not increment its count");
        assert!(has_waited);
        first.refresh();
        assert_eq!(first.lost_to(), Some("host-2"));
        drop(first);
        let found = second.sector.read().expect("the file");
        assert_eq!(found, Some(second.mine.clone()));
    }

    #[test]
    fn taking_a_returned_lease_or_one_of_this_boot_needs_no_wait() {
        let (_folder, path) = pool();
        let first = take(&path, host(1)).0.expect("a fresh file");
        drop(first);
        let (second, has_waited) = take(&path, host(2));
        let second = second.expect("it was given back");
        assert!(!has_waited);
        second.forget_without_return(); // As after a kill.
        let (third, has_waited) = take(&path, host(2));
        assert!(third.is_ok() && !has_waited);
    }
}
