//! Serialisation of the index: whole, for the snapshot that a clean close writes, and group by group, for checkpoints
//! while it changes.

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
    /// [`RowsImport`] reads them.
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

    /// Sets the numbers of groups and of rows of an index that was read.
    fn set_sizes(&self, groups: usize, rows: usize) {
        unpoisoned(self.space.lock()).used = rows;
        self.lines.store(rows as u64, Ordering::Relaxed);
        self.taken.store(rows as u64, Ordering::Relaxed);
        self.groups.store(groups as u64, Ordering::Release);
    }

    /// Returns the number of groups.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.load(Ordering::Acquire) as usize
    }

    /// Appends the entries of group `number` that refer to a place for which `is_kept` holds: their number (4 bytes) and
    /// the entries. The caller is pinned. An entry that is in the group from before the call until after it is appended.
    pub(crate) fn export_group(
        &self,
        number: usize,
        is_kept: impl Fn(Off) -> bool,
        out: &mut Vec<u8>,
    ) {
        let word = self.directory.get(number).load(Ordering::Acquire);
        let begins = out.len();
        out.extend_from_slice(&[0; 4]);
        let mut count: u32 = 0;
        for entry in self.entries(IndexGroup::from_word(word)) {
            if is_kept(at_of(entry)) {
                out.extend_from_slice(&entry.to_le_bytes());
                count += 1;
            }
        }
        out[begins..begins + 4].copy_from_slice(&count.to_le_bytes());
    }
}

/// An index that is being read from the rows that [`HashIndex::export`] has appended. Threads read pieces of it in parallel.
pub(crate) struct RowsImport<'a> {
    index: HashIndex,
    /// Rows of each group.
    lengths: Vec<usize>,
    rows: &'a [u8],
}

impl<'a> RowsImport<'a> {
    /// Bytes of the rows in a piece.
    const PIECE: usize = 256 * LINE;
    /// Prefetch distance, in rows.
    const AHEAD: usize = 2;

    /// Starts to read an exported index. Returns `None` if `bytes` has another length than its groups.
    pub(crate) fn begin(bytes: &'a [u8]) -> Option<RowsImport<'a>> {
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
        let index = HashIndex::new(groups.ilog2());
        index.directory.reserve(groups);
        index.rows.reserve(lines);
        Some(RowsImport {
            index,
            lengths,
            rows,
        })
    }

    /// Returns the number of pieces.
    pub(crate) fn pieces(&self) -> usize {
        self.rows.len().div_ceil(RowsImport::PIECE)
    }

    /// Reads piece `number`. Calls `fetch` with each offset before `is_place`, a few rows ahead. Each piece is read once.
    /// Returns `None` if an entry is malformed, or if `is_place` rejects its offset.
    pub(crate) fn read(
        &self,
        number: usize,
        fetch: impl Fn(Off),
        is_place: impl Fn(Off) -> bool,
    ) -> Option<()> {
        let begins = number * RowsImport::PIECE;
        let ends = self.rows.len().min(begins + RowsImport::PIECE);
        let rows = self.rows[begins..ends].chunks_exact(LINE);
        let mut ahead = rows.clone();
        let mut fetch_row = || {
            let words = ahead.next().into_iter().flat_map(words_of);
            words
                .filter(|word| *word > GONE)
                .for_each(|word| fetch(at_of(word)));
        };
        (0..RowsImport::AHEAD).for_each(|_| fetch_row());
        for (line, row) in (begins / LINE..).zip(rows) {
            fetch_row();
            let slots = &self.index.rows.get(line).0;
            for (slot, word) in slots.iter().zip(words_of(row)) {
                if word > GONE {
                    let is_sound = word >> OFFSET_BITS >= 1 << HOME_BITS && is_place(at_of(word));
                    is_sound.then_some(())?; // KV-INDEX-5
                }
                slot.store(word, Ordering::Relaxed);
            }
        }
        Some(())
    }

    /// Returns the index, after all pieces were read.
    pub(crate) fn finish(self) -> HashIndex {
        let RowsImport { index, lengths, .. } = self;
        let groups = lengths.len();
        let mut first = 0;
        for (number, lines) in lengths.into_iter().enumerate() {
            let depth = depth_of(number, groups);
            let word = IndexGroup {
                first,
                lines,
                depth,
            }
            .word();
            index.directory.get(number).store(word, Ordering::Release);
            first += lines;
        }
        index.set_sizes(groups, first);
        index
    }
}

/// An index that is being read from groups that [`HashIndex::export_group`] has appended, while no group was split. Threads
/// read pieces of it in parallel.
pub(crate) struct GroupsImport<'a> {
    index: HashIndex,
    bytes: &'a [u8],
    pieces: Vec<ImportPiece>,
    /// Rows of all groups.
    rows: usize,
}

