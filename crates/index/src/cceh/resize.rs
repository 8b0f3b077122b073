//! Splitting a segment, doubling the directory.

use farbank_pm::model::Category;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, Off, WORD, fault};

use super::Cceh;
use super::layout::{DEPTH_MAX, DIRECTORY, Directory, Header, SEGMENT};
use super::ops::Held;
use crate::ground::{OpenError, Worker};
use crate::index::Refused;

impl<M: Medium> Cceh<M> {
    /// The first directory, and a segment for each entry.
    pub(super) fn make_first(&self) -> Result<(), OpenError> {
        let mut worker = self.ground.worker()?;
        let depth = self.config.depth;
        let bytes = (WORD as u64) << depth;
        let at = self.ground.allocate_run(&mut worker, bytes)?;
        let directory = Directory { at, depth };
        let mut entries = Vec::with_capacity(bytes as usize);
        for prefix in 0..directory.entries() {
            let segment = self.ground.allocate(&mut worker, SEGMENT)?;
            let image = self.image(Header { depth, prefix }, &[]);
            let medium = self.ground.medium();
            medium.copy_in(&mut worker.lane, segment, &[&image]);
            entries.extend_from_slice(&segment.0.to_le_bytes());
        }
        let medium = self.ground.medium();
        medium.copy_in(&mut worker.lane, at, &[&entries]);
        worker.commit(medium)?;
        let word = directory.word();
        Ok(self.ground.set_root(&mut worker, DIRECTORY, word)?)
    }

    /// The bytes of a segment that has these slots: their places in it, keys and values.
    fn image(&self, header: Header, slots: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut image = vec![0; self.config.segment_bytes() as usize];
        let mut put = |at: u64, word: u64| {
            image[at as usize..][..WORD].copy_from_slice(&word.to_le_bytes());
        };
        put(0, header.word());
        for (at, key, value) in slots {
            put(*at, *key);
            put(at + WORD as u64, *value);
        }
        image
    }

    /// Splits a segment that has no slot for a key. Nothing is changed on an error.
    pub(super) fn split(&self, worker: &mut Worker, held: &Held<'_>) -> Result<(), Refused> {
        let _for = Category::Resize.spend();
        let Held {
            segment, header, ..
        } = *held;
        if header.depth >= DEPTH_MAX {
            return Err(Refused::Full {
                bytes: (WORD as u64) << DEPTH_MAX,
            });
        }
        let young = self.ground.allocate(worker, SEGMENT)?;
        let mut moved = Vec::new();
        let half = header.half(1);
        self.each_live(segment, |slot, key, value| {
            if half.owns(crate::hash::hash(key)) {
                moved.push((slot.0 - segment.0, key, value));
            }
        });
        let medium = self.ground.medium();
        medium.copy_in(&mut worker.lane, young, &[&self.image(half, &moved)]);
        worker.commit(medium)?; // I3
        self.locks.is_new(young);
        if fault!("cceh.depth_first") {
            self.set_header(worker, segment, header.half(0))?;
        }
        let _growing = self.growing.lock().expect("no holder panics");
        let directory = self.directory();
        if header.depth == directory.depth {
            if let Err(refused) = self.double(worker, directory, header.prefix, young) {
                self.ground.free(worker, young)?;
                return Err(refused);
            }
        } else {
            self.name(worker, directory, half, young)?;
        }
        self.set_header(worker, segment, header.half(0)) // I6
    }

    /// Has every entry of a segment name it.
    pub(super) fn name(
        &self,
        worker: &mut Worker,
        directory: Directory,
        header: Header,
        segment: Off,
    ) -> Result<(), Refused> {
        let medium = self.ground.medium();
        let (first, count) = directory.range(header);
        for n in first..first + count {
            medium.store(&mut worker.lane, directory.entry(n), segment.0);
        }
        let bytes = count as usize * WORD;
        medium.flush(&mut worker.lane, directory.entry(first), bytes);
        worker.commit(medium)
    }

    pub(super) fn set_header(
        &self,
        worker: &mut Worker,
        segment: Off,
        header: Header,
    ) -> Result<(), Refused> {
        let medium = self.ground.medium();
        medium.store(&mut worker.lane, segment, header.word());
        medium.flush(&mut worker.lane, segment, WORD);
        worker.commit(medium)
    }

    /// Replaces the directory by one twice as large, in which the second entry for `prefix` names `young`.
    fn double(
        &self,
        worker: &mut Worker,
        old: Directory,
        prefix: u64,
        young: Off,
    ) -> Result<(), Refused> {
        let medium = self.ground.medium();
        let at = self.ground.allocate_run(worker, 2 * old.bytes())?;
        let mut entries = Vec::with_capacity(2 * old.bytes() as usize);
        for n in 0..old.entries() {
            let segment = medium.load(old.entry(n));
            let second = if n == prefix { young.0 } else { segment };
            entries.extend_from_slice(&segment.to_le_bytes());
            entries.extend_from_slice(&second.to_le_bytes());
        }
        medium.copy_in(&mut worker.lane, at, &[&entries]);
        worker.commit(medium)?; // I5
        self.ground.about_to_free(worker, old.at)?;
        let depth = old.depth + 1;
        let word = Directory { at, depth }.word();
        self.ground.set_root(worker, DIRECTORY, word)?;
        self.directory.store(word, Ordering::Release);
        // Whoever still reads it looks at the table's word again before it believes what it read.
        self.ground.free(worker, old.at)
    }
}
