//! The most requested keys, for `INFO hotkeys` and `stats hotkeys`.
//!
//! Each worker samples one key in [`STRIDE`] and counts it in a short list of its own (Metwally, Agrawal and El Abbadi,
//! *Space-Saving*, ICDT '05). A key on the list gains one. Any other key replaces the key with the lowest count and
//! starts from that count. So no frequent key is missed, and no count is too low. The list also records the count a key
//! started from; a report subtracts it. All counts are halved periodically, so that keys that were hot long ago
//! disappear. A report adds the lists of all workers.
//!
//! ```text
//!   keys ──every 61st──▶ worker's list of 128 ─┐
//!   keys ──every 61st──▶ worker's list of 128 ─┴─▶ report: the most frequent, as shares
//! ```

use std::fmt::Write;
use std::sync::Mutex;

use crate::lock::lock;
use farbank_store::Key;

/// One key in so many is sampled. A prime, so that sampling does not align with a pipeline's length.
const STRIDE: usize = 61;
/// Most keys in a worker's list.
const KEYS: usize = 128;
/// Samples after which all counts are halved.
const WINDOW: u64 = 1 << 16;
/// Most bytes of a key that are kept; longer keys are truncated.
const KEY_BYTES: usize = 256;
/// Most keys in a report.
pub(crate) const REPORTED: usize = 10;

/// Selects the keys to sample; holds the number of keys to skip before the next sample.
#[derive(Default)]
pub(crate) struct Sampler(usize);

impl Sampler {
    /// Samples `keys`, and counts the selected ones in `hot`.
    #[inline]
    pub(crate) fn sample(&mut self, keys: &[Key<'_>], hot: &HotKeys) {
        while let Some(key) = keys.get(self.0) {
            hot.count(*key);
            self.0 += STRIDE;
        }
        self.0 -= keys.len();
    }
}

/// A worker's list of frequent keys.
#[derive(Default)]
pub(crate) struct HotKeys(Mutex<HotKeyList>);

#[derive(Default)]
struct HotKeyList {
    entries: Vec<HotKeyEntry>,
    counted: u64,
}

#[derive(Clone)]
struct HotKeyEntry {
    db: u8,
    key: Vec<u8>,
    count: u64,
    /// Part of `count` that was taken over from the replaced entry.
    inherited: u64,
}

impl HotKeyEntry {
    fn is(&self, key: Key<'_>) -> bool {
        self.db == key.db && self.key == key.bytes
    }
}

impl HotKeys {
    #[cold]
    fn count(&self, key: Key<'_>) {
        let bytes = &key.bytes[..key.bytes.len().min(KEY_BYTES)];
        lock(&self.0).count(Key { bytes, ..key });
    }
}

impl HotKeyList {
    fn count(&mut self, key: Key<'_>) {
        self.counted += 1;
        if self.counted >= WINDOW {
            self.halve();
        }
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.is(key)) {
            entry.count += 1;
            return;
        }
        let mut entry = HotKeyEntry {
            db: key.db,
            key: key.bytes.to_vec(),
            count: 1,
            inherited: 0,
        };
        if self.entries.len() < KEYS {
            return self.entries.push(entry);
        }
        if let Some(least) = self.entries.iter_mut().min_by_key(|entry| entry.count) {
            entry.inherited = least.count;
            entry.count += least.count;
            *least = entry;
        }
    }

    fn halve(&mut self) {
        self.counted /= 2;
        for entry in &mut self.entries {
            entry.count /= 2;
            entry.inherited /= 2;
        }
        self.entries.retain(|entry| entry.count > 0);
    }
}

/// A key in a report.
pub(crate) struct HotKey {
    pub(crate) db: u8,
    /// The key; bytes that are not printable ASCII, and `%`, `,` and `=`, are escaped as `%41`.
    pub(crate) key: String,
    /// Lower bound of its share of all requested keys, in percent.
    pub(crate) share: f64,
}

/// Returns the most requested keys over all lists, most frequent first.
pub(crate) fn report<'a>(lists: impl Iterator<Item = &'a HotKeys>) -> Vec<HotKey> {
    let (mut all, mut counted): (Vec<HotKeyEntry>, u64) = (Vec::new(), 0);
    for list in lists {
        let list = lock(&list.0);
        counted += list.counted;
        for entry in &list.entries {
            let known = all
                .iter_mut()
                .find(|other| (other.db, &other.key) == (entry.db, &entry.key));
            match known {
                Some(other) => {
                    other.count += entry.count;
                    other.inherited += entry.inherited;
                }
                None => all.push(entry.clone()),
            }
        }
    }
    let own = |entry: &HotKeyEntry| entry.count - entry.inherited;
    all.sort_by(|a, b| own(b).cmp(&own(a)).then(a.key.cmp(&b.key)));
    all.truncate(REPORTED);
    all.iter()
        .map(|entry| HotKey {
            db: entry.db,
            key: escape(&entry.key),
            share: own(entry) as f64 * 100.0 / counted.max(1) as f64,
        })
        .collect()
}

fn escape(key: &[u8]) -> String {
    let mut text = String::new();
    for &byte in key {
        if byte.is_ascii_graphic() && !b"%,=".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let written = write!(text, "%{byte:02x}");
            debug_assert!(written.is_ok(), "writing to a String cannot fail");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> Key<'_> {
        Key { db: 0, bytes }
    }

    /// Samples keys in windows of 16. 90 % of the requests are for 1 % of the keys.
    fn skewed(lists: &[HotKeys]) {
        let mut seed = 0x5eed_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for list in lists {
            let mut sampler = Sampler::default();
            for _ in 0..40_000 {
                let names: Vec<String> = (0..16)
                    .map(|_| match draw(10) {
                        0 => format!("cold{}", draw(990)),
                        _ => format!("hot{}", draw(10)),
                    })
                    .collect();
                let keys: Vec<_> = names.iter().map(|name| key(name.as_bytes())).collect();
                sampler.sample(&keys, list);
            }
        }
    }

    #[test]
    fn the_one_percent_of_keys_that_get_ninety_percent_of_requests_are_exactly_the_report() {
        let lists = [HotKeys::default(), HotKeys::default()];
        skewed(&lists);
        let mut told: Vec<_> = report(lists.iter())
            .into_iter()
            .map(|hot| hot.key)
            .collect();
        told.sort();
        let hot: Vec<_> = (0..10).map(|at| format!("hot{at}")).collect();
        assert_eq!(told, hot);
        for hot in report(lists.iter()) {
            assert!(
                (7.0..11.0).contains(&hot.share),
                "{}: {}",
                hot.key,
                hot.share
            );
        }
    }

    #[test]
    fn a_key_that_is_no_longer_requested_leaves_the_report() {
        let hot = HotKeys::default();
        for _ in 0..1000 {
            hot.count(key(b"once"));
        }
        for _ in 0..12 * WINDOW {
            hot.count(key(b"now"));
        }
        let told: Vec<_> = report(std::iter::once(&hot))
            .into_iter()
            .map(|hot| hot.key)
            .collect();
        assert_eq!(told, ["now"]);
    }

    #[test]
    fn keys_are_escaped_to_one_line() {
        assert_eq!(escape(b"a b,c=\r\n\xff%"), "a%20b%2cc%3d%0d%0a%ff%25");
    }
}
