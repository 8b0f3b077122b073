//! What was published of the engines, as far as it does not depend on their machines.
//!
//! Figures are those of the final at full size: sizes of records and tables follow from the contest's
//! descriptions of them, the rest was reported by those who built the engines. A figure that is asked to be
//! near is asked to be within 5 %, or, where it is a share, within half a point of a hundred.

/// What is asked of a figure.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Want {
    /// Nothing.
    #[default]
    Nothing,
    /// It is within 5 % of this.
    Near(f64),
    /// It is as far from this as that, at most.
    Within(f64, f64),
    /// It is at most this.
    AtMost(f64),
    /// It is at least this.
    AtLeast(f64),
    /// Nothing; but this was published.
    Beside(f64),
}

/// What is asked of an engine's figures.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Published {
    /// Drains a set.
    pub fences_a_set: Want,
    /// Bytes copied in and stored, a set.
    pub bytes_a_set: Want,
    /// Lines of 64 bytes written back, a set.
    pub lines_a_set: Want,
    /// XPLines of 256 bytes written back, a set.
    pub xplines_a_set: Want,
    /// Places of far memory read by a set.
    pub reads_a_set: Want,
    /// Places of far memory read by a get.
    pub reads_a_get: Want,
    /// Bytes of DRAM a key besides read caches and buffers.
    pub index_bytes_a_key: Want,
    /// Percent of gets that the read cache answers.
    pub cache_hits: Want,
    /// Percent of the set phase's updates that swap.
    pub swaps_of_set_phase: Want,
    /// The same of the get phase's.
    pub swaps_of_get_phase: Want,
    /// Percent of lookups that found their key at the first, second, third place and further on.
    pub depth: [Want; 4],
    /// Places looked at by a lookup that finds its key.
    pub probes_of_hit: Want,
    /// By one that does not.
    pub probes_of_miss: Want,
}

/// What is asked of ours.
pub(super) const KV: Published = Published {
    fences_a_set: Want::AtMost(1.01),
    bytes_a_set: Want::Nothing,
    lines_a_set: Want::Nothing,
    xplines_a_set: Want::Nothing,
    reads_a_set: Want::Nothing,
    reads_a_get: Want::AtMost(1.05),
    index_bytes_a_key: Want::AtMost(16.0),
    cache_hits: Want::Nothing,
    swaps_of_set_phase: Want::Nothing,
    swaps_of_get_phase: Want::Nothing,
    depth: [Want::Nothing; 4],
    probes_of_hit: Want::Nothing,
    probes_of_miss: Want::Nothing,
};

/// The preliminary round's first place: records of 100 bytes, 768 Mi of them in 256 Mi chains.
pub(super) const PRELIM: Published = Published {
    fences_a_set: Want::Nothing,
    bytes_a_set: Want::Near(100.0),
    lines_a_set: Want::Beside(1.56),
    xplines_a_set: Want::Nothing,
    reads_a_set: Want::AtMost(0.0),
    reads_a_get: Want::Nothing,
    index_bytes_a_key: Want::Near(1.33),
    cache_hits: Want::Nothing,
    swaps_of_set_phase: Want::Nothing,
    swaps_of_get_phase: Want::Nothing,
    depth: [Want::Nothing; 4],
    probes_of_hit: Want::Near(2.5),
    probes_of_miss: Want::Nothing,
};

/// The slides' engine: a header of 24 bytes, blocks of 32, lines of five keys that are 95.24 % full.
pub(super) const KID: Published = Published {
    fences_a_set: Want::Near(1.0),
    bytes_a_set: Want::Near(225.4),
    lines_a_set: Want::Near(4.27),
    xplines_a_set: Want::Near(1.82),
    reads_a_set: Want::AtMost(0.01),
    reads_a_get: Want::Near(1.0),
    index_bytes_a_key: Want::Near(26.9),
    cache_hits: Want::Nothing,
    swaps_of_set_phase: Want::Nothing,
    swaps_of_get_phase: Want::Nothing,
    depth: [
        Want::Within(78.1, 0.5),
        Want::Within(8.1, 0.5),
        Want::Within(3.4, 0.5),
        Want::Within(10.4, 0.5),
    ],
    probes_of_hit: Want::Near(2.87),
    probes_of_miss: Want::Beside(44.4),
};

/// What the two engines of the third place have in common: chains, a read cache, spares.
const THIRD_PLACE: Published = Published {
    fences_a_set: Want::Nothing,
    bytes_a_set: Want::Nothing,
    lines_a_set: Want::Nothing,
    xplines_a_set: Want::Nothing,
    reads_a_set: Want::Nothing,
    reads_a_get: Want::Nothing,
    index_bytes_a_key: Want::Nothing,
    cache_hits: Want::Near(98.0),
    swaps_of_set_phase: Want::Near(66.7),
    swaps_of_get_phase: Want::Near(100.0),
    depth: [
        Want::Within(67.2, 0.5),
        Want::Within(24.6, 0.5),
        Want::Within(6.6, 0.5),
        Want::Within(1.6, 0.5),
    ],
    probes_of_hit: Want::Near(1.427),
    probes_of_miss: Want::Near(0.853),
};

/// The third place's first version: a block and a bucket, each waited for.
pub(super) const V1_AS_TOLD: Published = Published {
    fences_a_set: Want::Near(2.0),
    // A key record of 233 bytes, or, for an update, a value of 201; and 8.
    bytes_a_set: Want::Near(227.6),
    lines_a_set: Want::Near(5.4),
    xplines_a_set: Want::Near(2.9),
    // Chains of the full size; while they grow, fewer.
    reads_a_set: Want::Beside(1.43),
    reads_a_get: Want::Beside(0.03),
    index_bytes_a_key: Want::Near(9.4),
    ..THIRD_PLACE
};

/// Its last version: a header of 22 bytes, blocks of 16, nodes of 28 bytes for 225 Mi keys.
pub(super) const V2_AS_TOLD: Published = Published {
    fences_a_set: Want::Near(1.0),
    bytes_a_set: Want::Near(223.4),
    lines_a_set: Want::Near(4.36),
    xplines_a_set: Want::Near(1.84),
    reads_a_set: Want::AtMost(0.01),
    reads_a_get: Want::Beside(0.02),
    index_bytes_a_key: Want::Near(32.7),
    ..THIRD_PLACE
};
