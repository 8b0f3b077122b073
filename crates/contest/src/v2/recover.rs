//! Recovery of `v2`, as published: reads every block of every segment and keeps each key's highest version.

use farbank_pm::{Medium, Off, PersistCtx, Poisoned};

use super::index::V2Place;
use super::record::{self, HEADER, V2Header};
use super::{START, V2Core};
use crate::block::{AllottedBlock, UNIT};
use crate::engine::OpenError;
use crate::limits::hash_of;

/// State of a recovery.
struct V2Walk {
    ctx: PersistCtx,
    /// Index nodes reserved for keys not seen before.
    nodes: std::ops::Range<u32>,
    /// Number of freed blocks of each size. They go to the threads' pools in turn.
    freed: Vec<usize>,
    record: Vec<u8>,
}

impl<M: Medium> V2Core<M> {
    /// Builds the index from all records below `next`.
    pub(super) fn recover(&self, ctx: &mut PersistCtx, next: u64) -> Result<(), OpenError> {
        let mut walk = V2Walk {
            ctx: std::mem::take(ctx),
            nodes: 0..0,
            freed: vec![0; self.space.classes()],
            record: Vec::new(),
        };
        let segment_bytes = self.space.layout().segment_bytes;
        for start in (START..next).step_by(segment_bytes as usize) {
            self.walk_segment(&mut walk, start, start + segment_bytes)?;
        }
        if self.tuning.persist_recovered {
            self.medium.flush(&mut walk.ctx, Off(0), 8);
            self.settle(&mut walk.ctx)?;
        }
        *ctx = walk.ctx;
        Ok(())
    }

    fn walk_segment(&self, walk: &mut V2Walk, start: u64, end: u64) -> Result<(), OpenError> {
        let mut at = start;
        while at + HEADER as u64 <= end {
            let mut bytes = [0; HEADER];
            self.medium.copy_out(Off(at), &mut bytes);
            let header = V2Header::decode(&bytes);
            let block = AllottedBlock {
                number: (at / UNIT as u64) as u32,
                bytes: usize::try_from(header.size).unwrap_or(0) * UNIT,
            };
            let fits = at + block.bytes as u64 <= end;
            if !self.space.is_block(block.bytes) || !fits {
                break; // the segment's end, or nothing this engine has written
            }
            at += block.bytes as u64;
            if header.version <= 0 {
                self.recycle(walk, block); // a spare, or V2-DEFECT-2
            } else if self.read(walk, block, &header) {
                self.accept(walk, block, &header)?;
            } else {
                self.recycle(walk, block);
            }
        }
        Ok(())
    }

    /// Returns whether the block holds a whole record.
    fn read(&self, walk: &mut V2Walk, block: AllottedBlock, header: &V2Header) -> bool {
        let bytes = HEADER + usize::from(header.value_bytes);
        if bytes > block.bytes {
            return false;
        }
        walk.record.clear();
        self.medium
            .append_out(Off(block.at()), bytes, &mut walk.record);
        record::is_sound(&walk.record, self.tuning.checksum)
    }

    /// Enters a record into the index, unless the index holds a higher version of its key (V2-INV-4).
    fn accept(
        &self,
        walk: &mut V2Walk,
        block: AllottedBlock,
        header: &V2Header,
    ) -> Result<(), OpenError> {
        let hash = hash_of(&header.key);
        let place = V2Place {
            number: block.number,
            version: header.version as u8,
            size: header.size as u8,
            value_bytes: header.value_bytes,
        };
        if let Some(node) = self.index.find(hash, &header.key).0 {
            let known = self.index.place(node);
            if header.version < known.version as i8 {
                self.recycle(walk, block);
                return Ok(());
            }
            self.index.set_place(node, place);
            if self.tuning.keep_recovered_pools {
                let known = AllottedBlock {
                    number: known.number,
                    bytes: known.block_bytes(),
                };
                self.recycle(walk, known);
            }
        } else {
            let node = self.index.allot(&mut walk.nodes).map_err(|_| {
                OpenError::Unfit(
                    "far memory holds more keys than the limits allow; use its own limits".into(),
                )
            })?;
            self.index.insert(node, hash, &header.key, place);
        }
        if self.tuning.persist_recovered {
            let bytes = HEADER + usize::from(header.value_bytes);
            self.medium.flush(&mut walk.ctx, Off(block.at()), bytes);
        }
        Ok(())
    }

    /// Frees a block. In the published engine it goes to a pool that is emptied when recovery ends (V2-DEFECT-4). The published
    /// code also computes the pool's slot from a size in the wrong unit, so it writes before the beginning of an array.
    fn recycle(&self, walk: &mut V2Walk, block: AllottedBlock) {
        if !self.tuning.keep_recovered_pools {
            return;
        }
        let nth = &mut walk.freed[self.space.class(block.bytes)];
        self.space.free(*nth % self.space.layout().threads, block);
        *nth += 1;
    }

    fn settle(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let ticket = self.medium.drain(ctx);
        self.medium.wait_until_durable(ticket)
    }
}
