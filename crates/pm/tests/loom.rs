//! Models of `EpochTable` and `GrowTable` under loom: every interleaving of a few threads, up to a bound on
//! preemptions, and every value that the memory model allows a load to return.
//!
//! ```text
//!   reader   pin ── load the name ── read the named place ── unpin
//!   reuser   name another place ── retire ── oldest() > e ?  ── overwrite the old place
//! ```
//!
//! Loom watches each place: an unordered read and write of it fails the
//! model, whatever the values are. So does a reader that finds its place reused.
//!
//! Each model that uses `EpochTable` has controls: copies of the protocol with one ordering weakened, which
//! loom must refute. The unweakened copy must hold, so that each refutation is due to the weakening.
//!
//! # What loom cannot express
//! * Loom treats SeqCst accesses as AcqRel, which is weaker. SeqCst fences order each other, and
//!   everything before a fence with everything after a later one. `EpochTable` relies only on its fences.
//! * A load never returns a value that is stored later in the interleaving (load buffering).
//! * `Arc` is that of std, so the models do not cover when a dropped slot is removed from the table.
//! * A table's `OnceLock` is the replacement in `pm::sync`, not that of std, and its chunks are boxes.

#![cfg(loom)]

use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed as Plainly};
use std::time::Instant;

use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU64, AtomicUsize, fence};
use farbank_pm::sync::{Arc, Mutex, atomic, lock, thread};
use loom::cell::UnsafeCell;

/// Explores `model` and prints the number of executions.
fn explore(claim: &str, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    let executions = Arc::new(Plain::new(0));
    let counted = Arc::clone(&executions);
    let start = Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Plainly);
        model();
    });
    let (executions, seconds) = (executions.load(Plainly), start.elapsed().as_secs_f64());
    println!("{claim}: {executions} executions, {seconds:.2} s");
}

/// An offset in far memory, as an object that loom watches.
struct Place {
    accesses: UnsafeCell<()>,
    used_again: AtomicU64,
}

// SAFETY: the cell holds no data, and loom fails the model on unordered accesses to it.
unsafe impl Sync for Place {}

impl Default for Place {
    fn default() -> Place {
        Place {
            accesses: UnsafeCell::new(()),
            used_again: AtomicU64::new(0),
        }
    }
}

impl Place {
    fn read(&self) {
        self.accesses.with(|_| ());
        assert_eq!(
            self.used_again.load(Relaxed),
            0,
            "a place was reused while a reader was pinned"
        );
    }

    fn reuse(&self) {
        self.accesses.with_mut(|_| ());
        self.used_again.store(1, Relaxed);
    }
}

/// Two places, and the name of one of them: like an index entry that refers to one of two records.
#[derive(Default)]
struct NamedPlace {
    epochs: EpochTable,
    name: AtomicUsize,
    places: [Place; 2],
}

impl NamedPlace {
    /// Reads the named place, as a pinned reader does.
    fn follow(&self) {
        self.places[self.name.load(Acquire)].read();
    }

    /// Unlinks place 0 and retires it. Returns its epoch.
    fn unlink(&self) -> u64 {
        self.name.store(1, Release);
        self.epochs.retire()
    }

    fn reuse_if_free(&self, retired: u64) {
        if self.epochs.oldest_pinned() > retired {
            self.places[0].reuse();
        }
    }

    fn read_once(&self, slot: &EpochSlot) {
        self.epochs.pin(slot);
        self.follow();
        slot.unpin();
    }
}

/// Runs `reader` in its own thread, with its own slot.
fn reading(
    named: &Arc<NamedPlace>,
    reader: impl FnOnce(&NamedPlace, &EpochSlot) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (named, slot) = (Arc::clone(named), named.epochs.slot());
    thread::spawn(move || reader(&named, &slot))
}

/// Explores one reader against one thread that unlinks the place and reuses it if it is free.
fn one_against(claim: &str, reader: fn(&NamedPlace, &EpochSlot)) {
    explore(claim, move || {
        let named = Arc::new(NamedPlace::default());
        let reader = reading(&named, reader);
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader
            .join()
            .expect("the reader reads a place that was not reused");
    });
}

#[test]
fn a_place_that_a_pinned_reader_follows_is_not_reused() {
    one_against("one reader", NamedPlace::read_once);
}

