//! The engine on a file or a device, optionally without flushes or syncs.

use std::path::Path;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::Medium;
use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, SyncPolicy, create_path, open_path};
use farbank_store::{ConflictPolicy, Session, Store};

use super::ack_sink::BatchSink;
use super::plan::CheckFindings;
use super::unflushed::UnflushedMedium;
use super::{POOL_BYTES, SEGMENT_BYTES, WRITERS, check_after_cut};

/// When a write to a file is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// After the sync.
    Always,
    /// Before the sync. The test must detect that a power cut loses such writes.
    Never,
}

/// Whether stores to persistent memory are written back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FlushMode {
    Always,
    Never,
}

/// Store with a self-check.
pub(super) trait CheckedEngine: Store {
    fn verify(&self) -> Result<(), String>;
}

impl<M: Medium> CheckedEngine for Kv<M> {
    fn verify(&self) -> Result<(), String> {
        Kv::verify(self)
    }
}

/// Opens the pool at `path`, after creating it if it does not exist.
pub(super) fn open(
    path: &Path,
    flushing: FlushMode,
    syncing: SyncMode,
) -> Result<Box<dyn CheckedEngine>, String> {
    let options = options(syncing);
    match create_path(path, POOL_BYTES, &options, &mut |_, _| {}) {
        Ok(AnyMedium::Mapped(medium)) => close_new(Kv::create(medium, SEGMENT_BYTES, config()))?,
        Ok(AnyMedium::File(medium)) => close_new(Kv::create(medium, SEGMENT_BYTES, config()))?,
        Err(OpenError::Exists { .. } | OpenError::Occupied { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    match open_path(path, &options).map_err(|e| e.to_string())? {
        AnyMedium::Mapped(medium) if flushing == FlushMode::Never => {
            opened(Kv::open(UnflushedMedium(medium), config()))
        }
        AnyMedium::Mapped(medium) => opened(Kv::open(medium, config())),
        AnyMedium::File(medium) => opened(Kv::open(medium, config())),
    }
}

fn options(syncing: SyncMode) -> OpenOptions {
    let sync = match syncing {
        SyncMode::Always => SyncPolicy::Always,
        SyncMode::Never => SyncPolicy::Never,
    };
    OpenOptions {
        sync,
        ..OpenOptions::default()
    }
}

fn config() -> Config {
    Config {
        open_threads: 2,
        ..Config::default()
    }
}

fn close_new<M: Medium>(kv: Result<Kv<M>, farbank_kv::OpenError>) -> Result<(), String> {
    let kv = kv.map_err(|e| e.to_string())?;
    kv.close().map(drop).map_err(|e| e.to_string())
}

fn opened<M: Medium>(
    kv: Result<Kv<M>, farbank_kv::OpenError>,
) -> Result<Box<dyn CheckedEngine>, String> {
    let kv = kv.map_err(|e| e.to_string())?;
    match kv.opened().damage.first() {
        Some(damage) => Err(format!(
            "the engine reports damage on an intact device: {damage}"
        )),
        None => Ok(Box::new(kv)),
    }
}

/// Returns a session for each writer.
pub(super) fn sessions(engine: &dyn CheckedEngine) -> Vec<Box<dyn BatchSink>> {
    let bank = |mut session: Box<dyn Session>| {
        session.on_conflict(ConflictPolicy::Commit);
        Box::new(session) as Box<dyn BatchSink>
    };
    (0..WRITERS).map(|_| bank(engine.session())).collect()
}

/// Opens the pool at `path` after a power cut, compares it with the `acknowledged` counts and runs the engine's own
/// check. The cleaner thread is off meanwhile.
pub(super) fn check(path: &Path, acknowledged: &[u64]) -> Result<Vec<CheckFindings>, String> {
    let config = Config {
        cleaning: CleaningMode::Inline,
        ..config()
    };
    let medium = open_path(path, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let engine = match medium {
        AnyMedium::Mapped(medium) => opened(Kv::open(medium, config)),
        AnyMedium::File(medium) => opened(Kv::open(medium, config)),
    }?;
    let mut judged = check_after_cut(sessions(&*engine), acknowledged)?;
    if let Err(why) = engine.verify() {
        judged[0].wrong.push(why);
    }
    Ok(judged)
}
