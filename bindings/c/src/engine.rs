//! An engine behind a table of functions, as the judge sees engines.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_bench::figure::Error;
use farbank_bench::judge::{Contender, ContestRound, FarMemory};
use farbank_check::Target;
use farbank_contest::{ContestLimits, Engine, EngineStats, Error as Refusal, Key, Worker};
use farbank_pm::Poisoned;

use crate::Table;

const OK: c_int = 0;
const OUT_OF_MEMORY: c_int = 3;

/// An open engine.
struct OpenEngine {
    at: *mut c_void,
    table: Table,
    file: PathBuf,
    /// Whether the file goes when this goes.
    temporary: bool,
}

// SAFETY: the contest's engines are called by sixteen threads at once, and so is the table's.
unsafe impl Send for OpenEngine {}
// SAFETY: as before.
unsafe impl Sync for OpenEngine {}

impl Drop for OpenEngine {
    fn drop(&mut self) {
        // SAFETY: it was opened, and nobody uses it any more.
        unsafe { (self.table.close)(self.at) };
        if self.temporary {
            // What is left behind is in a folder that goes as well.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

/// An engine somebody else wrote, open.
#[derive(Clone)]
pub(crate) struct Outside(Arc<OpenEngine>);

impl Outside {
    /// Opens the engine in `file`, or has it make a new one.
    pub(crate) fn open(table: Table, file: &Path, temporary: bool) -> Result<Outside, String> {
        let path = CString::new(file.as_os_str().as_bytes())
            .map_err(|_| format!("{}: a path has no zero in it", file.display()))?;
        // SAFETY: the path ends with a zero.
        let at = unsafe { (table.open)(path.as_ptr()) };
        if at.is_null() {
            return Err(format!("the engine does not open {}", file.display()));
        }
        Ok(Outside(Arc::new(OpenEngine {
            at,
            table,
            file: file.to_owned(),
            temporary,
        })))
    }
}

impl Engine for Outside {
    fn worker(&self) -> Box<dyn Worker> {
        Box::new(self.clone())
    }

    /// Nobody knows.
    fn dram(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn far_bytes(&self) -> u64 {
        std::fs::metadata(&self.0.file).map_or(0, |file| file.len())
    }

    fn tally(&self) -> EngineStats {
        EngineStats::default()
    }
}

impl Worker for Outside {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let OpenEngine { at, table, .. } = &*self.0;
        let (key, from) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the engine is open; a key has 16 bytes, and the value so many as it says.
        match unsafe { (table.set)(*at, key, from, value.len()) } {
            OK => Ok(()),
            OUT_OF_MEMORY => Err(Refusal::Full),
            status => Err(Refusal::Poisoned(Poisoned {
                reason: format!("the engine answered a set with status {status}").into(),
            })),
        }
    }

    /// Whatever is not `Ok` is no value.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        let OpenEngine { at, table, .. } = &*self.0;
        let to = std::ptr::from_mut(out).cast();
        // SAFETY: the engine is open; a key has 16 bytes; `take` is called with `to`, before this returns.
        unsafe { (table.get)(*at, key.as_ptr().cast(), take, to) == OK }
    }
}

/// # Safety
/// `to` is a vector that nobody else uses; `bytes` bytes are at `value`.
unsafe extern "C" fn take(to: *mut c_void, value: *const c_char, bytes: usize) {
    // SAFETY: the caller says so.
    let out = unsafe { &mut *to.cast::<Vec<u8>>() };
    out.clear();
    // No address, or more bytes than memory has, is no value: an engine's mistake, which the judge sees as a wrong one.
    if bytes > 0 && !value.is_null() && isize::try_from(bytes).is_ok() {
        #[expect(
            clippy::disallowed_methods,
            reason = "the engine's string, not mapped bytes"
        )]
        // SAFETY: the caller says so.
        let value = unsafe { std::slice::from_raw_parts(value.cast(), bytes) };
        out.extend_from_slice(value);
    }
}

/// The engine of a table, as it is judged: a new file for each phase.
pub(crate) struct OutsideContender {
    pub(crate) table: Table,
    pub(crate) folder: PathBuf,
    pub(crate) made: AtomicU64,
}

impl Contender for OutsideContender {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn supports_round(&self, _: ContestRound) -> bool {
        true
    }

    fn is_durable(&self) -> bool {
        true
    }

    /// The engine maps a file of its own: the far memory it is given here is not used.
    fn create(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        let file = self
            .folder
            .join(format!("phase-{}", self.made.fetch_add(1, Relaxed)));
        let engine = Outside::open(self.table, &file, true).map_err(Error::Failed)?;
        Ok(Box::new(engine))
    }

    fn open(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Err(Error::Failed(
            "an engine's file is opened in another process, see kill.rs".into(),
        ))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        None
    }
}
