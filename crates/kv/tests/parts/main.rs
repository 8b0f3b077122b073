//! Tests of parts of the engine. They are one program, because each program compiles the engine again.
//!
//! * `clock`: expiry when the machine's clock steps. `collision`: keys with equal hashes. `read_cache`: copies in DRAM.
//! * `format`: pools of earlier versions, and what a pool's bytes mean. `figures`: the statistics of a store.
//! * `slices`: cleaning in slices. `crash`: the crash explorer.

mod clock;
mod collision;
mod crash;
mod figures;
mod format;
mod read_cache;
mod slices;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../support/mod.rs"]
mod support;
