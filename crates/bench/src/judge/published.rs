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
