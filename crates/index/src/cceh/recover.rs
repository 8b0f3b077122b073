//! After a crash; and the whole table looked through.

use std::collections::BTreeSet;

use farbank_pm::{Medium, Off};

use super::Cceh;
use super::layout::{DIRECTORY, Directory, Header, SEGMENT};
use crate::ground::{Block, OpenError, Worker};
use crate::hash::hash;
use crate::outlier::Outlier;

impl<M: Medium> Cceh<M> {
    /// Ends splits that were cut short, then frees what no entry names. Reads a few words a lane.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        let directory = self.directory();
        let word = self.ground.medium().load(self.ground.root(DIRECTORY));
        let end = directory.at.0.checked_add(directory.bytes());
        if directory.at.is_null() || end.is_none_or(|end| end > self.ground.medium().len()) {
            return Err(OpenError::Damaged {
                what: format!("the root names {word:#x} as its directory"),
            });
        }
        let mut worker = self.ground.worker()?;
        for lane in 0..self.ground.lanes() {
            for block in self.ground.in_doubt(lane)? {
                if block.class == Some(SEGMENT) {
                    self.end_split(&mut worker, directory, block.at)?;
                }
            }
        }
        self.ground.recover(|block| self.is_live(directory, block))
    }

    /// The header of what may be a segment, if it has one that fits the directory.
    fn plausible(&self, directory: Directory, segment: Off) -> Option<Header> {
        let header = self.header(segment);
        let fits = header.depth <= directory.depth && header.prefix >> header.depth == 0;
        fits.then_some(header)
    }

    /// If `young` was being made an entry's segment by a split, goes on with that.
    fn end_split(
        &self,
        worker: &mut Worker,
        directory: Directory,
        young: Off,
    ) -> Result<(), OpenError> {
        let Some(header) = self.plausible(directory, young) else {
            return Ok(());
        };
        if header.prefix & 1 == 0 || !self.is_named(directory, header, young) {
            return Ok(());
        }
        let elder_half = Header {
            prefix: header.prefix - 1,
            ..header
        };
        let (first, _) = directory.range(elder_half);
        let elder = Off(self.ground.medium().load(directory.entry(first)));
        // An elder that knows of the split has ended it, and either may have been split again since.
        if self.header(elder).depth + 1 == header.depth {
            self.name(worker, directory, header, young)?;
            self.set_header(worker, elder, elder_half)?;
        }
        Ok(())
    }

    /// Whether an entry of its range names the segment.
    fn is_named(&self, directory: Directory, header: Header, segment: Off) -> bool {
        let (first, count) = directory.range(header);
        (first..first + count).any(|n| self.ground.medium().load(directory.entry(n)) == segment.0)
    }

    fn is_live(&self, directory: Directory, block: Block) -> bool {
        match block.class {
            None => block.at == directory.at,
            Some(_) => self
                .plausible(directory, block.at)
                .is_some_and(|header| self.is_named(directory, header, block.at)),
        }
    }

    pub(super) fn check_all(&self) -> Result<(), String> {
        let directory = self.directory();
        let mut segments = Vec::new();
        let mut n = 0;
        while n < directory.entries() {
            let segment = Off(self.ground.medium().load(directory.entry(n)));
            let header = self.header(segment);
            if self.plausible(directory, segment).is_none() || directory.range(header).0 != n {
                return Err(format!(
                    "entry {n} names {segment:?}, which says {header:?}"
                ));
            }
            let (first, count) = directory.range(header);
            for n in first..first + count {
                let named = self.ground.medium().load(directory.entry(n));
                if named != segment.0 {
                    return Err(format!("entry {n} names {:?}, not {segment:?}", Off(named)));
                }
            }
            self.check_segment(segment)?;
            segments.push(segment);
            n += count;
        }
        Outlier::of(&self.ground).check()?;
        self.ground.check(|reach| {
            reach(directory.at);
            segments.into_iter().for_each(reach);
        })
    }

    fn check_segment(&self, segment: Off) -> Result<(), String> {
        let mut keys = BTreeSet::new();
        let mut wrong = None;
        self.each_live(segment, |slot, key, _| {
            if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !self.slots_of(segment, hash(key)).any(|s| s == slot) {
                wrong = Some(format!(
                    "key {key:#x} lies at {slot:?}, where it is not looked for"
                ));
            }
        });
        wrong.map_or(Ok(()), Err)
    }
}
