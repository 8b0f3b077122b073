//! Published values of the contest's engines, as far as they do not depend on a machine, and bounds for ours.
//!
//! Values are those of the final at full size. Sizes of records and tables follow from the contest's descriptions; the
//! authors of the engines reported all others. A value that must be near must lie within 5 %, or within half a
//! percentage point if it is a share.

/// Bound on a figure.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum FigureBound {
    /// No bound.
    #[default]
    Nothing,
    /// Within 5 % of this value.
    Near(f64),
    /// At most this distance (second) from this value (first).
    Within(f64, f64),
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
    /// No bound, but this value was published.
    Beside(f64),
}

/// Bounds on the figures of an engine.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PublishedFigures {
    /// Drains per set.
    pub fences_a_set: FigureBound,
    /// Bytes copied and stored per set.
    pub bytes_a_set: FigureBound,
    /// 64-byte lines written back per set.
    pub lines_a_set: FigureBound,
    /// 256-byte XPLines written back per set.
    pub xplines_a_set: FigureBound,
    /// Far-memory locations read per set.
    pub reads_a_set: FigureBound,
    /// Far-memory locations read per get.
    pub reads_a_get: FigureBound,
    /// Bytes of DRAM per key, without read caches and buffers.
    pub index_bytes_a_key: FigureBound,
    /// Percentage of gets that the read cache answers.
    pub cache_hits: FigureBound,
    /// Percentage of the set phase's updates that swap blocks.
    pub swaps_of_set_phase: FigureBound,
    /// The same for the get phase's updates.
    pub swaps_of_get_phase: FigureBound,
    /// Percentage of lookups that find their key at the first, second, third, and a later location.
    pub depth: [FigureBound; 4],
    /// Locations examined by a lookup that finds its key.
    pub probes_of_hit: FigureBound,
    /// Locations examined by a lookup that finds no key.
    pub probes_of_miss: FigureBound,
}

/// Bounds on our engine.
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

/// First place of the preliminary round: records of 100 bytes, 768 Mi of them in 256 Mi chains.
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

/// Engine of the slides: a header of 24 bytes, blocks of 32, lines of five keys that are 95.24 % full.
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

/// Common part of the two engines of the third place: chains, a read cache, spare blocks.
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

/// First version of the third place's engine: a block and a bucket are written, each followed by a drain.
pub(super) const V1: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Near(2.0),
    // A record with key of 233 bytes, or, for an update, a value of 201; and 8 bytes in the bucket.
    bytes_a_set: FigureBound::Near(227.6),
    lines_a_set: FigureBound::Near(5.4),
    xplines_a_set: FigureBound::Near(2.9),
    // For chains at full size. While they grow, they are shorter.
    reads_a_set: FigureBound::Beside(1.43),
    reads_a_get: FigureBound::Beside(0.03),
    index_bytes_a_key: FigureBound::Near(9.4),
    ..THIRD_PLACE
};

/// Last version of that engine: a header of 22 bytes, blocks of 16, nodes of 28 bytes for 225 Mi keys.
pub(super) const V2: PublishedFigures = PublishedFigures {
    fences_a_set: FigureBound::Near(1.0),
    bytes_a_set: FigureBound::Near(223.4),
    lines_a_set: FigureBound::Near(4.36),
    xplines_a_set: FigureBound::Near(1.84),
    reads_a_set: FigureBound::AtMost(0.01),
    reads_a_get: FigureBound::Beside(0.02),
    index_bytes_a_key: FigureBound::Near(32.7),
    ..THIRD_PLACE
};
