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
//!
//! # A panic of a lock's holder
//! There are two kinds of locks:
//! * A lock whose holder panicked can be taken again ([`lock`], [`ignore_poison`]): one failed operation does not end
//!   every later one. So a holder leaves what the lock guards consistent before each step that can panic.
//! * A lock whose holder never panics ([`unpoisoned`]). If a bug makes it panic, the guarded data may be inconsistent,
//!   so every thread that takes the lock later panics, too.
//!
//! Data that is shared with a medium needs more: a failed write poisons the medium ([`crate::Poisoned`]), which refuses
//! later writes.

use std::sync::{LockResult, PoisonError};

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
            let _one = super::lock(&self.making);
            let value = self.value.get_or_init(make);
            self.made.store(true, Ordering::Release);
            value
        }
    }
}

/// Locks `mutex`, also if an earlier holder panicked. See the module documentation.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Returns the guard, also if an earlier holder of the lock panicked: for waits on a [`Condvar`], for a [`RwLock`], and
/// for the locks of `std` where they are not those of this module. See the module documentation.
#[inline]
pub fn ignore_poison<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Returns the guard of a lock whose holder never panics: of [`Mutex::lock`], of a wait on a [`Condvar`], of a
/// [`RwLock`]; or the value of such a lock. See the module documentation.
///
/// # Panics
/// An earlier holder of the lock panicked.
#[inline]
#[track_caller]
pub fn unpoisoned<G>(locked: LockResult<G>) -> G {
    match locked {
        Ok(guard) => guard,
        Err(_) => panic!("an earlier holder of this lock panicked"),
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

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_can_be_taken_after_its_holder_panicked() {
        let mutex = Mutex::new(1);
        let caught = std::panic::catch_unwind(|| {
            *lock(&mutex) = 2;
            let _held = lock(&mutex);
            panic!("a panic of the holder");
        });
        assert!(caught.is_err() && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }

    #[test]
    fn a_lock_whose_holder_never_panics_is_lost_after_a_panic() {
        let mutex = Mutex::new(1);
        *unpoisoned(mutex.lock()) = 2;
        let holder = std::panic::catch_unwind(|| {
            let _held = unpoisoned(mutex.lock());
            panic!("a panic of the holder");
        });
        let later = std::panic::catch_unwind(|| *unpoisoned(mutex.lock()));
        assert!(holder.is_err() && later.is_err());
    }
}
