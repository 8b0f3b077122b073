//! Epochs and tables under loom: every interleaving of a few threads, as far as a bound on preemptions
//! goes, and every value that the memory model allows a load to return.
//!
//! ```text
//!   reader   pin ── follow what is named ── read the place ── unpin
//!   reuser   name another place ── retire ── oldest() > e ?  ── write over the place
//! ```
//!
//! A place is one that loom watches: reading and writing it with no order between the two ends the
//! model, whatever the values were. So does a reader that finds its place used again.
//!
//! Each model that uses `Epochs` has controls: a copy of the protocol with one ordering weakened, which
//! loom must refute. The copy itself must hold, so that what is refuted is the weakening.
//!
//! # What loom cannot express
//! * SeqCst accesses are AcqRel to loom, weaker than they are; SeqCst fences order each other, and
//!   everything before one with everything after a later one. `Epochs` rests on its fences alone.
//! * A load never returns what is stored later in the interleaving (load buffering).
//! * `Arc` is std's: that a dropped slot is forgotten in time is not modelled.
//! * A table's `OnceLock` is the stand-in of `pm::sync`, not std's, and its chunks are boxes.

#![cfg(loom)]

use std::sync::atomic::{AtomicUsize as Plain, Ordering::Relaxed as Plainly};
use std::time::Instant;

use farbank_pm::epoch::{EpochSlot, EpochTable};
use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use farbank_pm::sync::atomic::{AtomicU64, AtomicUsize, fence};
use farbank_pm::sync::{Arc, Mutex, atomic, thread};
use loom::cell::UnsafeCell;

/// Explores `model` and says how many executions there were.
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

/// Something in far memory, as loom sees it.
struct Place {
    accesses: UnsafeCell<()>,
    used_again: AtomicU64,
}

// SAFETY: the cell holds nothing; loom objects to accesses that are not ordered.
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
            "a pinned place is not reused"
        );
    }

    fn reuse(&self) {
        self.accesses.with_mut(|_| ());
        self.used_again.store(1, Relaxed);
    }
}

/// Two places, one of them named: what an index entry is to records.
#[derive(Default)]
struct Named {
    epochs: Epochs,
    name: AtomicUsize,
    places: [Place; 2],
}

impl Named {
    /// A pinned reader's look.
    fn follow(&self) {
        self.places[self.name.load(Acquire)].read();
    }

    /// Unlinks place 0; the epoch under which it is retired.
    fn unlink(&self) -> u64 {
        self.name.store(1, Release);
        self.epochs.retire()
    }

    fn reuse_if_free(&self, retired: u64) {
        if self.epochs.oldest() > retired {
            self.places[0].reuse();
        }
    }

    fn read_once(&self, slot: &Slot) {
        self.epochs.pin(slot);
        self.follow();
        slot.unpin();
    }
}

/// Runs `reader` in a thread of its own with a slot.
fn reading(
    named: &Arc<Named>,
    reader: impl FnOnce(&Named, &Slot) + Send + 'static,
) -> thread::JoinHandle<()> {
    let (named, slot) = (Arc::clone(named), named.epochs.slot());
    thread::spawn(move || reader(&named, &slot))
}

/// One reader against one who unlinks the place and uses it again if it is free.
fn one_against(claim: &str, reader: fn(&Named, &Slot)) {
    explore(claim, move || {
        let named = Arc::new(Named::default());
        let reader = reading(&named, reader);
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader.join().expect("the reader finds what it followed");
    });
}

#[test]
fn what_a_pinned_reader_follows_is_not_reused() {
    one_against("one reader", Named::read_once);
}

#[test]
fn nor_is_what_it_follows_under_its_next_pin() {
    one_against("let go and pinned again", |named, slot| {
        named.read_once(slot);
        named.read_once(slot);
    });
}

#[test]
fn a_pin_that_moves_on_lets_go_of_nothing_too_early() {
    one_against("pinned again without letting go", |named, slot| {
        named.epochs.pin(slot);
        named.follow();
        named.read_once(slot);
    });
}

#[test]
fn the_slowest_of_two_readers_counts() {
    explore("two readers", || {
        let named = Arc::new(Named::default());
        let readers = [0, 1].map(|_| reading(&named, Named::read_once));
        let retired = named.unlink();
        named.reuse_if_free(retired);
        for reader in readers {
            reader.join().expect("it finds what it followed");
        }
    });
}