#[test]
fn a_place_that_a_reader_follows_under_its_second_pin_is_not_reused() {
    one_against("unpinned and pinned again", |named, slot| {
        named.read_once(slot);
        named.read_once(slot);
    });
}

#[test]
fn a_repeated_pin_protects_every_place_followed_under_it() {
    one_against("pinned again without unpinning", |named, slot| {
        named.epochs.pin(slot);
        named.follow();
        named.read_once(slot);
    });
}

#[test]
fn a_place_is_not_reused_before_the_slowest_of_two_readers_unpins() {
    explore("two readers", || {
        let named = Arc::new(NamedPlace::default());
        let readers = [0, 1].map(|_| reading(&named, NamedPlace::read_once));
        let retired = named.unlink();
        named.reuse_if_free(retired);
        for reader in readers {
            reader
                .join()
                .expect("the reader reads a place that was not reused");
        }
    });
}

#[test]
fn a_slot_created_during_retirement_protects_its_reader() {
    explore("a slot created during retirement", || {
        let named = Arc::new(NamedPlace::default());
        let theirs = Arc::clone(&named);
        let reader = thread::spawn(move || theirs.read_once(&theirs.epochs.slot()));
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader
            .join()
            .expect("the reader reads a place that was not reused");
    });
}

#[test]
fn a_slot_dropped_while_pinned_protects_its_reader_until_the_drop_and_no_longer() {
    explore("dropped while pinned", || {
        let named = Arc::new(NamedPlace::default());
        let (theirs, slot) = (Arc::clone(&named), named.epochs.slot());
        let reader = thread::spawn(move || {
            theirs.epochs.pin(&slot);
            theirs.follow();
            drop(slot);
        });
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader
            .join()
            .expect("the reader reads a place that was not reused");
        assert!(
            named.epochs.oldest_pinned() > retired,
            "the drop ended the pin"
        );
    });
}

#[test]
fn one_thread_may_reuse_what_another_retired() {
    explore("retired by one thread, reused by another", || {
        let named = Arc::new(NamedPlace::default());
        let retired = Arc::new(Mutex::new(None));
        let reader = reading(&named, NamedPlace::read_once);
        let (theirs, list) = (Arc::clone(&named), Arc::clone(&retired));
        let writer = thread::spawn(move || {
            let epoch = theirs.unlink();
            *lock(&list) = Some(epoch);
        });
        let found = *lock(&retired);
        if let Some(epoch) = found {
            named.reuse_if_free(epoch);
        }
        writer.join().expect("the writer only unlinks");
        reader
            .join()
            .expect("the reader reads a place that was not reused");
    });
}

/// Copy of the protocol of `EpochTable` for one reader, in which each ordering can be weakened.
struct EpochTableCopy {
    current: AtomicU64,
    pinned: AtomicU64,
    name: AtomicUsize,
    places: [Place; 2],
    orders: Orders,
}

/// Orderings and fences of the copy.
#[derive(Clone, Copy)]
struct Orders {
    reader_fences: bool,
    reuser_fences: bool,
    pin: atomic::Ordering,
    unpin: atomic::Ordering,
    retire: atomic::Ordering,
    look: atomic::Ordering,
}

/// The orderings of `EpochTable`, as far as loom can express them.
const SHIPPED: Orders = Orders {
    reader_fences: true,
    reuser_fences: true,
    pin: Release,
    unpin: Release,
    retire: AcqRel,
    look: Acquire,
};

fn fence_if(wanted: bool) {
    if wanted {
        fence(atomic::Ordering::SeqCst);
    }
}

impl EpochTableCopy {
    fn read_once(&self) {
        self.pinned
            .store(self.current.load(Relaxed), self.orders.pin);
        fence_if(self.orders.reader_fences);
        self.places[self.name.load(Acquire)].read();
        self.pinned.store(u64::MAX, self.orders.unpin);
    }

    fn unlink_and_reuse(&self) {
        self.name.store(1, Release);
        fence_if(self.orders.reuser_fences);
        let retired = self.current.fetch_add(1, self.orders.retire);
        fence_if(self.orders.reuser_fences);
        let current = self.current.load(self.orders.look);
        if self.pinned.load(self.orders.look).min(current) > retired {
            self.places[0].reuse();
        }
    }
}

