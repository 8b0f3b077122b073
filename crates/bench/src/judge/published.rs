//! What was published of the engines, as far as it does not depend on their machines.
//!
//! Figures are those of the final at full size: sizes of records and tables follow from the contest's
//! descriptions of them, the rest was reported by those who built the engines. A figure that is asked to be
//! near is asked to be within 5 %, or, where it is a share, within half a point of a hundred.

/// What is asked of a figure.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum FigureBound {
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
pub struct PublishedFigures {
    /// Drains a set.
    pub fences_a_set: FigureBound,
    /// Bytes copied in and stored, a set.
    pub bytes_a_set: FigureBound,
    /// Lines of 64 bytes written back, a set.
    pub lines_a_set: FigureBound,
    /// XPLines of 256 bytes written back, a set.
    pub xplines_a_set: FigureBound,
    /// Places of far memory read by a set.
    pub reads_a_set: FigureBound,
    /// Places of far memory read by a get.
    pub reads_a_get: FigureBound,
    /// Bytes of DRAM a key besides read caches and buffers.
    pub index_bytes_a_key: FigureBound,
    /// Percent of gets that the read cache answers.
    pub cache_hits: FigureBound,
    /// Percent of the set phase's updates that swap.
    pub swaps_of_set_phase: FigureBound,
    /// The same of the get phase's.
    pub swaps_of_get_phase: FigureBound,
    /// Percent of lookups that found their key at the first, second, third place and further on.
    pub depth: [FigureBound; 4],
    /// Places looked at by a lookup that finds its key.
    pub probes_of_hit: FigureBound,
    /// By one that does not.
    pub probes_of_miss: FigureBound,
}

/// What is asked of ours.
pub(super) const KV: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::AtMost(1.01),
    bytes_a_set: FigureBound::Nothing,
    lines_a_set: FigureBound::Nothing,
    xplines_a_set: FigureBound::Nothing,
    reads_a_set: FigureBound::Nothing,
    reads_a_get: FigureBound::AtMost(1.05),
    index_bytes_a_key: FigureBound::AtMost(16.0),
    cache_hits: FigureBound::Nothing,
    swaps_of_set_phase: FigureBound::Nothing,
    swaps_of_get_phase: FigureBound::Nothing,
    depth: [FigureBound::Nothing; 4],
    probes_of_hit: FigureBound::Nothing,
    probes_of_miss: FigureBound::Nothing,
};

/// The preliminary round's first place: records of 100 bytes, 768 Mi of them in 256 Mi chains.
pub(super) const PRELIM: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Nothing,
    bytes_a_set: FigureBound::Near(100.0),
    lines_a_set: FigureBound::Beside(1.56),
    xplines_a_set: FigureBound::Nothing,
    reads_a_set: FigureBound::AtMost(0.0),
    reads_a_get: FigureBound::Nothing,
    index_bytes_a_key: FigureBound::Near(1.33),
    cache_hits: FigureBound::Nothing,
    swaps_of_set_phase: FigureBound::Nothing,
    swaps_of_get_phase: FigureBound::Nothing,
    depth: [FigureBound::Nothing; 4],
    probes_of_hit: FigureBound::Near(2.5),
    probes_of_miss: FigureBound::Nothing,
};

/// The slides' engine: a header of 24 bytes, blocks of 32, lines of five keys that are 95.24 % full.
pub(super) const KID: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Near(1.0),
    bytes_a_set: FigureBound::Near(225.4),
    lines_a_set: FigureBound::Near(4.27),
    xplines_a_set: FigureBound::Near(1.82),
    reads_a_set: FigureBound::AtMost(0.01),
    reads_a_get: FigureBound::Near(1.0),
    index_bytes_a_key: FigureBound::Near(26.9),
    cache_hits: FigureBound::Nothing,
    swaps_of_set_phase: FigureBound::Nothing,
    swaps_of_get_phase: FigureBound::Nothing,
    depth: [
        FigureBound::Within(78.1, 0.5),
        FigureBound::Within(8.1, 0.5),
        FigureBound::Within(3.4, 0.5),
        FigureBound::Within(10.4, 0.5),
    ],
    probes_of_hit: FigureBound::Near(2.87),
    probes_of_miss: FigureBound::Beside(44.4),
};

/// What the two engines of the third place have in common: chains, a read cache, spares.
const THIRD_PLACE: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Nothing,
    bytes_a_set: FigureBound::Nothing,
    lines_a_set: FigureBound::Nothing,
    xplines_a_set: FigureBound::Nothing,
    reads_a_set: FigureBound::Nothing,
    reads_a_get: FigureBound::Nothing,
    index_bytes_a_key: FigureBound::Nothing,
    cache_hits: FigureBound::Near(98.0),
    swaps_of_set_phase: FigureBound::Near(66.7),
    swaps_of_get_phase: FigureBound::Near(100.0),
    depth: [
        FigureBound::Within(67.2, 0.5),
        FigureBound::Within(24.6, 0.5),
        FigureBound::Within(6.6, 0.5),
        FigureBound::Within(1.6, 0.5),
    ],
    probes_of_hit: FigureBound::Near(1.427),
    probes_of_miss: FigureBound::Near(0.853),
};

/// The third place's first version: a block and a bucket, each waited for.
pub(super) const V1_AS_TOLD: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Near(2.0),
    // A key record of 233 bytes, or, for an update, a value of 201; and 8.
    bytes_a_set: FigureBound::Near(227.6),
    lines_a_set: FigureBound::Near(5.4),
    xplines_a_set: FigureBound::Near(2.9),
    // Chains of the full size; while they grow, fewer.
    reads_a_set: FigureBound::Beside(1.43),
    reads_a_get: FigureBound::Beside(0.03),
    index_bytes_a_key: FigureBound::Near(9.4),
    ..THIRD_PLACE
};

/// Its last version: a header of 22 bytes, blocks of 16, nodes of 28 bytes for 225 Mi keys.
pub(super) const V2_AS_TOLD: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Near(1.0),
    bytes_a_set: FigureBound::Near(223.4),
    lines_a_set: FigureBound::Near(4.36),
    xplines_a_set: FigureBound::Near(1.84),
    reads_a_set: FigureBound::AtMost(0.01),
    reads_a_get: FigureBound::Beside(0.02),
    index_bytes_a_key: FigureBound::Near(32.7),
    ..THIRD_PLACE
};
