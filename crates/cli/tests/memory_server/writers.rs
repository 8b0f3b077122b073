//! Clients that write while a memory server joins or leaves.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use farbank_tree::Cluster;

/// Keys that each writer puts after the change.
const AFTER: usize = 1_500;

fn key(writer: usize, number: usize) -> Vec<u8> {
    format!("{number:05} of writer {writer}").into_bytes()
}

/// Puts keys until `is_over`, then [`AFTER`] more. Writer 0 puts them one by one, others many in one operation. Returns the
/// number of keys.
fn write(cluster: &Cluster, writer: usize, written: &AtomicUsize, is_over: &AtomicBool) -> usize {
    let at_once = 1 + 250 * writer;
    let (mut number, mut last) = (0, usize::MAX);
    while number < last {
        if last == usize::MAX && is_over.load(Ordering::SeqCst) {
            last = number + AFTER;
        }
        if last == usize::MAX {
            thread::sleep(Duration::from_millis(2)); // The pools have room for a few seconds of these.
        }
        let keys = (number..number + at_once).map(|number| key(writer, number));
        let entries = keys.map(|key| (key, b"value".to_vec())).collect();
        cluster.put_all(entries).unwrap();
        number += at_once;
        written.fetch_add(at_once, Ordering::SeqCst);
    }
    number
}

/// Sets a flag when it is dropped, also by a panic, so that no writer goes on for ever.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs `change` while a writer on each of `clusters` puts keys, of which there are `before` when it begins. Returns its result, and the
/// number of keys of each writer.
pub(super) fn write_during<T>(
    clusters: [&Cluster; 3],
    before: usize,
    change: impl FnOnce() -> T,
) -> (T, Vec<usize>) {
    let (written, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let over = SetWhenDropped(&is_over);
        let writers: Vec<_> = clusters
            .into_iter()
            .enumerate()
            .map(|(writer, cluster)| {
                let (written, is_over) = (&written, &is_over);
                scope.spawn(move || write(cluster, writer, written, is_over))
            })
            .collect();
        while written.load(Ordering::SeqCst) < before {
            thread::sleep(Duration::from_millis(1));
        }
        let changed = change();
        drop(over);
        let counts = writers.into_iter().map(|writer| writer.join().unwrap());
        (changed, counts.collect())
    })
}

/// Reads a part of the keys of the writers, of which there are `counts`.
pub(super) fn assert_written(cluster: &Cluster, counts: &[usize]) {
    for (writer, count) in counts.iter().enumerate() {
        for number in (0..*count).step_by(7) {
            let found = cluster.get(&key(writer, number)).unwrap();
            let found = found.as_deref();
            assert_eq!(found, Some(&b"value"[..]), "{number} of {writer}");
        }
    }
}

/// Returns the number of keys of the tree.
pub(super) fn keys_of(cluster: &Cluster) -> usize {
    let all = cluster.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX);
    all.unwrap().len()
}
