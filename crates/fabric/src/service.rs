//! What a memory server's one thread does, asked by compute servers.
//!
//! Data never passes through it. It hands out chunks of its memory, and the thread of server 0 keeps the
//! compute servers' leases: who has not renewed his for [`crate::sim::Constants::lease_ns`] may be declared dead by
//! anyone who waits for him. Before it says so it has every memory server refuse the dead one's verbs (F4 of
//! the door).

/// The memory server whose thread keeps the leases.
pub const KEEPER: u16 = 0;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceRequest {
    /// A chunk of memory for the asker.
    Chunk,
    /// To the [`KEEPER`]: the asker is alive.
    Renew,
    /// To the [`KEEPER`]: is compute server `compute`, in its `epoch`-th life, alive? If its lease has run out, it
    /// is fenced first.
    Verdict {
        /// Who.
        compute: u16,
        /// In which life.
        epoch: u8,
    },
    /// To the [`KEEPER`]: the asker, fenced, starts a new life.
    Join,
}

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceResponse {
    /// A new chunk of the server's host memory.
    Chunk {
        /// The byte at which it starts.
        at: u64,
        /// How many it has.
        bytes: u64,
    },
    /// The server has no memory left.
    Full,
    /// The lease holds from now on; or, to [`Ask::Verdict`], it still holds.
    Alive,
    /// It was fenced: none of its verbs takes effect any more.
    Dead,
    /// The asker's new life.
    Epoch(u8),
}
