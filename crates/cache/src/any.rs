//! The cache on a medium that is known at run time only.
//!
//! The cache's code for the two real media is compiled with this module. Programs above link it, and do not compile it
//! again.

use farbank_pm::media::{AnyMedium, File, Mapped};
use farbank_store::{Error, Store};

use crate::cache::Cache;
use crate::config::Config;
use crate::open_error::OpenError;

/// An open cache, whose medium was chosen at run time. Its metadata is in DRAM.
pub enum AnyCache {
    /// On DAX or DRAM.
    Mapped(Cache<Mapped>),
    /// On an ordinary file.
    File(Cache<File>),
}

impl AnyCache {
    /// Creates an empty cache on all of `medium`; see [`Cache::create`].
    ///
    /// # Errors
    /// As [`Cache::create`].
    pub fn create(
        medium: AnyMedium,
        page_bytes: u64,
        config: Config,
    ) -> Result<AnyCache, OpenError> {
        Ok(match medium {
            AnyMedium::Mapped(far) => AnyCache::Mapped(Cache::create(far, page_bytes, config)?),
            AnyMedium::File(far) => AnyCache::File(Cache::create(far, page_bytes, config)?),
        })
    }

    /// Opens the cache on `medium`; see [`Cache::open`].
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn open(medium: AnyMedium, config: Config) -> Result<AnyCache, OpenError> {
        Ok(match medium {
            AnyMedium::Mapped(far) => AnyCache::Mapped(Cache::open(far, config)?),
            AnyMedium::File(far) => AnyCache::File(Cache::open(far, config)?),
        })
    }

    /// Returns the cache as a store.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        match self {
            AnyCache::Mapped(cache) => cache,
            AnyCache::File(cache) => cache,
        }
    }

    /// Closes the cache and its medium; see [`Cache::close`].
    ///
    /// # Errors
    /// As [`Cache::close`], and [`Error::Poisoned`] if the file cannot be closed.
    pub fn close(self) -> Result<(), Error> {
        match self {
            AnyCache::Mapped(cache) => cache.close().map(drop),
            AnyCache::File(cache) => match cache.close()? {
                Some(file) => Ok(file.close()?),
                None => Ok(()),
            },
        }
    }
}