/// Explores the copy with `orders`: a reader that pins `pins` times, against a thread that unlinks and reuses.
fn copied(claim: &str, orders: Orders, pins: usize) {
    explore(claim, move || {
        let copied = Arc::new(EpochTableCopy {
            current: AtomicU64::new(1),
            pinned: AtomicU64::new(u64::MAX),
            name: AtomicUsize::new(0),
            places: Default::default(),
            orders,
        });
        let theirs = Arc::clone(&copied);
        let reader = thread::spawn(move || (0..pins).for_each(|_| theirs.read_once()));
        copied.unlink_and_reuse();
        reader
            .join()
            .expect("the reader reads a place that was not reused");
    });
}

#[test]
fn control_the_unweakened_copy_holds() {
    copied("control: the copy", SHIPPED, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_pin_without_its_fence_is_refuted() {
    let reader_fences = false;
    copied(
        "no fence",
        Orders {
            reader_fences,
            ..SHIPPED
        },
        1,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_retirement_without_fences_is_refuted() {
    let reuser_fences = false;
    copied(
        "no fences",
        Orders {
            reuser_fences,
            ..SHIPPED
        },
        1,
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_relaxed_unpin_is_refuted() {
    let unpin = Relaxed;
    copied("unpin", Orders { unpin, ..SHIPPED }, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_relaxed_second_pin_is_refuted() {
    let pin = Relaxed;
    copied("pin", Orders { pin, ..SHIPPED }, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_relaxed_loads_of_pins_are_refuted() {
    let look = Relaxed;
    copied("look", Orders { look, ..SHIPPED }, 1);
}

/// A table element whose initialisation loom watches.
#[derive(Default)]
struct Element {
    place: Place,
    value: AtomicU64,
}

#[test]
fn elements_below_a_published_length_are_initialised() {
    explore("growth under a reader", || {
        let table = Arc::new(GrowTable::<Element>::new(1));
        let len = Arc::new(AtomicUsize::new(0));
        let (theirs, published) = (Arc::clone(&table), Arc::clone(&len));
        let grower = thread::spawn(move || {
            for n in 1..=3 {
                theirs.reserve(n);
                theirs.get(n - 1).value.store(n as u64, Relaxed);
                published.store(n, Release);
            }
        });
        for n in 1..=len.load(Acquire) {
            table.get(n - 1).place.read();
            assert_eq!(table.get(n - 1).value.load(Relaxed), n as u64);
        }
        grower.join().expect("it grows");
    });
}

#[test]
fn an_element_returned_by_try_get_is_initialised() {
    explore("try_get during growth", || {
        let table = Arc::new(GrowTable::<Element>::new(1));
        let theirs = Arc::clone(&table);
        let grower = thread::spawn(move || theirs.reserve(3));
        for n in 0..3 {
            if let Some(element) = table.try_get(n) {
                element.place.read();
            }
        }
        grower.join().expect("it grows");
    });
}

#[test]
fn two_threads_that_grow_at_once_see_the_same_elements() {
    explore("two growers", || {
        let table = Arc::new(GrowTable::<Element>::new(1));
        let growers = [2, 3].map(|len| {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                table.reserve(len);
                table.get(1).place.read();
                table.get(1).value.fetch_add(len as u64, Relaxed);
            })
        });
        for grower in growers {
            grower.join().expect("it grows");
        }
        assert_eq!(
            table.get(1).value.load(Relaxed),
            5,
            "an element was replaced"
        );
        assert!(table.try_get(2).is_some() && table.try_get(4).is_none());
    });
}

/// Explores a copy of the publication of a chunk, with the ordering `publish`.
fn chunk_published(claim: &str, publish: atomic::Ordering) {
    explore(claim, move || {
        let made = Arc::new(AtomicUsize::new(0));
        let chunk = Arc::new(std::sync::OnceLock::new());
        let (theirs, flag) = (Arc::clone(&chunk), Arc::clone(&made));
        let grower = thread::spawn(move || {
            theirs.get_or_init(Element::default);
            flag.store(1, publish);
        });
        if made.load(Acquire) == 1 {
            chunk.get().expect("the chunk is initialised").place.read();
        }
        grower.join().expect("it grows");
    });
}

#[test]
fn control_a_chunk_published_with_release_holds() {
    chunk_published("control: a chunk", Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_chunk_published_relaxed_is_refuted() {
    chunk_published("relaxed", Relaxed);
}
