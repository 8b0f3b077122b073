//! Recovery of the directory.

use farbank_pm::{Medium, Off, WORD, situation};

use super::layout::{DirectoryWord, SegmentHeader, plausible};
use super::resize::set_entries;
use super::{DEPTH_MAX, DIRECTORY, ExtendibleDirectory, SEGMENT};
use crate::error::OpenError;
use crate::pool_heap::{HeapBlock, TablePool, TableWorker};

impl ExtendibleDirectory {
    /// Completes interrupted splits, then frees segments and directories that nothing refers to. Reads a few words per
    /// context.
    pub(crate) fn recover<M: Medium>(&self, ground: &TablePool<M>) -> Result<(), OpenError> {
        let directory = self.directory();
        if !(1..=DEPTH_MAX).contains(&directory.depth()) {
            return Err(OpenError::Damaged {
                what: format!(
                    "the root's word {DIRECTORY} has a directory of depth {}, expected 1 to {DEPTH_MAX}",
                    directory.depth()
                ),
            });
        }
        let referrer = format!("the directory, in the root's word {DIRECTORY},");
        ground.check_run(&referrer, directory.at(), directory.bytes())?;
        let mut worker = ground.worker()?;
        for ctx in 0..ground.contexts() {
            for block in ground.in_doubt(ctx)? {
                if block.class == Some(SEGMENT) {
                    end_split(ground, &mut worker, directory, block.at)?;
                }
            }
        }
        ground.recover(&mut worker, |block| {
            Ok(is_live(ground.medium(), directory, block))
        })
    }
}

/// Completes the split that created `young`, if the split was interrupted.
fn end_split<M: Medium>(
    ground: &TablePool<M>,
    worker: &mut TableWorker,
    directory: DirectoryWord,
    young: Off,
) -> Result<(), OpenError> {
    let medium = ground.medium();
    let Some(header) = plausible(medium, directory, young) else {
        return Ok(());
    };
    if header.prefix & 1 == 0 || !is_named(medium, directory, header, young) {
        situation!("extendible.split_not_published");
        return Ok(());
    }
    let elder_half = SegmentHeader {
        prefix: header.prefix - 1,
        ..header
    };
    let (first, _) = directory.range(elder_half);
    let elder = Off(medium.load(directory.entry(first)));
    if !ground.is_block(elder, SEGMENT) {
        return Ok(()); // the first access reports the damage
    }
    // If the old segment's depth is already increased, the split is complete, and either segment may have been split
    // again since.
    let is_cut_short = SegmentHeader::at(medium, elder).depth + 1 == header.depth;
    situation!("extendible.split_had_ended", !is_cut_short);
    if is_cut_short {
        situation!("extendible.split_ended");
        set_entries(ground, worker, directory, header, young)?;
        medium.store(&mut worker.ctx, elder, elder_half.word());
    }
    // The depth may have been stored now or by a killed process. It must be durable, because the next split replaces
    // this one's intent.
    medium.flush(&mut worker.ctx, elder, WORD);
    Ok(())
}

/// Returns whether an entry of its range names the segment.
fn is_named<M: Medium>(
    medium: &M,
    directory: DirectoryWord,
    header: SegmentHeader,
    segment: Off,
) -> bool {
    let (first, count) = directory.range(header);
    (first..first + count).any(|n| medium.load(directory.entry(n)) == segment.0)
}

fn is_live<M: Medium>(medium: &M, directory: DirectoryWord, block: HeapBlock) -> bool {
    match block.class {
        None => block.at == directory.at(),
        Some(_) => plausible(medium, directory, block.at)
            .is_some_and(|header| is_named(medium, directory, header, block.at)),
    }
}
