//! After a crash; and the directory looked through.

use farbank_pm::{Medium, Off};

use super::{DIRECTORY, Directory, Extendible, Header, SEGMENT, name, set_header};
use crate::ground::{Block, Ground, OpenError, Worker};

impl Extendible {
    /// Ends splits that were cut short, then frees what no entry names. Reads a few words a lane.
    pub(crate) fn recover<M: Medium>(&self, ground: &Ground<M>) -> Result<(), OpenError> {
        let directory = self.directory();
        let word = ground.medium().load(ground.root(DIRECTORY));
        let end = directory.at.0.checked_add(directory.bytes());
        if directory.at.is_null() || end.is_none_or(|end| end > ground.medium().len()) {
            return Err(OpenError::Damaged {
                what: format!("the root names {word:#x} as its directory"),
            });
        }
        let mut worker = ground.worker()?;
        for lane in 0..ground.lanes() {
            for block in ground.in_doubt(lane)? {
                if block.class == Some(SEGMENT) {
                    end_split(ground, &mut worker, directory, block.at)?;
                }
            }
        }
        ground.recover(|block| is_live(ground.medium(), directory, block))
    }

    /// Whether the directory is sound, `check` finds each segment sound, and the allocator's blocks are just these.
    pub(crate) fn check<M: Medium>(
        &self,
        ground: &Ground<M>,
        mut check: impl FnMut(Off) -> Result<(), String>,
    ) -> Result<(), String> {
        let (directory, medium) = (self.directory(), ground.medium());
        let mut segments = Vec::new();
        let mut n = 0;
        while n < directory.entries() {
            let segment = Off(medium.load(directory.entry(n)));
            let header = Header::at(medium, segment);
            if plausible(medium, directory, segment).is_none() || directory.range(header).0 != n {
                return Err(format!(
                    "entry {n} names {segment:?}, which says {header:?}"
                ));
            }
            let (first, count) = directory.range(header);
            for n in first..first + count {
                let named = medium.load(directory.entry(n));
                if named != segment.0 {
                    return Err(format!("entry {n} names {:?}, not {segment:?}", Off(named)));
                }
            }
            check(segment)?;
            segments.push(segment);
            n += count;
        }
        ground.check(|reach| {
            reach(directory.at);
            segments.into_iter().for_each(reach);
        })
    }
}

/// The header of what may be a segment, if it has one that fits the directory.
fn plausible<M: Medium>(medium: &M, directory: Directory, segment: Off) -> Option<Header> {
    let header = Header::at(medium, segment);
    let fits = header.depth <= directory.depth && header.prefix >> header.depth == 0;
    fits.then_some(header)
}

/// If `young` was being made an entry's segment by a split, goes on with that.
fn end_split<M: Medium>(
    ground: &Ground<M>,
    worker: &mut Worker,
    directory: Directory,
    young: Off,
) -> Result<(), OpenError> {
    let medium = ground.medium();
    let Some(header) = plausible(medium, directory, young) else {
        return Ok(());
    };
    if header.prefix & 1 == 0 || !is_named(medium, directory, header, young) {
        return Ok(());
    }
    let elder_half = Header {
        prefix: header.prefix - 1,
        ..header
    };
    let (first, _) = directory.range(elder_half);
    let elder = Off(medium.load(directory.entry(first)));
    // An elder that knows of the split has ended it, and either may have been split again since.
    if Header::at(medium, elder).depth + 1 == header.depth {
        name(ground, worker, directory, header, young)?;
        set_header(ground, worker, elder, elder_half)?;
    }
    Ok(())
}

/// Whether an entry of its range names the segment.
fn is_named<M: Medium>(medium: &M, directory: Directory, header: Header, segment: Off) -> bool {
    let (first, count) = directory.range(header);
    (first..first + count).any(|n| medium.load(directory.entry(n)) == segment.0)
}

fn is_live<M: Medium>(medium: &M, directory: Directory, block: Block) -> bool {
    match block.class {
        None => block.at == directory.at,
        Some(_) => plausible(medium, directory, block.at)
            .is_some_and(|header| is_named(medium, directory, header, block.at)),
    }
}
