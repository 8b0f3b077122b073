//! [`Persistency`], the rule for what a power cut can lose. The [simulator](crate::sim) implements the modes.

use std::fmt;
use std::str::FromStr;

use crate::offset::LINE;

/// Bytes of a sector, which a file's device writes atomically.
pub const SECTOR: usize = 512;

/// A persistency mode: the rule for what a power cut can lose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Persistency {
    /// CPU caches are lost. Each line keeps a prefix of its stores; each word that bypassed the cache
    /// keeps a prefix of its own.
    Adr,
    /// CPU caches are saved. No store is lost.
    Eadr,
    /// CPU caches are lost, and there is no order within a line. Each word keeps a prefix of its stores.
    Word,
    /// A file: each sector written since the last sync has its old content or a newer one.
    Page,
    /// A file that is synced periodically: as [`Persistency::Page`], but tickets promise nothing. A power cut
    /// can lose only bytes written since the last sync.
    Relaxed,
}

impl Persistency {
    /// The modes in which a durable ticket is a promise.
    pub const ALL: [Persistency; 4] = [
        Persistency::Adr,
        Persistency::Eadr,
        Persistency::Word,
        Persistency::Page,
    ];

    /// All modes.
    pub const EVERY: [Persistency; 5] = [
        Persistency::Adr,
        Persistency::Eadr,
        Persistency::Word,
        Persistency::Page,
        Persistency::Relaxed,
    ];

    /// Returns whether the mode models a file.
    #[must_use]
    pub const fn is_file(self) -> bool {
        matches!(self, Persistency::Page | Persistency::Relaxed)
    }

    /// Returns the name of the mode on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Persistency::Adr => "adr",
            Persistency::Eadr => "eadr",
            Persistency::Word => "word",
            Persistency::Page => "page",
            Persistency::Relaxed => "relaxed",
        }
    }

    /// Returns the bytes of the unit of write-back: a line, or for a file a sector.
    #[must_use]
    pub const fn unit_bytes(self) -> usize {
        match self {
            Persistency::Adr | Persistency::Eadr | Persistency::Word => LINE,
            Persistency::Page | Persistency::Relaxed => SECTOR,
        }
    }
}

impl fmt::Display for Persistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of a text that names no persistency mode.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ParsePersistencyError {
    /// The text.
    pub found: String,
}

impl fmt::Display for ParsePersistencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.found;
        write!(
            f,
            "unknown persistency {found:?}: give adr, eadr, word, page or relaxed"
        )
    }
}

impl std::error::Error for ParsePersistencyError {}

impl FromStr for Persistency {
    type Err = ParsePersistencyError;

    fn from_str(name: &str) -> Result<Persistency, ParsePersistencyError> {
        let mut modes = Persistency::EVERY.into_iter();
        modes
            .find(|mode| mode.name() == name)
            .ok_or_else(|| ParsePersistencyError { found: name.into() })
    }
}
