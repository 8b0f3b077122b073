//! The atomics, locks and threads of all crates: those of `std`, or those of a model checker.
//!
//! ```text
//!                     ordinary build     --cfg shuttle          --cfg loom
//!   atomics, fences   std                shuttle                loom
//!   Mutex, Condvar    std                shuttle                loom
//!   threads, yields   std                shuttle                loom
//!   OnceLock          std                std: see below         made of loom's parts
//!   Arc               std                std                    std
//! ```
//!
//! So the code that is checked is the code that runs. Only this file depends on the model checker, and
//! [`crate::grow_table`], because a model checker's atomics cannot be zeroed memory.
//!
//! * **shuttle** runs one thread at a time. At every operation on these types it chooses the thread that
//!   continues. It treats all atomics as sequentially consistent. A `OnceLock` whose initialiser uses
//!   nothing of this module is a single step for it, so std's suffices. These types must not be used
//!   outside of shuttle's executions, so pure counters and recorders use `std` directly.
//! * **loom** tries every interleaving and every value that the memory model allows a load to return.
//!   It is for small models of single structures, which are in `crates/pm/tests/loom.rs`.
//! * Code that synchronises with the kernel (the real media) uses `std`: no model checker can run it.

pub use std::sync::Arc;

/// Whether a model checker replaces `std`.
pub const CHECKED: bool = cfg!(any(shuttle, loom));

#[cfg(not(any(shuttle, loom)))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, atomic},
    thread,
};

#[cfg(shuttle)]
pub use self::shuttled::*;
#[cfg(shuttle)]
mod shuttled {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
    pub use shuttle::thread;
    pub use std::sync::OnceLock;

    /// The model checker itself, for code that starts executions under it.
    pub use shuttle;
}

#[cfg(loom)]
pub use self::loomed::*;
#[cfg(loom)]
mod loomed {
    pub use loom::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
    pub use loom::thread;

    use atomic::{AtomicBool, Ordering};

    /// `std::sync::OnceLock`, built from parts that loom checks.
    pub struct OnceLock<T> {
        made: AtomicBool,
        making: Mutex<()>,
        value: std::sync::OnceLock<T>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> OnceLock<T> {
            OnceLock {
                made: AtomicBool::new(false),
                making: Mutex::new(()),
                value: std::sync::OnceLock::new(),
            }
        }
    }

    impl<T> OnceLock<T> {
        /// Returns the value if it is initialised.
        pub fn get(&self) -> Option<&T> {
            let made = self.made.load(Ordering::Acquire);
            made.then(|| self.value.get().expect("made was set"))
        }

        /// Returns the value, after initialising it with `make` if necessary.
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let _one = self.making.lock().expect("no holder panics");
            let value = self.value.get_or_init(make);
            self.made.store(true, Ordering::Release);
            value
        }
    }
}

/// Declares a structure of atomics that a [`GrowTable`](crate::grow_table::GrowTable) can hold: it starts all zero.
#[cfg(not(any(shuttle, loom)))]
#[macro_export]
macro_rules! zeroed {
    ($($item:tt)*) => {
        #[derive(Debug, Default, ::zerocopy::FromZeros)]
        $($item)*
    };
}

/// Declares a structure of atomics that a [`GrowTable`](crate::grow_table::GrowTable) can hold: it starts all zero.
#[cfg(any(shuttle, loom))]
#[macro_export]
macro_rules! zeroed {
    ($($item:tt)*) => {
        #[derive(Debug, Default)]
        $($item)*
    };
}
