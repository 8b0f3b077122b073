//! Tests of the cache. They are one program, because each program compiles the cache again.
//!
//! * `items`: items, areas, eviction. `batch`: batches of writes. `clock`: expiry. `growth`: pools that may grow.
//! * `s3_fifo`: the other order of eviction. `crash`: the crash explorer. `failing_syncs`: a disk whose syncs fail.

mod batch;
mod clock;
mod crash;
mod failing_syncs;
mod growth;
mod items;
mod s3_fifo;
mod support;
