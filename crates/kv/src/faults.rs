//! The engine's named faults: deliberately introduced bugs, each of which the explorer must find.
//!
//! Each is one condition in the code, `fault!("kv.x")`, at the line that it removes or changes. Some were
//! bugs of this engine. Each of the others violates an invariant.

use farbank_pm::fault::{NamedFault, ShowingRuns};
use farbank_pm::sim::Persistency;

/// Faults that the explorer finds with one thread.
pub(crate) const ALL: [NamedFault; 29] = [
    NamedFault {
        name: "pm.cached_pages_trusted",
        description: "an open after a failed sync trusts cached pages that the file's device does not have",
        source: "ext4 without a journal on a full device: fdatasync fails, kill, start",
        shows_in: Some(ShowingRuns::first(Persistency::Page, 0x7)),
    },
    NamedFault {
        name: "kv.seed_without_opening",
        description: "the seed of a record's checksum does not include the open epoch",
        source: "a bug that the crash explorer found",
        shows_in: Some(ShowingRuns::first(Persistency::Page, 0x7)),
    },
    NamedFault {
        name: "kv.settled_by_tickets",
        description: "a step that later steps rely on waits only for its ticket, so under everysec and never for no sync",
        source: "the contract of Medium::wait_until_durable",
        shows_in: Some(ShowingRuns::of(Persistency::Relaxed)),
    },
    NamedFault {
        name: "kv.copied_before_sync",
        description: "under everysec and never the cleaner copies records before a sync has made them durable",
        source: "the crash explorer, relaxed, seeds 0x5 and 0x10: a large value was damaged, half a group was there",
        shows_in: Some(ShowingRuns::of(Persistency::Relaxed)),
    },
    NamedFault {
        name: "kv.recycled_before_sync",
        description: "under everysec and never a segment is recycled before the records that replace its own are durable",
        source: "the crash explorer, relaxed, seed 0x5: a synced large value was gone after a power cut",
        shows_in: Some(ShowingRuns::of(Persistency::Relaxed)),
    },
    NamedFault {
        name: "kv.same_generation",
        description: "a segment is recycled without a new generation",
        source: "invariant KV-SEG-1 of segment.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.sealed_too_soon",
        description: "`sealed` is written before the segment's records are durable",
        source: "invariant KV-SEG-3 of segment.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.parked_unpublished",
        description: "a session's open segments may be sealed and cleaned while its writes in them are unpublished",
        source: "invariant KV-ROOM-1 of room_request.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.swap_volatile",
        description: "SWAPDB answers before the mapping of the databases' numbers is durable",
        source: "invariant KV-SWAP-4 of databases.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.swap_before_pending",
        description: "SWAPDB does not wait until earlier writes are published",
        source: "invariant KV-SWAP-1 of databases.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.floor_volatile",
        description: "FLUSHALL answers before its floor is durable",
        source: "the promise of flush.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.published_before_durable",
        description: "the index points at a record whose ticket is not durable",
        source: "invariant KV-COMMIT-1 of session.rs; so does CCEH_COW (cuhk-mass/SEPH#3)",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.failed_batch_forgotten",
        description: "a commit succeeds after an operation failed to commit the same batch",
        source: "invariant KV-COMMIT-5 of session.rs; histories whose power is cut: an MSET was answered and lost",
        shows_in: Some(ShowingRuns::first(Persistency::Adr, 7)),
    },
    NamedFault {
        name: "kv.update_skips_pending",
        description: "an update builds on the published value though a newer one is pending",
        source: "invariant KV-PEND-2 of stripe.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.answer_relies_on_nothing",
        description: "a reply that depends on another session's pending write does not wait for that write",
        source: "invariant CHECK-HIST-3 of history.rs: SETNX answered 0, and its key was lost in a power cut",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.group_relies_on_pending",
        description: "a group does not include the pending writes that its body has read",
        source: "invariant KV-GROUP-3 of group.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.group_left_behind",
        description: "a change that depends on one member of a group that is not durable may survive without the others",
        source: "invariant KV-GROUP-6 of group.rs; the histories of a killed server: INCR was kept and its MULTI lost",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.groups_cleaned_away",
        description: "a segment in which only large groups' records are left counts as empty",
        source: "a bug that the crash explorer found",
        shows_in: None,
    },
    NamedFault {
        name: "kv.victims_before_copies",
        description: "a cleaned segment is recycled before its moved records are durable",
        source: "invariant KV-CLEAN-1 of cleaner.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.tombstone_of_earlier_opening",
        description: "the reclaim stamp of a tombstone of an earlier open epoch is compared with stamps of this one",
        source: "a bug that the crash explorer found",
        shows_in: None,
    },
    NamedFault {
        name: "kv.copied_tombstone_uncounted",
        description: "a segment does not count the tombstones that the cleaner has copied into it",
        source: "invariant KV-CLEAN-3 of cleaner.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.snapshot_kept",
        description: "an open does not clear the snapshot's word in the superblock after reading the snapshot",
        source: "the promise of snapshot.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.group_unchecked",
        description: "recovery accepts a group without its body's checksum",
        source: "invariant KV-OPEN-3 of recovery.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.sequence_of_values_only",
        description: "after an open, sequence numbers continue from the newest value, though a tombstone is newer",
        source: "invariant KV-PEND-1 of stripe.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Word, 0x7)),
    },
    NamedFault {
        name: "kv.torn_not_padded",
        description: "recovery leaves torn bytes as they are and seals their segment",
        source: "invariant KV-OPEN-2 of recovery.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.map_unsettled",
        description: "a segment gets its map while some of its records are not published yet",
        source: "invariant KV-MAP-2 of segment_map.rs",
        shows_in: Some(ShowingRuns::of(Persistency::Page)),
    },
    NamedFault {
        name: "kv.map_before_durable",
        description: "a map omits a value as soon as a newer record of its key is staged",
        source: "invariant KV-MAP-1 of segment_map.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.map_unchecked",
        description: "a segment's map is used without its checksum",
        source: "invariant KV-MAP-3 of segment_map.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.read_cache_kept",
        description: "a write does not remove its key from the read cache",
        source: "invariant KV-CACHE-2 of read_cache.rs",
        shows_in: None,
    },
];

