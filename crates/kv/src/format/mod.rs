//! Data on the medium: records, segments and their maps, and the engine's words in the superblock. `docs/format.md`
//! describes it.

pub(crate) mod checkpoint;
pub(crate) mod geometry;
pub(crate) mod pool_root;
pub(crate) mod record;
pub(crate) mod segment;
pub(crate) mod segment_map;
