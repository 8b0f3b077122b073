//! The situations of the tables: rare branches that the crash explorer must reach.
//!
//! Each is one mark in the code, `situation!("cceh.x")`. `check situations` explores each table until it has reached
//! the situations of the table and of the parts it is built on.

use farbank_pm::situation::Situation;

use crate::registry::TableKind;

/// Situations of chunks, which every table uses.
const RUNS: [Situation; 2] = [
    Situation::new("ground.full", "an allocation finds no chunks"),
    Situation::new(
        "ground.run_freed_by_open",
        "an open frees a run that nothing leads to",
    ),
];

/// Situations of blocks, which are parts of chunks.
const BLOCKS: [Situation; 4] = [
    Situation::new("ground.slab_made", "a chunk is cut into blocks"),
    Situation::new(
        "ground.slab_of_before",
        "blocks of a slab from before the open are handed out",
    ),
    Situation::new(
        "ground.block_freed_by_open",
        "an open frees a block that nothing leads to",
    ),
    Situation::new(
        "ground.block_back",
        "an open finds that the last block a worker took or freed is free",
    ),
];

/// Situations of the directory of extendible hashing.
const EXTENDIBLE: [Situation; 7] = [
    Situation::new(
        "extendible.not_doubled",
        "a directory twice as large finds no room",
    ),
    Situation::new("extendible.doubled", "a split doubles the directory"),
    Situation::new(
        "extendible.named_once",
        "a split changes one entry of the directory",
    ),
    Situation::new(
        "extendible.named_often",
        "a split changes several entries of the directory",
    ),
    Situation::new(
        "extendible.split_not_published",
        "an open finds a segment that no entry names yet",
    ),
    Situation::new(
        "extendible.split_ended",
        "an open completes a published split",
    ),
    Situation::new(
        "extendible.split_had_ended",
        "an open finds a completed split",
    ),
];

const CCEH: [Situation; 4] = [
    Situation::new(
        "cceh.moved_key_replaced",
        "an insert takes the slot of a key that a split has moved",
    ),
    Situation::new(
        "cceh.beyond_home_line",
        "an insert takes a slot beyond its home line",
    ),
    Situation::new("cceh.split_moves_some", "a split moves pairs"),
    Situation::new("cceh.split_moves_nothing", "a split moves nothing"),
];

const CLHT: [Situation; 8] = [
    Situation::new(
        "clht.chained",
        "an insert chains a bucket to one of the array",
    ),
    Situation::new(
        "clht.chained_again",
        "an insert chains a bucket to a chained one",
    ),
    Situation::new("clht.replaced", "an array is replaced by a larger one"),
    Situation::new(
        "clht.not_replaced",
        "an array is not replaced: there is no room",
    ),
    Situation::new("clht.chained_by_copy", "a copy chains a bucket"),
    Situation::new(
        "clht.young_freed_by_open",
        "an open frees an array that a resize was building",
    ),
    Situation::new(
        "clht.old_freed_by_open",
        "an open frees an array that was replaced",
    ),
    Situation::new(
        "clht.chain_in_doubt",
        "an open persists the chain of the bucket that a worker allocated last",
    ),
];

const LEVEL: [Situation; 11] = [
    Situation::new(
        "level.update_moves",
        "an update writes the pair to another slot of its bucket",
    ),
    Situation::new(
        "level.update_in_place",
        "an update replaces the value in a full bucket",
    ),
    Situation::new(
        "level.moved_on_top",
        "an insert moves a pair of the top level to its other bucket there",
    ),
    Situation::new(
        "level.moved_at_bottom",
        "an insert moves a pair of the bottom level to its other bucket there",
    ),
    Situation::new(
        "level.moved_up",
        "an insert moves a pair of the bottom level to the top level",
    ),
    Situation::new(
        "level.moved_in_stripe",
        "a pair is moved under the locks of the insert",
    ),
    Situation::new(
        "level.moved_to_stripe",
        "a pair is moved under a third lock",
    ),
    Situation::new("level.grown", "a level is added and the bottom one emptied"),
    Situation::new("level.move_ended", "an open completes the move of a pair"),
    Situation::new("level.move_had_ended", "an open finds a completed move"),
    Situation::new(
        "level.move_not_begun",
        "an open finds a move that had not begun",
    ),
];

const CLEVEL: [Situation; 7] = [
    Situation::new(
        "clevel.other_key_of_tag",
        "a lookup meets another key with the same tag",
    ),
    Situation::new(
        "clevel.resize_ended",
        "an insert completes an interrupted resize",
    ),
    Situation::new("clevel.level_added", "a level is added"),
    Situation::new("clevel.moved_up", "a pair of the bottom level is moved up"),
    Situation::new(
        "clevel.bottom_dropped",
        "the bottom level is empty and freed",
    ),
    Situation::new(
        "clevel.open_while_resizing",
        "an open finds a bottom level that is being emptied",
    ),
    Situation::new(
        "clevel.moved_twice_at_open",
        "an open finds a pair in the bottom level and above",
    ),
];