/// Faults that need values of more than one extent.
pub(crate) const LARGE: [NamedFault; 2] = [
    NamedFault {
        name: "kv.first_extent_checked",
        description: "recovery accepts a large value if its first extent is whole",
        source: "invariant KV-LARGE-1 of large.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.first_extent_flushed",
        description: "recovery flushes only the first extent of a value that it accepts",
        source: "invariant KV-OPEN-1 of recovery.rs",
        shows_in: None,
    },
];

/// Faults that the explorer finds if the cleaner moves a few records at a time.
pub(crate) const IN_SLICES: [NamedFault; 1] = [NamedFault {
    name: "kv.slice_ends_victim",
    description: "a victim that was walked in part is retired if no live record is left in it",
    source: "invariant KV-PASS-1 of cleaning_pass.rs",
    shows_in: None,
}];

/// Faults of checkpoints of the index.
pub(crate) const IN_CHECKPOINTS: [NamedFault; 9] = [
    NamedFault {
        name: "kv.checkpoint_unsettled",
        description: "a checkpoint covers a segment of which some records are not published yet",
        source: "invariant KV-CKPT-1 of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Page, 0x2d)),
    },
    NamedFault {
        name: "kv.checkpoint_without_tombstones",
        description: "a checkpoint lists no tombstones of covered segments",
        source: "invariant KV-CKPT-3 of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Word, 0x4)),
    },
    NamedFault {
        name: "kv.checkpoint_before_drain",
        description: "the superblock names a checkpoint before it is durable",
        source: "invariant KV-CKPT-4 of engine/checkpoint.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.checkpoint_recycled_early",
        description: "the segments of a checkpoint are recycled while the superblock still names it",
        source: "invariant KV-CKPT-5 of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Page, 0x2)),
    },
    NamedFault {
        name: "kv.checkpoint_reused_early",
        description: "a checkpoint takes the segments of the one before while the superblock still names that",
        source: "invariant KV-CKPT-5 of engine/checkpoint.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.checkpoint_floor_ignored",
        description: "an open uses a checkpoint from before FLUSHALL",
        source: "invariant KV-CKPT-6 of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Adr, 0x1d)),
    },
    NamedFault {
        name: "kv.checkpoint_generation_ignored",
        description: "an open uses entries of segments that were recycled after the checkpoint",
        source: "invariant KV-CKPT-1 of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Word, 0x32)),
    },
    NamedFault {
        name: "kv.checkpoint_sequence_ignored",
        description: "after an open, sequence numbers continue from the newest scanned record, though covered ones are newer",
        source: "invariant KV-PEND-1 of stripe.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Adr, 0x4)),
    },
    NamedFault {
        name: "kv.checkpoint_entry_wins",
        description: "an open keeps an entry of the checkpoint although it has read a newer record of the key",
        source: "the crash argument of engine/checkpoint.rs",
        shows_in: Some(ShowingRuns::first(Persistency::Page, 0x4)),
    },
];

