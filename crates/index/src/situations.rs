//! The tables' situations: branches that are rare, which the explorer must have come by.
//!
//! Each is one mark in the code, `situation!("cceh.x")`. `check situations` explores each table until it has met its own and
//! those of what it is built on.

use farbank_pm::situation::Situation;

use crate::registry::Table;

const fn situation(name: &'static str, what: &'static str) -> Situation {
    Situation { name, what }
}

/// Of chunks, which every table has.
const RUNS: [Situation; 2] = [
    situation("ground.full", "an allocation finds no chunks"),
    situation(
        "ground.run_freed_by_open",
        "an open frees a run that nothing leads to",
    ),
];

/// Of blocks, which are parts of chunks.
const BLOCKS: [Situation; 4] = [
    situation("ground.slab_made", "a chunk is cut into blocks"),
    situation(
        "ground.slab_of_before",
        "blocks of a slab from before the open are handed out",
    ),
    situation(
        "ground.block_freed_by_open",
        "an open frees a block that nothing leads to",
    ),
    situation(
        "ground.block_back",
        "an open finds that the last block a worker took or freed is free",
    ),
];

/// Of the directory of extendible hashing.
const EXTENDIBLE: [Situation; 7] = [
    situation(
        "extendible.not_doubled",
        "a directory twice as large finds no room",
    ),
    situation("extendible.doubled", "a split doubles the directory"),
    situation(
        "extendible.named_once",
        "a split changes one entry of the directory",
    ),
    situation(
        "extendible.named_often",
        "a split changes several entries of the directory",
    ),
    situation(
        "extendible.split_not_published",
        "an open finds a segment that no entry names yet",
    ),
    situation(
        "extendible.split_ended",
        "an open ends a split that was published",
    ),
    situation(
        "extendible.split_had_ended",
        "an open finds a split that has ended",
    ),
];

const CCEH: [Situation; 4] = [
    situation(
        "cceh.moved_key_replaced",
        "an insert takes the slot of a key that a split has moved",
    ),
    situation(
        "cceh.beyond_home_line",
        "an insert takes a slot beyond its home line",
    ),
    situation("cceh.split_moves_some", "a split moves pairs"),
    situation("cceh.split_moves_nothing", "a split moves nothing"),
];

const CLHT: [Situation; 8] = [
    situation(
        "clht.chained",
        "an insert chains a bucket to one of the array",
    ),
    situation(
        "clht.chained_again",
        "an insert chains a bucket to a chained one",
    ),
    situation("clht.replaced", "an array is replaced by a larger one"),
    situation(
        "clht.not_replaced",
        "an array is not replaced: there is no room",
    ),
    situation("clht.chained_by_copy", "a copy chains a bucket"),
    situation(
        "clht.young_freed_by_open",
        "an open frees an array that was being built",
    ),
    situation(
        "clht.old_freed_by_open",
        "an open frees an array that was replaced",
    ),
    situation(
        "clht.chain_in_doubt",
        "an open makes the chain of the bucket that a worker took last durable",
    ),
];

const LEVEL: [Situation; 11] = [
    situation(
        "level.update_moves",
        "an update writes the pair to another slot of its bucket",
    ),
    situation(
        "level.update_in_place",
        "an update replaces the value in a full bucket",
    ),
    situation(
        "level.moved_on_top",
        "an insert moves a pair of the top level to its other bucket there",
    ),
    situation(
        "level.moved_at_bottom",
        "an insert moves a pair of the bottom level to its other bucket there",
    ),
    situation(
        "level.moved_up",
        "an insert moves a pair of the bottom level to the top level",
    ),
    situation(
        "level.moved_in_stripe",
        "a pair is moved under the locks of the insert",
    ),
    situation(
        "level.moved_to_stripe",
        "a pair is moved under a third lock",
    ),
    situation("level.grown", "a level is added and the bottom one emptied"),
    situation("level.move_ended", "an open ends the move of a pair"),
    situation(
        "level.move_had_ended",
        "an open finds a move that has ended",
    ),
    situation(
        "level.move_not_begun",
        "an open finds a move that had not begun",
    ),
];

const CLEVEL: [Situation; 7] = [
    situation(
        "clevel.other_key_of_tag",
        "a lookup meets another key with the same tag",
    ),
    situation(
        "clevel.resize_ended",
        "an insert ends a resize that was cut short",
    ),
    situation("clevel.level_added", "a level is added"),
    situation("clevel.moved_up", "a pair of the bottom level is moved up"),
    situation(
        "clevel.bottom_dropped",
        "the bottom level is empty and freed",
    ),
    situation(
        "clevel.open_while_resizing",
        "an open finds a bottom level that is being emptied",
    ),
    situation(
        "clevel.moved_twice_at_open",
        "an open finds a pair in the bottom level and above",
    ),
];

