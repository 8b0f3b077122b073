//! The engine on a medium that is known at run time only.
//!
//! The engine's code for the two real media is compiled with this module. Programs and tests above link it, and do not
//! compile it again.

use farbank_pm::media::{AnyMedium, File, Mapped};
use farbank_store::{Error, Store};

use crate::api::{Kv, OpenError};
use crate::config::Config;
use crate::engine::inconsistency::Inconsistency;

/// An open engine, whose medium was chosen at run time.
pub enum AnyKv {
    /// On DAX or DRAM.
    Mapped(Kv<Mapped>),
    /// On an ordinary file.
    File(Kv<File>),
}

impl AnyKv {
    /// Creates an engine on an empty medium; see [`Kv::create`].
    ///
    /// # Errors
    /// As [`Kv::create`].
    pub fn create(
        medium: AnyMedium,
        segment_bytes: u64,
        config: Config,
    ) -> Result<AnyKv, OpenError> {
        Ok(match medium {
            AnyMedium::Mapped(medium) => AnyKv::Mapped(Kv::create(medium, segment_bytes, config)?),
            AnyMedium::File(medium) => AnyKv::File(Kv::create(medium, segment_bytes, config)?),
        })
    }

    /// Opens the pool on `medium`; see [`Kv::open`].
    ///
    /// # Errors
    /// As [`Kv::open`].
    pub fn open(medium: AnyMedium, config: Config) -> Result<AnyKv, OpenError> {
        Ok(match medium {
            AnyMedium::Mapped(medium) => AnyKv::Mapped(Kv::open(medium, config)?),
            AnyMedium::File(medium) => AnyKv::File(Kv::open(medium, config)?),
        })
    }

    /// Returns the engine as a store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        match self {
            AnyKv::Mapped(kv) => kv,
            AnyKv::File(kv) => kv,
        }
    }

    /// Returns the engine as a store of its own.
    #[must_use]
    pub fn into_store(self) -> Box<dyn Store> {
        match self {
            AnyKv::Mapped(kv) => Box::new(kv),
            AnyKv::File(kv) => Box::new(kv),
        }
    }

    /// Whether the pool is a copy of one that was in use; see [`Kv::is_copy`].
    #[must_use]
    pub fn is_copy(&self) -> bool {
        match self {
            AnyKv::Mapped(kv) => kv.is_copy(),
            AnyKv::File(kv) => kv.is_copy(),
        }
    }

    /// Verifies the engine's counts and maps; see [`Kv::verify`].
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn verify(&self) -> Result<(), Inconsistency> {
        match self {
            AnyKv::Mapped(kv) => kv.verify(),
            AnyKv::File(kv) => kv.verify(),
        }
    }

    /// Calls `each` for every damaged record; see [`Kv::damaged`].
    pub fn damaged(&self, each: &mut dyn FnMut(u64, u8, &[u8])) {
        match self {
            AnyKv::Mapped(kv) => kv.damaged(each),
            AnyKv::File(kv) => kv.damaged(each),
        }
    }

    /// Closes the engine and its medium; see [`Kv::close`]. On `Ok` all committed writes are durable.
    ///
    /// # Errors
    /// As [`Kv::close`], and [`Error::Poisoned`] if the file cannot be closed.
    pub fn close(self) -> Result<(), Error> {
        match self {
            AnyKv::Mapped(kv) => kv.close().map(drop),
            AnyKv::File(kv) => match kv.close()? {
                Some(file) => Ok(file.close()?),
                None => Ok(()),
            },
        }
    }
}
