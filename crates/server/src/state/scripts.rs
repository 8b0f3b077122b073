//! Scripts that clients have loaded, and the script that the thread of long requests is running.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// Most scripts that EVAL has loaded. The oldest is removed for a further one.
const EVAL_SCRIPTS_MAX: usize = 500;
/// Most bytes of the scripts that SCRIPT LOAD has loaded.
const LOADED_BYTES_MAX: usize = 256 << 20;

/// A script's SHA1 in hexadecimal digits, in lower case.
pub(crate) type ScriptName = String;

/// Scripts by their names.
#[derive(Default)]
struct Scripts {
    by_name: HashMap<ScriptName, CachedScript>,
    /// Names of the scripts that EVAL has loaded, the oldest first.
    by_eval: VecDeque<ScriptName>,
    /// Bytes of the scripts that SCRIPT LOAD has loaded.
    loaded_bytes: usize,
}

struct CachedScript {
    body: Arc<[u8]>,
    /// SCRIPT LOAD has loaded it, so it is not removed before SCRIPT FLUSH.
    is_loaded: bool,
}

/// A script that runs on the thread of long requests.
#[derive(Default)]
pub(crate) struct RunningScript {
    /// When it started, in milliseconds of the server's clock plus one; 0 if none runs.
    started_ms: AtomicU64,
    /// It has written: it is not killed.
    has_written: AtomicBool,
    is_killed: AtomicBool,
    /// It is a function (FCALL).
    is_function: AtomicBool,
}

/// Outcome of SCRIPT KILL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KillOutcome {
    Killed,
    NotBusy,
    HasWritten,
    /// A script runs and the request kills functions, or a function runs and the request kills scripts.
    OtherKind,
}

impl RunningScript {
    /// Records the start of a script.
    pub(crate) fn start(&self, now_ms: u64, is_function: bool) {
        self.is_function.store(is_function, Ordering::SeqCst);
        self.has_written.store(false, Ordering::SeqCst);
        self.is_killed.store(false, Ordering::SeqCst);
        self.started_ms.store(now_ms + 1, Ordering::SeqCst);
    }

    /// Records the end of a script.
    pub(crate) fn end(&self) {
        self.started_ms.store(0, Ordering::SeqCst);
    }

    /// Records that the script writes, unless it was killed. Returns whether it may write.
    pub(crate) fn note_write(&self) -> bool {
        self.has_written.store(true, Ordering::SeqCst);
        !self.is_killed.load(Ordering::SeqCst)
    }

    /// Whether the script was killed.
    pub(crate) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Milliseconds that the script has run; `None` if none runs.
    pub(crate) fn run_ms(&self, now_ms: u64) -> Option<u64> {
        match self.started_ms.load(Ordering::SeqCst) {
            0 => None,
            started => Some((now_ms + 1).saturating_sub(started)),
        }
    }

    /// Whether the running script is a function.
    pub(crate) fn is_function(&self) -> bool {
        self.is_function.load(Ordering::SeqCst)
    }

    /// Kills the script, or with `function` the function, if it has not written.
    pub(crate) fn kill(&self, function: bool) -> KillOutcome {
        if self.started_ms.load(Ordering::SeqCst) == 0 {
            return KillOutcome::NotBusy;
        }
        if self.has_written.load(Ordering::SeqCst) {
            return KillOutcome::HasWritten;
        }
        if self.is_function() != function {
            return KillOutcome::OtherKind;
        }
        self.is_killed.store(true, Ordering::SeqCst);
        KillOutcome::Killed
    }
}

/// The loaded scripts and the running one.
#[derive(Default)]
pub(crate) struct ScriptRegistry {
    scripts: Mutex<Scripts>,
    /// Number of SCRIPT FLUSH so far.
    flushes: AtomicU64,
    /// Scripts may call DEBUG.
    pub(crate) may_debug: AtomicBool,
    pub(crate) running: RunningScript,
}

impl ScriptRegistry {
    /// Number of SCRIPT FLUSH so far. A thread that has seen another number forgets its compiled scripts.
    #[inline]
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Acquire)
    }

    /// Adds a script that EVAL has executed.
    pub(crate) fn note_eval(&self, name: &str, body: &[u8]) {
        let mut scripts = lock(&self.scripts);
        if scripts.by_name.contains_key(name) {
            return;
        }
        if scripts.by_eval.len() >= EVAL_SCRIPTS_MAX
            && let Some(oldest) = scripts.by_eval.pop_front()
            && scripts.by_name.get(&oldest).is_some_and(|s| !s.is_loaded)
        {
            scripts.by_name.remove(&oldest);
        }
        scripts.by_eval.push_back(name.to_owned());
        let script = CachedScript {
            body: body.into(),
            is_loaded: false,
        };
        scripts.by_name.insert(name.to_owned(), script);
    }

    /// Adds a script of SCRIPT LOAD. Returns `false` if the loaded scripts would have too many bytes.
    pub(crate) fn load(&self, name: &str, body: &[u8]) -> bool {
        let mut scripts = lock(&self.scripts);
        if scripts.by_name.get(name).is_some_and(|s| s.is_loaded) {
            return true;
        }
        if scripts.loaded_bytes + body.len() > LOADED_BYTES_MAX {
            return false;
        }
        scripts.loaded_bytes += body.len();
        let script = CachedScript {
            body: body.into(),
            is_loaded: true,
        };
        scripts.by_name.insert(name.to_owned(), script);
        true
    }

    /// The script `name`.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<[u8]>> {
        let scripts = lock(&self.scripts);
        scripts
            .by_name
            .get(name)
            .map(|script| Arc::clone(&script.body))
    }

    /// Removes all scripts.
    pub(crate) fn flush(&self) {
        let mut scripts = lock(&self.scripts);
        *scripts = Scripts::default();
        self.flushes.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of scripts.
    pub(crate) fn count(&self) -> usize {
        lock(&self.scripts).by_name.len()
    }
}