/// Of a segment of Dash, whatever its parts. What only large buckets meet is listed by `dash-eh`, what only several stashes
/// meet by `dash-lh`.
const DASH: [Situation; 9] = [
    situation("dash.resident", "an insert puts a pair into its home"),
    situation("dash.guest", "an insert puts a pair into the next bucket"),
    situation(
        "dash.first_stash",
        "an insert puts a pair into the first bucket of the stash",
    ),
    situation(
        "dash.pair_beside_bits",
        "a pair lies in the line of its bits",
    ),
    situation(
        "dash.stashed_of_home",
        "the home names the bucket of the stash",
    ),
    situation(
        "dash.split_mended",
        "the first touch drops pairs that a split has copied",
    ),
    situation(
        "dash.brought_home_twice",
        "the first touch drops a pair of the stash that is at home, too",
    ),
    situation(
        "dash.copied_home",
        "a split copies a pair of the stash to where it belongs",
    ),
    situation(
        "dash.brought_home",
        "a split moves a pair of the stash that stays to where it belongs",
    ),
];

const DASH_EH: [Situation; 5] = [
    situation(
        "dash.resident_displaced",
        "an insert moves a resident to the next bucket",
    ),
    situation(
        "dash.guest_displaced",
        "an insert moves a guest to its home",
    ),
    situation(
        "dash.pair_apart",
        "a pair lies in another line than its bits",
    ),
    situation(
        "dash.displaced_twice",
        "the first touch drops one of two copies of a displaced pair",
    ),
    situation("dash.full", "an insert finds no slot in a segment"),
];

const DASH_LH: [Situation; 13] = [
    situation(
        "dash.other_stash",
        "an insert puts a pair into another bucket of the stash",
    ),
    situation(
        "dash.stashed_of_next",
        "the next bucket names the bucket of the stash",
    ),
    situation(
        "dash.stashed_counted",
        "the home counts a pair of the stash that it cannot name",
    ),
    situation(
        "dash.unstashed_of_next",
        "a pair of the stash that the next bucket named is removed",
    ),
    situation(
        "dash.unstashed_counted",
        "a pair of the stash that the home counted is removed",
    ),
    situation("dash-lh.chained", "a stash gets another bucket"),
    situation("dash-lh.array_made", "an array of segments is made"),
    situation("dash-lh.array_was_made", "a split finds its array made"),
    situation("dash-lh.not_split", "a split finds no room"),
    situation(
        "dash-lh.chain_left",
        "a split finds what a copy that was cut short has chained",
    ),
    situation(
        "dash-lh.round_begins",
        "the last segment of a round is split",
    ),
    situation(
        "dash-lh.chain_in_doubt",
        "an open makes the chain of the bucket that a worker took last durable",
    ),
    situation(
        "dash-lh.chain_of_the_next",
        "an open finds a bucket that a split has chained to a segment that is not the table's yet",
    ),
];

const SOFT: [Situation; 9] = [
    situation(
        "soft.more_nodes",
        "an insert takes a node that no worker had in reach",
    ),
    situation(
        "soft.full",
        "an insert finds no node and no room for an area",
    ),
    situation("soft.area_ahead", "an area is made while nodes are left"),
    situation("soft.second_area", "an area is made beside others"),
    situation("soft.bucket_split", "buckets are split"),
    situation(
        "soft.node_reused",
        "nodes that were unlinked are handed out again",
    ),
    situation("soft.torn", "an open finds a node that was being written"),
    situation("soft.live", "an open finds a live node"),
    situation("soft.many_in_area", "an open links many nodes of an area"),
];

/// What a table lists: its own situations, after those of what it is built on.
pub(crate) fn of(table: Table) -> Vec<Situation> {
    let parts: &[&[Situation]] = match table {
        Table::Cceh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &CCEH],
        Table::Clht => &[&RUNS, &BLOCKS, &CLHT],
        Table::Soft => &[&RUNS, &SOFT],
        Table::Level => &[&RUNS, &LEVEL],
        Table::Clevel => &[&RUNS, &BLOCKS, &CLEVEL],
        Table::DashEh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &DASH, &DASH_EH],
        Table::DashLh => &[&RUNS, &BLOCKS, &DASH, &DASH_LH],
    };
    parts.concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use farbank_check::faults::names_in;

    use super::{Table, of};

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = names_in(&sources, "situation!(", "situations.rs");
        found.sort_unstable();
        let listed: BTreeSet<&str> = Table::ALL
            .into_iter()
            .flat_map(of)
            .map(|situation| situation.name)
            .collect();
        assert_eq!(found, Vec::from_iter(listed));
    }

    #[test]
    fn the_documents_list_every_situation() {
        let testing = include_str!("../../../docs/testing.md");
        for situation in Table::ALL.into_iter().flat_map(of) {
            let row = format!("| `{}` | {} |", situation.name, situation.what);
            assert!(testing.contains(&row), "docs/testing.md lacks {row}");
        }
    }
}
