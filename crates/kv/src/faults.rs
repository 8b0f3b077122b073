//! The engine's faults by name: deviations that the explorer has to find out.
//!
//! Each is one condition in the code, `fault!("kv.x")`, at the line it takes away or changes. Some were
//! bugs of this engine once; the others are what its invariants are there for.

use farbank_pm::fault::NamedFault;
use farbank_pm::sim::Persistency;

/// Those that the explorer finds, in one thread.
pub(crate) const ALL: [NamedFault; 26] = [
    NamedFault {
        name: "pm.cached_pages_trusted",
        what: "a start after a failed sync trusts pages that the file's device does not have",
        source: "ext4 without a journal on a full device: fdatasync fails, kill, start",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.seed_without_opening",
        what: "a record's checksum says nothing of the opening of the pool it was written in",
        source: "the crash explorer, mended in 6703750",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.settled_by_tickets",
        what: "a step that others build on waits for its ticket, and under everysec and never for no sync",
        source: "the promise of Medium::settle",
        shows_in: Some(Persistency::Relaxed),
    },
    NamedFault {
        name: "kv.copied_before_sync",
        what: "under everysec and never the cleaner copies what no sync has made durable",
        source: "the crash explorer, relaxed, seeds 0x5 and 0x10: a large value was damaged, half a group was there",
        shows_in: Some(Persistency::Relaxed),
    },
    NamedFault {
        name: "kv.reborn_before_sync",
        what: "under everysec and never a segment is reborn before what has replaced its records is durable",
        source: "the crash explorer, relaxed, seed 0x5: a synced large value was gone after a power cut",
        shows_in: Some(Persistency::Relaxed),
    },
    NamedFault {
        name: "kv.same_generation",
        what: "a segment is reborn under the generation it had",
        source: "invariant S1 of segment.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.sealed_too_soon",
        what: "a segment's end is written down before its records are durable",
        source: "invariant S3 of segment.rs",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.parked_unpublished",
        what: "a session's open segments may be sealed and cleaned while its writes in them are unpublished",
        source: "invariant KV-ROOM-1 of room.rs",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.floor_volatile",
        what: "FLUSHALL answers before its floor is durable",
        source: "the promise of flush.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.published_before_durable",
        what: "the index names a record whose ticket has not turned",
        source: "invariant N1 of session.rs; so does CCEH_COW (cuhk-mass/SEPH#3)",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.update_skips_pending",
        what: "an update builds on the published value though a newer one is pending",
        source: "invariant W2 of stripe.rs",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.answer_relies_on_nothing",
        what: "an answer that depends on another session's pending write does not wait for it",
        source: "invariant H3 of history.rs: SETNX answered 0, and its key was lost in a power cut",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.group_relies_on_pending",
        what: "a group does not carry the pending writes it was decided on",
        source: "invariant G3 of group.rs, mended in 9cfe07e",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.group_left_behind",
        what: "what was decided on one member of a group that is not durable may survive without the others",
        source: "invariant G6 of group.rs; the histories of a killed server: INCR kept, its MULTI lost",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.groups_cleaned_away",
        what: "a segment in which only large groups' records are left counts as empty",
        source: "the crash explorer, mended in 6703750",
        shows_in: None,
    },
    NamedFault {
        name: "kv.victims_before_copies",
        what: "a cleaned segment is reborn before its moved records are durable",
        source: "invariant C1 of cleaner.rs",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.tombstone_of_earlier_opening",
        what: "a tombstone of an earlier opening is dropped by comparing its stamp with stamps of this one",
        source: "the crash explorer, mended in 4a1f1d6",
        shows_in: None,
    },
    NamedFault {
        name: "kv.copied_tombstone_uncounted",
        what: "a segment does not count the tombstones that the cleaner has copied into it",
        source: "invariant C3 of cleaner.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.snapshot_kept",
        what: "an open does not forget the snapshot it has read",
        source: "the promise of snapshot.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.group_unchecked",
        what: "a group is believed without its body's checksum",
        source: "invariant V3 of recover.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.sequence_of_values_only",
        what: "sequence numbers go on from the newest value, though a tombstone is newer",
        source: "invariant W1 of stripe.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.torn_not_padded",
        what: "recovery leaves torn bytes as they are and seals their segment",
        source: "invariant V2 of recover.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.map_unsettled",
        what: "a segment gets its map while some of its records are not published yet",
        source: "invariant KV-MAP-2 of segment_map.rs",
        shows_in: Some(Persistency::Page),
    },
    NamedFault {
        name: "kv.map_before_durable",
        what: "a map leaves a value out as soon as a newer record of its key is staged",
        source: "invariant KV-MAP-1 of segment_map.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.map_unchecked",
        what: "a segment's map counts without its checksum",
        source: "invariant KV-MAP-3 of segment_map.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.read_cache_kept",
        what: "a write leaves what the read cache holds of its key",
        source: "invariant H2 of read_cache.rs",
        shows_in: None,
    },
];

/// Those that need values of more than one extent.
pub(crate) const LARGE: [NamedFault; 2] = [
    NamedFault {
        name: "kv.first_extent_checked",
        what: "recovery accepts a large value whose first extent is whole",
        source: "invariant L1 of large.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.first_extent_flushed",
        what: "recovery flushes only the first extent of a value that it accepts",
        source: "invariant V1 of recover.rs",
        shows_in: None,
    },
];

/// Those that the explorer finds where the cleaner moves a few records at a time.
pub(crate) const IN_SLICES: [NamedFault; 1] = [NamedFault {
    name: "kv.slice_ends_victim",
    what: "a victim that was walked in part is put in limbo if no live record is left in it",
    source: "invariant KV-PASS-1 of pass.rs",
    shows_in: None,
}];

/// Those that only threads can find.
pub(crate) const IN_THREADS: [NamedFault; 4] = [
    NamedFault {
        name: "kv.flush_takes_extents",
        what: "FLUSHALL frees the extents of a large value that is numbered after it",
        source: "schedule 31 of seed 0x11, chosen at random: a bug of this engine until then",
        shows_in: None,
    },
    NamedFault {
        name: "kv.stripe_released_early",
        what: "a stripe is let go between the look at its list and the entry in it",
        source: "invariant W4 of stripe.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.older_published_later",
        what: "a drained write is published though a newer one of its key has been",
        source: "invariant W2 of stripe.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.group_seen_half",
        what: "a group is published outside of its sequence lock",
        source: "invariant G2 of group.rs",
        shows_in: None,
    },
];

/// Those that only threads can find whose every operation is a batch by itself.
pub(crate) const IN_THREADS_ALONE: [NamedFault; 1] = [NamedFault {
    name: "kv.read_cache_torn",
    what: "a value of the read cache is taken though its slot was written meanwhile",
    source: "invariant H3 of read_cache.rs",
    shows_in: None,
}];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use farbank_check::marks::names_in;

    use super::{ALL, IN_SLICES, IN_THREADS, IN_THREADS_ALONE, LARGE};

    #[test]
    fn every_fault_is_listed_and_every_name_is_in_one_place() {
        // The simulator's are found by way of the engine.
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dirs = ["src", "../pm/src/sim"].map(|dir| crate_dir.join(dir));
        let names = dirs.map(|dir| names_in(&dir, "fault!(", "faults.rs"));
        let mut found = names.concat();
        let single = ALL.iter().chain(&LARGE).chain(&IN_SLICES);
        let all = single.chain(&IN_THREADS).chain(&IN_THREADS_ALONE);
        let mut listed: Vec<&str> = all.map(|n| n.name).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
        let distinct: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(distinct.len(), listed.len());
    }
}