/// A few groups of an import.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImportPiece {
    /// Number of its first group, and that behind its last.
    first: usize,
    end: usize,
    /// Offset of its bytes.
    at: usize,
    /// Its first row.
    row: usize,
}

impl<'a> GroupsImport<'a> {
    /// Number of groups in a piece.
    const PIECE: usize = 1024;

    /// Starts to read `groups` groups. Returns the bytes behind them, too; `None` if `bytes` is too short.
    pub(crate) fn begin(bytes: &'a [u8], groups: usize) -> Option<(GroupsImport<'a>, &'a [u8])> {
        let index = HashIndex::new(groups.checked_ilog2()?);
        index.directory.reserve(groups);
        let (mut pieces, mut at, mut row) = (Vec::new(), 0, 0);
        for number in 0..groups {
            if number % GroupsImport::PIECE == 0 {
                let end = groups.min(number + GroupsImport::PIECE);
                pieces.push(ImportPiece {
                    first: number,
                    end,
                    at,
                    row,
                });
            }
            let entries = count_at(bytes, at)?;
            at = entries.checked_mul(8)?.checked_add(at + 4)?;
            row += index.lines_for(entries, depth_of(number, groups));
        }
        index.rows.reserve(row);
        let (bytes, rest) = bytes.split_at_checked(at)?;
        let import = GroupsImport {
            index,
            bytes,
            pieces,
            rows: row,
        };
        Some((import, rest))
    }

    pub(crate) fn pieces(&self) -> &[ImportPiece] {
        &self.pieces
    }

    /// Reads a piece. Leaves out the entries whose place `keeps` rejects. Calls `fetch` with the place of an entry before
    /// `keeps`, at least one group ahead. Each piece is read once. Returns `None` if an entry is malformed.
    pub(crate) fn read(
        &self,
        piece: ImportPiece,
        fetch: impl Fn(Off),
        mut keeps: impl FnMut(Off) -> bool,
    ) -> Option<()> {
        let ImportPiece {
            first,
            end,
            mut at,
            mut row,
        } = piece;
        let groups = self.pieces.last()?.end;
        let fetch_group = |at: usize| {
            let (entries, _) = self.group_at(at)?;
            entries.for_each(|entry| fetch(at_of(entry)));
            Some(())
        };
        fetch_group(at)?;
        for number in first..end {
            let (entries, next) = self.group_at(at)?;
            at = next;
            if number + 1 < end {
                fetch_group(at)?;
            }
            let count = entries.len();
            let depth = depth_of(number, groups);
            let lines = self.index.lines_for(count, depth);
            u16::try_from(lines).ok()?;
            let run = IndexGroup {
                first: row,
                lines,
                depth,
            };
            for entry in entries {
                let is_sound = entry >> OFFSET_BITS >= 1 << HOME_BITS; // KV-INDEX-5
                is_sound.then_some(())?;
                if keeps(at_of(entry)) {
                    self.index.probe_rows(run, entry >> OFFSET_BITS, |row| {
                        let slot = row.iter().find(|slot| slot.load(Ordering::Relaxed) == 0)?;
                        slot.store(entry, Ordering::Relaxed);
                        Some(())
                    });
                }
            }
            let word = self.index.directory.get(number);
            word.store(run.word(), Ordering::Release);
            row += lines;
        }
        Some(())
    }

    /// Returns the entries of the group whose bytes begin at `at`, and the end of the bytes.
    fn group_at(&self, at: usize) -> Option<(impl ExactSizeIterator<Item = u64>, usize)> {
        let count = count_at(self.bytes, at)?;
        let end = at + 4 + 8 * count;
        Some((words_of(&self.bytes[at + 4..end]), end))
    }

    /// Returns the index, after all pieces were read.
    pub(crate) fn finish(self) -> HashIndex {
        let GroupsImport {
            index,
            pieces,
            rows,
            ..
        } = self;
        let groups = pieces.last().map_or(1, |piece| piece.end);
        index.set_sizes(groups, rows);
        index
    }
}

fn words_of(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> {
    let words = bytes.chunks_exact(8);
    words.map(|word| crate::format::record::u64_at(word, 0))
}

/// Returns the number of entries of the group whose bytes begin at `at`.
fn count_at(bytes: &[u8], at: usize) -> Option<usize> {
    let count = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(crate::format::record::u32_at(count, 0)).ok()
}

/// Returns the depth of group `number` of `groups`: groups before the one to be split next, and their siblings, are one
/// level deeper.
fn depth_of(number: usize, groups: usize) -> u32 {
    let level = groups.ilog2();
    let is_deeper = number + (1 << level) < groups || number >= 1 << level;
    level + u32::from(is_deeper)
}
