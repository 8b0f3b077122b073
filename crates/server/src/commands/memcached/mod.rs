//! memcached's commands: the classic and the meta commands of its version 1.6.
//!
//! ```text
//!   input ─▶ pipeline: a window of requests ─▶ prefetch ─▶ text | meta | stats ─▶ output
//!                                                             │
//!                                                             ▼
//!                                                           items
//! ```
//!
//! Keys are in database 0, so Redis clients see the same values. The store also keeps an item's flags, expiry, version
//! (the source of its `cas`), and the marks *stale* and *won* in the high bits of the kind
//! ([`KIND_STALE`](farbank_store::KIND_STALE)). Only the time of a key's last use is in DRAM (`recency`).
//!
//! * [`pipeline`]: reads requests from the input and selects the function of each. A new command is a line there.
//! * [`text`]: the classic commands. [`meta`]: the two-letter meta commands. Both write through [`items`].
//! * [`stats`]: the `stats` command.
//! * [`context`]: what a command works with. [`state`]: what all connections share.
//! * [`credentials`]: names and passwords of clients, if the server has an auth file.
//! * [`recency`]: last uses of keys. [`prefixes`]: counts for `stats detail`.
//!
//! # Invariants
//! Those of `commands::execute`: a write's reply is behind the mark whether or not it changed anything (SRV-CMD-1); a
//! read sees undurable writes only if its reply is behind the mark (SRV-CMD-2). A write without a reply also sets the
//! mark, because later replies may reveal it.

mod context;
pub(crate) mod credentials;
mod items;
mod meta;
pub(crate) mod pipeline;
mod prefixes;
mod recency;
pub(crate) mod state;
mod stats;
mod text;
