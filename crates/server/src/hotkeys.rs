//! Which keys are asked for most: `INFO hotkeys` and `stats hotkeys`.
//!
//! Every so many keys a worker looks at, it counts one, in a short list of its own (Metwally, Agrawal and El
//! Abbadi, *Space-Saving*, ICDT '05): a key that is on it gains one; another takes the place of the one with the
//! least and starts from there, so that no key that is asked for often is missed, and none is counted short. What a
//! key started from is known, and not told as its own. From time to time everything is halved: what was hot
//! long ago is forgotten. A report adds the lists of all workers.
//!
//! ```text
//!   keys ──every 61st──▶ worker's list of 128 ─┐
//!   keys ──every 61st──▶ worker's list of 128 ─┴─▶ report: the most frequent, as shares
//! ```

use std::fmt::Write;
use std::sync::Mutex;

use crate::shared::lock;
use farbank_kv::store::Key;

/// Keys of which one is counted; a prime, so that no pipeline keeps its pace.
const STRIDE: usize = 61;
/// Keys a worker counts at a time.
const KEYS: usize = 128;
/// Keys counted after which all counts are halved.
const WINDOW: u64 = 1 << 16;
/// Bytes of a key that are kept.
const KEY_BYTES: usize = 256;
/// Keys of a report.
pub(crate) const REPORTED: usize = 10;

/// How many keys a worker has yet to pass over.
#[derive(Default)]
pub(crate) struct Sampler(usize);

impl Sampler {
    /// Passes over `keys`, and counts those whose turn it is.
    #[inline]
    pub(crate) fn pass(&mut self, keys: &[Key<'_>], hot: &HotKeys) {
        while let Some(key) = keys.get(self.0) {
            hot.count(*key);
            self.0 += STRIDE;
        }
        self.0 -= keys.len();
    }
}

/// A worker's list.
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
    /// What it started from: others' counts.
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

/// A key of a report.
pub(crate) struct HotKey {
    pub(crate) db: u8,
    /// What is not plain text is spelled `%41`.
    pub(crate) key: String,
    /// Its part of all keys asked for, at least, in percent.
    pub(crate) share: f64,
}

/// The keys most asked for, of all workers.
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
            key: spelled(&entry.key),
            share: own(entry) as f64 * 100.0 / counted.max(1) as f64,
        })
        .collect()
}

fn spelled(key: &[u8]) -> String {
    let mut text = String::new();
    for &byte in key {
        if byte.is_ascii_graphic() && !b"%,=".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let written = write!(text, "%{byte:02x}");
            debug_assert!(written.is_ok(), "a string takes all");
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

    /// Asks for keys in windows, 90 % for one percent of them.
    fn skewed(lists: &[HotKeys]) {
        let mut seed = 0x5eed_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for list in lists {
            let mut stride = Sampler::default();
            for _ in 0..40_000 {
                let names: Vec<String> = (0..16)
                    .map(|_| match draw(10) {
                        0 => format!("cold{}", draw(990)),
                        _ => format!("hot{}", draw(10)),
                    })
                    .collect();
                let keys: Vec<_> = names.iter().map(|name| key(name.as_bytes())).collect();
                stride.pass(&keys, list);
            }
        }
    }

    #[test]
    fn of_keys_of_which_one_percent_is_asked_for_nine_times_in_ten_exactly_those_are_told() {
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
    fn what_is_no_longer_asked_for_is_forgotten() {
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
    fn keys_are_spelled_on_one_line() {
        assert_eq!(spelled(b"a b,c=\r\n\xff%"), "a%20b%2cc%3d%0d%0a%ff%25");
    }
}
