//! The one place atomics, locks and threads come from.
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
//! So the code that is checked is the code that runs, and this is the only file that knows who checks
//! it (with what follows from it in [`crate::table`]: a model checker's atomics are no zeroed memory).
//!
//! * **shuttle** runs one thread at a time and chooses, at every operation on these, who goes on. It
//!   takes all atomics for sequentially consistent. A `OnceLock` whose value is made without touching
//!   anything of this module is one step for it, so that std's will do. Nothing of this may be used
//!   outside of shuttle's executions: what only counts or records comes from `std` itself.
//! * **loom** tries every interleaving and every value that the memory model allows a load to return.
//!   It is for small models of single structures; `crates/pm/tests/loom.rs` has them.
//! * What synchronises with the kernel (the real media) uses `std`: no model checker can run that.

pub use std::sync::Arc;

/// Whether a model checker takes the place of `std`.
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

    /// The model checker itself, for whoever runs something under it.
    pub use shuttle;
}

#[cfg(loom)]
pub use self::loomed::*;
#[cfg(loom)]
mod loomed {
    pub use loom::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
    pub use loom::thread;

    use atomic::{AtomicBool, Ordering};

    /// `std::sync::OnceLock`, of parts that loom knows.
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
        /// The value, if it has been made.
        pub fn get(&self) -> Option<&T> {
            let made = self.made.load(Ordering::Acquire);
            made.then(|| self.value.get().expect("it was made"))
        }

        /// The value; made by `make` if it has not been.
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let _one = self.making.lock().expect("no holder panics");
            let value = self.value.get_or_init(make);
            self.made.store(true, Ordering::Release);
            value
        }
    }
}

/// Declares a structure of atomics that a [`crate::table::Table`] may hold: all zero at first.
#[cfg(not(any(shuttle, loom)))]
#[macro_export]
macro_rules! zeroed {
    ($($item:tt)*) => {
        #[derive(Debug, Default, ::zerocopy::FromZeros)]
        $($item)*
    };
}

/// Declares a structure of atomics that a [`crate::table::Table`] may hold: all zero at first.
#[cfg(any(shuttle, loom))]
#[macro_export]
macro_rules! zeroed {
    ($($item:tt)*) => {
        #[derive(Debug, Default)]
        $($item)*
    };
}
