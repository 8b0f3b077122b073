//! Tests of all tables. They are one program, because each program compiles every table again.
//!
//! * `contents`: reads and writes against a model. `refill`: tables that fill up. `chosen_keys`: keys that collide.
//! * `costs`: counted flushes, fences and reads. `clht`, `dash`, `soft`: figures of single tables.
//! * `crash`: the crash explorer. `damage`: damaged pools.
//! * `alike`: the files of each table's folder, and the wrapper for the reserved key.

mod alike;
mod chosen_keys;
mod clht;
mod contents;
mod costs;
mod crash;
mod damage;
mod dash;
mod refill;
mod soft;
