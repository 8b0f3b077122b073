//! [`Attachment`]: the mapping of one memory server's memory, and the verbs on it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use farbank_pm::media::{Mapped, share_path};
use farbank_pm::{Medium, Off, PersistCtx, WORD};

use super::ShmConnectError;
use crate::fabric::Verb;
use crate::server::{RedoFile, WordMemory, own_pid_namespace, path_hash};

const VALID: &str = "the batch was validated";

/// Outcome of a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VerbOutcome {
    Done,
    /// A compare-and-swap found another value.
    NotSwapped,
    /// A write was not executed, because it could not be recorded.
    NotRecorded,
}

/// The memory of a memory server, mapped into this process.
pub(super) struct Attachment {
    pub(super) memory: WordMemory<Mapped>,
    /// Path of the file, without symbolic links.
    pub(super) path: PathBuf,
    /// Address of the server's socket.
    pub(super) control: SocketAddr,
    bytes: usize,
}

impl Attachment {
    /// Maps the memory in the file at `path`.
    pub(super) fn open(path: &Path) -> Result<Attachment, ShmConnectError> {
        let medium = share_path(path).map_err(ShmConnectError::Open)?;
        let canonical = path.canonicalize().unwrap_or(path.into());
        let bytes = usize::try_from(medium.len()).unwrap_or(usize::MAX);
        let memory = WordMemory::attach(medium)
            .map_err(|error| ShmConnectError::Memory(path.into(), error))?;
        let Some(info) = memory.sharing_info() else {
            return Err(ShmConnectError::NotServed(path.into()));
        };
        if info.pid_namespace != own_pid_namespace() {
            return Err(ShmConnectError::OtherNamespace(path.into()));
        }
        if info.path_hash != path_hash(&canonical) {
            return Err(ShmConnectError::OtherPath(canonical));
        }
        Ok(Attachment {
            memory,
            path: canonical,
            control: info.control,
            bytes,
        })
    }

    /// Returns whether a load or store has met a byte that cannot be accessed. Loads return zeros for such bytes.
    #[inline]
    pub(super) fn is_damaged(&self) -> bool {
        self.memory
            .medium()
            .unreadable(Off(0), self.bytes)
            .is_some()
    }

    /// Returns whether every verb is in bounds and aligned.
    pub(super) fn is_valid(&self, verbs: &[Verb]) -> bool {
        verbs.iter().all(|verb| match verb {
            Verb::Read { at, bytes } | Verb::Write { at, bytes } => {
                self.memory.place(*at, bytes.len()).is_some()
            }
            Verb::Cas { at, .. } | Verb::Add { at, .. } => self.memory.word_place(*at).is_some(),
        })
    }

    /// Executes a valid read. Other verbs do nothing.
    pub(super) fn read(&self, verb: &mut Verb) {
        if let Verb::Read { at, bytes } = verb {
            let place = self.memory.place(*at, bytes.len()).expect(VALID);
            self.memory.read_into(place, bytes);
        }
    }

    /// Executes a valid verb.
    pub(super) fn execute(
        &self,
        ctx: &mut PersistCtx,
        redo: &RedoFile,
        verb: &mut Verb,
    ) -> VerbOutcome {
        let memory = &self.memory;
        match verb {
            Verb::Read { .. } => self.read(verb),
            Verb::Write { at, bytes } => {
                let place = memory.place(*at, bytes.len()).expect(VALID);
                if place % WORD as u64 + bytes.len() as u64 <= WORD as u64 {
                    memory.write(ctx, place, bytes);
                    return VerbOutcome::Done;
                }
                if !redo.begin(ctx, memory.server(), place, bytes) {
                    return VerbOutcome::NotRecorded;
                }
                memory.write(ctx, place, bytes);
                redo.end(ctx);
            }
            Verb::Cas {
                at,
                old,
                new,
                mask,
                found,
            } => {
                let place = memory.word_place(*at).expect(VALID);
                *found = memory.masked_cas(ctx, place, *old, *new, *mask);
                if (*found ^ *old) & *mask != 0 {
                    return VerbOutcome::NotSwapped;
                }
            }
            Verb::Add { at, by, found } => {
                let place = memory.word_place(*at).expect(VALID);
                *found = memory.update(ctx, place, |word| word.wrapping_add(*by));
            }
        }
        VerbOutcome::Done
    }
}