/// Situations of a segment of Dash. Those that need large buckets are listed under `dash-eh`, those that need several
/// stash buckets under `dash-lh`.
const DASH: [Situation; 9] = [
    Situation::new("dash.resident", "an insert puts a pair into its home"),
    Situation::new("dash.guest", "an insert puts a pair into the next bucket"),
    Situation::new(
        "dash.first_stash",
        "an insert puts a pair into the first bucket of the stash",
    ),
    Situation::new(
        "dash.pair_beside_bits",
        "a pair shares the line of its bits",
    ),
    Situation::new(
        "dash.stashed_of_home",
        "the home bucket's word gets an entry for a stashed pair",
    ),
    Situation::new(
        "dash.split_mended",
        "the first access drops pairs that a split has copied",
    ),
    Situation::new(
        "dash.brought_home_twice",
        "the first access drops a stashed pair that is also in its home or next bucket",
    ),
    Situation::new(
        "dash.copied_home",
        "a split copies a stashed pair to its home or next bucket",
    ),
    Situation::new(
        "dash.brought_home",
        "a split moves a stashed pair that stays to its home or next bucket",
    ),
];

const DASH_EH: [Situation; 5] = [
    Situation::new(
        "dash.resident_displaced",
        "an insert moves a resident to the next bucket",
    ),
    Situation::new(
        "dash.guest_displaced",
        "an insert moves a guest to its home",
    ),
    Situation::new(
        "dash.pair_apart",
        "a pair lies in another line than its bits",
    ),
    Situation::new(
        "dash.displaced_twice",
        "the first access drops one of two copies of a displaced pair",
    ),
    Situation::new("dash.full", "an insert finds no slot in a segment"),
];

const DASH_LH: [Situation; 13] = [
    Situation::new(
        "dash.other_stash",
        "an insert puts a pair into another bucket of the stash",
    ),
    Situation::new(
        "dash.stashed_of_next",
        "the next bucket's word gets an entry for a stashed pair",
    ),
    Situation::new(
        "dash.stashed_counted",
        "the home bucket's word counts a stashed pair without an entry",
    ),
    Situation::new(
        "dash.unstashed_of_next",
        "a stashed pair with an entry in the next bucket's word is removed",
    ),
    Situation::new(
        "dash.unstashed_counted",
        "a stashed pair without an entry is removed",
    ),
    Situation::new("dash-lh.chained", "a stash gets another bucket"),
    Situation::new("dash-lh.array_made", "an array of segments is created"),
    Situation::new(
        "dash-lh.array_was_made",
        "a split finds its array already created",
    ),
    Situation::new("dash-lh.not_split", "a split finds no room"),
    Situation::new(
        "dash-lh.chain_left",
        "a split finds buckets that an interrupted copy has chained",
    ),
    Situation::new(
        "dash-lh.round_begins",
        "the last segment of a round is split",
    ),
    Situation::new(
        "dash-lh.chain_in_doubt",
        "an open persists the chain of the bucket that a worker allocated last",
    ),
    Situation::new(
        "dash-lh.chain_of_the_next",
        "an open finds a bucket chained to a segment that an interrupted split was creating",
    ),
];

const SOFT: [Situation; 9] = [
    Situation::new(
        "soft.more_nodes",
        "an insert finds no free node in its cache and the common list",
    ),
    Situation::new(
        "soft.full",
        "an insert finds no node and no room for an area",
    ),
    Situation::new("soft.area_ahead", "an area is made while nodes are left"),
    Situation::new("soft.second_area", "an area is made beside others"),
    Situation::new("soft.bucket_split", "buckets are split"),
    Situation::new(
        "soft.node_reused",
        "nodes that were unlinked are handed out again",
    ),
    Situation::new("soft.torn", "an open finds a node that was being written"),
    Situation::new("soft.live", "an open finds a live node"),
    Situation::new("soft.many_in_area", "an open links many nodes of an area"),
];

/// Returns the situations of a table, preceded by those of the parts it is built on.
pub(crate) fn of(table: TableKind) -> Vec<Situation> {
    let parts: &[&[Situation]] = match table {
        TableKind::Cceh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &CCEH],
        TableKind::Clht => &[&RUNS, &BLOCKS, &CLHT],
        TableKind::Soft => &[&RUNS, &SOFT],
        TableKind::Level => &[&RUNS, &LEVEL],
        TableKind::Clevel => &[&RUNS, &BLOCKS, &CLEVEL],
        TableKind::DashEh => &[&RUNS, &BLOCKS, &EXTENDIBLE, &DASH, &DASH_EH],
        TableKind::DashLh => &[&RUNS, &BLOCKS, &DASH, &DASH_LH],
    };
    parts.concat()
}

#[cfg(test)]
mod tests {
    use farbank_check::marks::{assert_documented, assert_marked};

    use super::{Situation, TableKind, of};

    /// Returns the situations of all tables, each once.
    fn all() -> Vec<Situation> {
        let mut all: Vec<Situation> = TableKind::ALL.into_iter().flat_map(of).collect();
        all.sort_unstable_by_key(|situation| situation.name);
        all.dedup();
        all
    }

    #[test]
    fn every_situation_is_listed_and_every_mark_is_in_one_place() {
        assert_marked(env!("CARGO_MANIFEST_DIR"), &all());
    }

    #[test]
    fn the_documents_list_every_situation() {
        assert_documented(&all());
    }
}
