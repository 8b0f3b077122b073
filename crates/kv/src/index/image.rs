//! Serialisation of the index, for the snapshot written by a clean close.

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{LINE, Off};

use super::{GONE, HOME_BITS, HashIndex, IndexGroup, OFFSET_BITS, at_of};

impl HashIndex {
    /// Returns the number of bytes that [`HashIndex::export`] appends.
    pub(crate) fn export_bytes(&self) -> usize {
        let runs = self.runs();
        let lines: usize = runs.iter().map(|run| run.lines).sum();
        8 + 2 * runs.len() + lines * LINE
    }

    /// Returns the run of each group.
    fn runs(&self) -> Vec<IndexGroup> {
        let groups = self.groups.load(Ordering::Acquire) as usize;
        let words = (0..groups).map(|number| self.directory.get(number).load(Ordering::Acquire));
        words.map(IndexGroup::from_word).collect()
    }

    /// Appends the index as bytes: the number of groups, their lengths in lines, and their rows.
    /// [`HashIndex::import`] reads them.
    pub(crate) fn export(&self, out: &mut Vec<u8>) {
        let runs = self.runs();
        out.extend_from_slice(&(runs.len() as u64).to_le_bytes());
        for run in &runs {
            out.extend_from_slice(&(run.lines as u16).to_le_bytes());
        }
        for line in runs.iter().flat_map(|run| run.first..run.first + run.lines) {
            for slot in &self.rows.get(line).0 {
                out.extend_from_slice(&slot.load(Ordering::Relaxed).to_le_bytes());
            }
        }
    }

    /// Reads an exported index. Returns `None` if the bytes are malformed, or if `is_place` rejects an entry's
    /// offset.
    pub(crate) fn import(bytes: &[u8], is_place: impl Fn(Off) -> bool) -> Option<HashIndex> {
        let (groups, bytes) = bytes.split_first_chunk::<8>()?;
        let groups = usize::try_from(u64::from_le_bytes(*groups))
            .ok()
            .filter(|n| *n > 0)?;
        let (lengths, rows) = bytes.split_at_checked(groups.checked_mul(2)?)?;
        let lengths: Vec<usize> = lengths
            .chunks_exact(2)
            .map(|l| u16::from_le_bytes([l[0], l[1]]).into())
            .collect();
        let lines: usize = lengths.iter().sum();
        if rows.len() != lines * LINE {
            return None;
        }
        let level = groups.ilog2();
        let index = HashIndex::new(level);
        index.directory.reserve(groups);
        index.rows.reserve(lines);
        for (line, row) in rows.chunks_exact(LINE).enumerate() {
            let slots = &index.rows.get(line).0;
            for (slot, word) in slots.iter().zip(row.chunks_exact(8)) {
                let word = crate::format::record::u64_at(word, 0);
                if word > GONE {
                    let is_sound = word >> OFFSET_BITS >= 1 << HOME_BITS && is_place(at_of(word));
                    is_sound.then_some(())?; // KV-INDEX-5
                }
                slot.store(word, Ordering::Relaxed);
            }
        }
        let mut first = 0;
        for (number, lines) in lengths.into_iter().enumerate() {
            // Groups before the one to be split next, and their siblings, are one level deeper.
            let deeper = number + (1 << level) < groups || number >= 1 << level;
            let depth = level + u32::from(deeper);
            let word = IndexGroup {
                first,
                lines,
                depth,
            }
            .word();
            index.directory.get(number).store(word, Ordering::Release);
            first += lines;
        }
        unpoisoned(index.space.lock()).used = lines;
        index.lines.store(lines as u64, Ordering::Relaxed);
        index.groups.store(groups as u64, Ordering::Release);
        Some(index)
    }
}
