//! The engine on a file or a device, optionally without flushes or syncs.

use std::path::Path;

use farbank_check::power::{
    BatchSink, FlushMode, OpenEngine, POOL_BYTES, PowerEngine, PowerError, SEGMENT_BYTES,
    UnflushedMedium,
};
use farbank_kv::{AnyKv, CleaningMode, Config, Kv};
use farbank_pm::Medium;
use farbank_pm::media::{AnyMedium, OpenError, OpenOptions, SyncPolicy, create_path, open_path};
use farbank_store::ConflictPolicy;

use crate::session::SessionSink;

/// Our engine.
pub(crate) struct KvEngine;

impl PowerEngine for KvEngine {
    fn open(
        &self,
        path: &Path,
        flushing: FlushMode,
        syncing: SyncPolicy,
    ) -> Result<Box<dyn OpenEngine>, PowerError> {
        let options = options(syncing);
        match create_path(path, POOL_BYTES, &options, &mut |_, _| {}) {
            Ok(medium) => close_new(AnyKv::create(medium, SEGMENT_BYTES, config()))?,
            Err(OpenError::Exists { .. } | OpenError::Occupied { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match open_path(path, &options)? {
            AnyMedium::Mapped(medium) if flushing == FlushMode::Never => {
                opened(Kv::open(UnflushedMedium(medium), config()))
            }
            AnyMedium::Mapped(medium) => opened(Kv::open(medium, config())),
            AnyMedium::File(medium) => opened(Kv::open(medium, config())),
        }
    }

    fn open_to_check(&self, path: &Path) -> Result<Box<dyn OpenEngine>, PowerError> {
        let config = Config {
            cleaning: CleaningMode::Inline,
            ..config()
        };
        match open_path(path, &OpenOptions::default())? {
            AnyMedium::Mapped(medium) => opened(Kv::open(medium, config)),
            AnyMedium::File(medium) => opened(Kv::open(medium, config)),
        }
    }
}

struct OpenKv<M: Medium>(Kv<M>);

impl<M: Medium> OpenEngine for OpenKv<M> {
    fn sink(&self) -> Box<dyn BatchSink> {
        let mut session = self.0.session();
        session.on_conflict(ConflictPolicy::Commit);
        Box::new(SessionSink(session))
    }

    fn verify(&self) -> Result<(), PowerError> {
        let verified = self.0.verify();
        verified.map_err(|wrong| PowerError::Damaged(wrong.to_string()))
    }
}

fn options(sync: SyncPolicy) -> OpenOptions {
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

fn close_new(kv: Result<AnyKv, farbank_kv::OpenError>) -> Result<(), PowerError> {
    let kv = kv.map_err(PowerError::engine)?;
    kv.close().map_err(PowerError::engine)
}

fn opened<M: Medium>(
    kv: Result<Kv<M>, farbank_kv::OpenError>,
) -> Result<Box<dyn OpenEngine>, PowerError> {
    let kv = kv.map_err(PowerError::engine)?;
    match kv.opened().damage.first() {
        Some(damage) => Err(PowerError::Damaged(format!(
            "the engine reports damage on an intact device: {damage}"
        ))),
        None => Ok(Box::new(OpenKv(kv))),
    }
}