/// Faults that show only with several threads.
pub(crate) const IN_THREADS: [NamedFault; 7] = [
    NamedFault {
        name: "kv.cached_during_group",
        description: "the read cache answers while a group is being published",
        source: "invariant KV-CACHE-5 of read_cache.rs",
        shows_in: Some(ShowingRuns::schedules(0x1_0029)),
    },
    NamedFault {
        name: "kv.swap_unseen_by_writes",
        description: "a write is staged although SWAPDB has moved its database since its key was translated",
        source: "invariant KV-SWAP-2 of databases.rs",
        shows_in: Some(ShowingRuns::schedules(0x1_0007)),
    },
    NamedFault {
        name: "kv.swap_unseen_by_reads",
        description: "a read answers although SWAPDB has moved its database since its key was translated",
        source: "invariant KV-SWAP-3 of databases.rs",
        shows_in: Some(ShowingRuns::schedules(0x1_006e)),
    },
    NamedFault {
        name: "kv.flush_takes_extents",
        description: "FLUSHALL frees the extents of a large value whose sequence number is higher than the floor",
        source: "a bug that the schedule explorer found, in schedule 31 of seed 0x11",
        shows_in: Some(ShowingRuns::schedules(0x1_0019)),
    },
    NamedFault {
        name: "kv.stripe_released_early",
        description: "a stripe's lock is released between the check of its pending writes and the addition of a new one",
        source: "invariant KV-PEND-4 of stripe.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.older_published_later",
        description: "a drained write is published although a newer write of its key was published before",
        source: "invariant KV-PEND-2 of stripe.rs",
        shows_in: None,
    },
    NamedFault {
        name: "kv.group_seen_half",
        description: "a group is published without its sequence lock",
        source: "invariant KV-GROUP-2 of group.rs",
        shows_in: Some(ShowingRuns::schedules(0x1_0006)),
    },
];

/// Faults that show only with several threads, if each operation is a batch of its own.
pub(crate) const IN_THREADS_ALONE: [NamedFault; 1] = [NamedFault {
    name: "kv.read_cache_torn",
    description: "a read uses a value of the read cache although its slot was written meanwhile",
    source: "invariant KV-CACHE-3 of read_cache.rs",
    shows_in: Some(ShowingRuns::schedules(0x1_0029)),
}];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use farbank_check::marks::{names_in, testing_pages};

    use super::{ALL, IN_CHECKPOINTS, IN_SLICES, IN_THREADS, IN_THREADS_ALONE, LARGE, NamedFault};

    /// The faults of all lists.
    fn all() -> impl Iterator<Item = &'static NamedFault> {
        let single = ALL.iter().chain(&LARGE).chain(&IN_SLICES);
        let single = single.chain(&IN_CHECKPOINTS);
        single.chain(&IN_THREADS).chain(&IN_THREADS_ALONE)
    }

    #[test]
    fn every_fault_is_listed_and_every_name_is_in_one_place() {
        // The list includes the simulator's faults, because exploring the engine finds them.
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dirs = ["src", "../pm/src/sim"].map(|dir| crate_dir.join(dir));
        let names = dirs.map(|dir| names_in(&dir, "fault!(", "faults.rs"));
        let mut found = names.concat();
        let mut listed: Vec<&str> = all().map(|n| n.name).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
        let distinct: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(distinct.len(), listed.len());
    }
    #[test]
    fn the_pages_on_testing_have_a_row_for_each_fault() {
        let pages = testing_pages();
        for fault in all() {
            let first = format!("| `{}`", fault.name);
            let second = format!("| {} |", fault.description);
            let is_row = |line: &str| line.starts_with(&first) && line.contains(&second);
            assert!(
                pages.lines().any(is_row),
                "docs/testing lacks the row {first} {second}"
            );
        }
    }
}
