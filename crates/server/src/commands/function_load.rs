//! One load of a library of functions: runs its code once in a Lua state, and collects what it registers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::CommandError;
use crate::buffers::reply::ReplyBuffer;
use crate::lua::engine::ScriptEngine;
use crate::lua::functions::{LoadError, LoadedLibrary};
use crate::lua::host::{LogLevel, ReplyVersions, ScriptHost};
use crate::lua::shebang;
use crate::protocol::resp::{Args, RespVersion};
use crate::rdb::LibraryReader;
use crate::settings_error::SettingsError;
use crate::state::functions::{CODE_BYTES_MAX, FunctionRegistry, Libraries, Library};
use crate::state::threads::ServerThreads;

/// Longest load on a worker. The thread of long requests loads a library that takes longer.
const SHORT_LOAD: Duration = Duration::from_millis(1);
/// Longest load, as in Redis.
const LONG_LOAD: Duration = Duration::from_millis(500);
/// Bytes that a library may use when the server starts.
const START_BYTES_MAX: usize = 256 << 20;

/// Limits the time and the memory of a load.
struct LoadHost<'a> {
    started: Instant,
    longest: Duration,
    threads: &'a dyn ServerThreads,
    is_late: bool,
    is_full: bool,
}

impl ScriptHost for LoadHost<'_> {
    fn call(&mut self, _: Args<'_>, _: &mut ReplyBuffer) -> Result<(), Vec<u8>> {
        Err(b"ERR a library calls no commands while it is loaded".to_vec())
    }

    fn set_resp(&mut self, _: RespVersion) {}

    fn versions(&self) -> ReplyVersions {
        ReplyVersions {
            client: RespVersion::V2,
            script: RespVersion::V2,
        }
    }

    fn check_time(&mut self) {
        self.is_late |= self.started.elapsed() > self.longest || self.threads.is_stopping();
    }

    fn is_aborted(&self) -> bool {
        self.is_late || self.is_full
    }

    fn note_out_of_memory(&mut self) {
        self.is_full = true;
    }

    fn log(&mut self, level: LogLevel, text: &[u8]) {
        level.write(text);
    }

    fn may_execute(&self, _: Args<'_>) -> Option<bool> {
        None
    }
}

/// Where a library is loaded.
#[derive(Clone, Copy)]
pub(super) struct LoadThread<'a> {
    pub(super) threads: &'a dyn ServerThreads,
    pub(super) executes_long: bool,
}

/// Loads the source of a library, which follows its first line.
fn load_source(
    engine: &mut ScriptEngine,
    source: &[u8],
    thread: LoadThread<'_>,
) -> Result<LoadedLibrary, CommandError> {
    let mut host = LoadHost {
        started: Instant::now(),
        longest: match thread.executes_long {
            true => LONG_LOAD,
            false => SHORT_LOAD,
        },
        threads: thread.threads,
        is_late: false,
        is_full: false,
    };
    match engine.load_library(source, Some(&mut host)) {
        Ok(library) => Ok(library),
        Err(LoadError::Refused(text)) => Err(CommandError::Detailed(text)),
        Err(LoadError::Aborted) if !thread.executes_long => Err(CommandError::Long),
        Err(LoadError::Aborted) => Err(CommandError::Fixed(match host.is_full {
            true => "ERR Error registering functions: not enough memory",
            false => "ERR Error registering functions: ERR FUNCTION LOAD timeout",
        })),
    }
}

/// Loads a library for the first time, and keeps it in `engine`.
pub(super) fn load_new(
    registry: &FunctionRegistry,
    engine: &mut ScriptEngine,
    code: &[u8],
    thread: LoadThread<'_>,
) -> Result<Library, CommandError> {
    let (name, source) = shebang::library(code).map_err(CommandError::Detailed)?;
    let loaded = load_source(engine, source, thread)?;
    Ok(Library {
        id: registry.next_id(),
        name,
        code: code.into(),
        functions: loaded.functions,
    })
}

/// Loads a library in `engine`, unless that has it.
pub(super) fn load_known(
    engine: &mut ScriptEngine,
    library: &Library,
    thread: LoadThread<'_>,
) -> Result<(), CommandError> {
    if engine.has_library(library.id) {
        return Ok(());
    }
    let (_, source) = shebang::library(&library.code).map_err(CommandError::Detailed)?;
    let loaded = load_source(engine, source, thread)?;
    engine.keep_library(library.id, loaded);
    Ok(())
}

/// Loads the libraries of the file of `registry` when the server starts.
///
/// # Errors
/// [`SettingsError`], which says what is wrong with the file.
pub(crate) fn load_file(
    registry: &FunctionRegistry,
    threads: &dyn ServerThreads,
) -> Result<(), SettingsError> {
    let Some(payload) = registry.read_file().map_err(SettingsError::from_cause)? else {
        return Ok(());
    };
    let reader = LibraryReader::new(&payload, CODE_BYTES_MAX)
        .map_err(|_| SettingsError::new("the version or the checksum is wrong"))?;
    let mut engine = ScriptEngine::new(START_BYTES_MAX, 0)
        .map_err(|error| SettingsError::new(error.to_string()))?;
    let mut libraries = Libraries::default();
    for code in reader {
        let code = code.map_err(|_| SettingsError::new("it has something else than libraries"))?;
        let (name, source) =
            shebang::library(&code).map_err(|text| SettingsError::new(readable(&text)))?;
        let loaded = match engine.load_library(source, None) {
            Ok(loaded) => loaded,
            Err(LoadError::Refused(text)) => {
                let why = format!("{name}: {}", readable(&text));
                return Err(SettingsError::new(why));
            }
            Err(LoadError::Aborted) => {
                let why = format!("{name}: the load was aborted");
                return Err(SettingsError::new(why));
            }
        };
        let library = Library {
            id: registry.next_id(),
            name,
            code: code.into(),
            functions: loaded.functions,
        };
        let added = libraries.add(Arc::new(library), false);
        added.map_err(|conflict| SettingsError::new(format!("{conflict:?}")))?;
        if threads.is_stopping() {
            return Ok(());
        }
    }
    registry.publish(libraries);
    Ok(())
}

fn readable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}
