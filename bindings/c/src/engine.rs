//! Adapter of an engine in C or C++ to the judge's interface.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_bench::figure::Error;
use farbank_check::Target;
use farbank_contest::judge::{Contender, ContestRound, FarMemory};
use farbank_contest::{ContestLimits, Engine, EngineStats, Error as Refusal, Key, Worker};
use farbank_pm::Poisoned;

use crate::Table;

const OK: c_int = 0;
const OUT_OF_MEMORY: c_int = 3;

/// An open engine and its file.
struct OpenEngine {
    at: *mut c_void,
    table: Table,
    file: PathBuf,
    /// Whether dropping this value removes the file.
    temporary: bool,
}

// SAFETY: the contest requires engines that sixteen threads may call concurrently, and the header requires the same of
// the table's functions.
unsafe impl Send for OpenEngine {}
// SAFETY: as for `Send`.
unsafe impl Sync for OpenEngine {}

impl Drop for OpenEngine {
    fn drop(&mut self) {
        // SAFETY: `open` returned `at`, and this is the last owner.
        unsafe { (self.table.close)(self.at) };
        if self.temporary {
            // If this fails, the removal of the temporary folder removes the file.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

/// A handle on an open external engine.
#[derive(Clone)]
pub(crate) struct Outside(Arc<OpenEngine>);

impl Outside {
    /// Opens the engine in `file`, or lets it create a new one.
    pub(crate) fn open(table: Table, file: &Path, temporary: bool) -> Result<Outside, String> {
        let path = CString::new(file.as_os_str().as_bytes())
            .map_err(|_| format!("{}: the path contains a zero byte", file.display()))?;
        // SAFETY: the path ends with a zero byte.
        let at = unsafe { (table.open)(path.as_ptr()) };
        if at.is_null() {
            return Err(format!(
                "the engine's open returned null for {}",
                file.display()
            ));
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

    /// Returns nothing: the engine does not report its DRAM.
    fn dram(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn far_bytes(&self) -> u64 {
        std::fs::metadata(&self.0.file).map_or(0, |file| file.len())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

impl Worker for Outside {
    fn set(&mut self, key: &Key, value: &[u8]) -> Result<(), Refusal> {
        let OpenEngine { at, table, .. } = &*self.0;
        let (key, from) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the engine is open. The key has 16 bytes, and the value has the given length.
        match unsafe { (table.set)(*at, key, from, value.len()) } {
            OK => Ok(()),
            OUT_OF_MEMORY => Err(Refusal::Full),
            status => {
                let reason = format!("the engine's set returned status {status}");
                Err(Refusal::Poisoned(Poisoned::new(reason)))
            }
        }
    }

    /// Returns false for every status except `Ok`.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> bool {
        let OpenEngine { at, table, .. } = &*self.0;
        let to = std::ptr::from_mut(out).cast();
        // SAFETY: the engine is open, and the key has 16 bytes. The engine calls `take` with `to` only before `get`
        // returns.
        unsafe { (table.get)(*at, key.as_ptr().cast(), take, to) == OK }
    }
}

/// Callback for `get`: copies the value into a vector.
///
/// # Safety
/// `to` points to a `Vec<u8>` that is not accessed otherwise during the call, and `value` to `bytes` readable bytes.
unsafe extern "C" fn take(to: *mut c_void, value: *const c_char, bytes: usize) {
    // SAFETY: the caller guarantees it.
    let out = unsafe { &mut *to.cast::<Vec<u8>>() };
    out.clear();
    // A null pointer, or a length beyond `isize::MAX`, is the engine's error. The value stays empty, and the judge
    // reports it as wrong.
    if bytes > 0 && !value.is_null() && isize::try_from(bytes).is_ok() {
        #[expect(
            clippy::disallowed_methods,
            reason = "the engine's string, not mapped bytes"
        )]
        // SAFETY: the caller guarantees it.
        let value = unsafe { std::slice::from_raw_parts(value.cast(), bytes) };
        out.extend_from_slice(value);
    }
}

/// The external engine as a contender. Each phase has a new file.
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

    /// Creates the engine. The engine maps a file of its own and does not use the given far memory.
    fn create(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        let file = self
            .folder
            .join(format!("phase-{}", self.made.fetch_add(1, Relaxed)));
        let engine = Outside::open(self.table, &file, true).map_err(Error::Failed)?;
        Ok(Box::new(engine))
    }

    fn open(&self, _: FarMemory, _: &ContestLimits) -> Result<Box<dyn Engine>, Error> {
        Err(Error::Failed(
            "this contender cannot reopen an engine; kill.rs does it in another process".into(),
        ))
    }

    fn target(&self) -> Option<(&dyn Target, Option<&'static str>)> {
        None
    }
}