#[test]
fn a_reader_may_come_while_places_are_retired() {
    explore("a slot made meanwhile", || {
        let named = Arc::new(Named::default());
        let theirs = Arc::clone(&named);
        let reader = thread::spawn(move || theirs.read_once(&theirs.epochs.slot()));
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader.join().expect("it finds what it followed");
    });
}

#[test]
fn a_slot_dropped_while_pinned_holds_until_its_drop_and_no_longer() {
    explore("dropped while pinned", || {
        let named = Arc::new(Named::default());
        let (theirs, slot) = (Arc::clone(&named), named.epochs.slot());
        let reader = thread::spawn(move || {
            theirs.epochs.pin(&slot);
            theirs.follow();
            drop(slot);
        });
        let retired = named.unlink();
        named.reuse_if_free(retired);
        reader.join().expect("it finds what it followed");
        assert!(named.epochs.oldest() > retired, "its pin went with it");
    });
}

#[test]
fn whoever_reuses_need_not_be_who_retired() {
    explore("retired by one, reused by another", || {
        let named = Arc::new(Named::default());
        let retired = Arc::new(Mutex::new(None));
        let reader = reading(&named, Named::read_once);
        let (theirs, list) = (Arc::clone(&named), Arc::clone(&retired));
        let writer = thread::spawn(move || {
            let epoch = theirs.unlink();
            *list.lock().expect("no holder panics") = Some(epoch);
        });
        let found = *retired.lock().expect("no holder panics");
        if let Some(epoch) = found {
            named.reuse_if_free(epoch);
        }
        writer.join().expect("it only unlinks");
        reader.join().expect("it finds what it followed");
    });
}

/// The protocol of `Epochs` for one reader, written out, each ordering open to weakening.
struct Copied {
    current: AtomicU64,
    pinned: AtomicU64,
    name: AtomicUsize,
    places: [Place; 2],
    orders: Orders,
}

/// What the copy rests on.
#[derive(Clone, Copy)]
struct Orders {
    reader_fences: bool,
    reuser_fences: bool,
    pin: atomic::Ordering,
    unpin: atomic::Ordering,
    retire: atomic::Ordering,
    look: atomic::Ordering,
}

/// As `Epochs` has them, as far as loom can tell.
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

impl Copied {
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

/// The copy with `orders`: a reader that pins so many times, and who reuses.
fn copied(claim: &str, orders: Orders, pins: usize) {
    explore(claim, move || {
        let copied = Arc::new(Copied {
            current: AtomicU64::new(1),
            pinned: AtomicU64::new(u64::MAX),
            name: AtomicUsize::new(0),
            places: Default::default(),
            orders,
        });
        let theirs = Arc::clone(&copied);
        let reader = thread::spawn(move || (0..pins).for_each(|_| theirs.read_once()));
        copied.unlink_and_reuse();
        reader.join().expect("the reader finds what it followed");
    });
}

#[test]
fn control_the_copy_itself_holds() {
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
fn control_letting_go_relaxed_is_refuted() {
    let unpin = Relaxed;
    copied("unpin", Orders { unpin, ..SHIPPED }, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_pinning_again_relaxed_is_refuted() {
    let pin = Relaxed;
    copied("pin", Orders { pin, ..SHIPPED }, 2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_looking_at_pins_relaxed_is_refuted() {
    let look = Relaxed;
    copied("look", Orders { look, ..SHIPPED }, 1);
}

/// An element whose making loom watches.
#[derive(Default)]
struct Element {
    place: Place,
    value: AtomicU64,
}

#[test]
fn elements_below_a_published_length_are_there_and_filled() {
    explore("growth under a reader", || {
        let table = Arc::new(Table::<Element>::new(1));
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
fn an_element_found_without_a_length_is_whole() {
    explore("a look at what may not be there", || {
        let table = Arc::new(Table::<Element>::new(1));
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
fn two_who_grow_at_once_get_the_same_elements() {
    explore("two growers", || {
        let table = Arc::new(Table::<Element>::new(1));
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
            "nobody's element is replaced"
        );
        assert!(table.try_get(2).is_some() && table.try_get(4).is_none());
    });
}

/// How a chunk is published, written out.
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
            chunk.get().expect("it was made").place.read();
        }
        grower.join().expect("it grows");
    });
}

#[test]
fn control_a_chunk_published_in_order_holds() {
    chunk_published("control: a chunk", Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn control_a_chunk_published_relaxed_is_refuted() {
    chunk_published("relaxed", Relaxed);
}
