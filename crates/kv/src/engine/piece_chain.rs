//! Chains of segments that hold one long text of bytes: the index snapshot, and checkpoints of the index.
//!
//! ```text
//!   superblock ──▶ segment ──────▶ segment ──────▶ ...          head of a piece: next segment plus 1, its generation,
//!                  ┌──────┬──────┐ ┌──────┬──────┐               length, crc
//!                  │ head │ piece│ │ head │ piece│
//!                  └──────┴──────┘ └──────┴──────┘
//! ```
//!
//! A piece is written when the segment of the next one is known. So the text can be longer than the memory that holds
//! it, and the writer can wait for a free segment.

use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, PersistCtx};

use crate::engine::{Engine, NoRoom};
use crate::format::record::u64_at;
use crate::format::segment::{FIRST, SegmentPurpose, SegmentState};

/// Bytes of the header of each piece.
const PIECE_HEAD: usize = 32;

/// Bytes of a chain that one segment holds.
pub(crate) fn piece_bytes<M: Medium>(engine: &Engine<M>) -> usize {
    engine.geometry().payload() - PIECE_HEAD
}

/// A chain that is being written.
#[derive(Debug, Default)]
pub(crate) struct ChainWriter {
    /// The segments taken so far. All but the last are written.
    segments: Vec<u32>,
    /// Segments for the next pieces.
    reserved: Vec<u32>,
    /// Bytes that are not written.
    unwritten: Vec<u8>,
}

impl ChainWriter {
    /// Adds segments for the next pieces, each of which [`reserve`] has returned, or which is initialised and in state
    /// [`SegmentState::Piece`].
    pub(crate) fn add_reserved(&mut self, segments: Vec<u32>) {
        self.reserved.extend(segments);
    }

    /// Returns the buffer to which the bytes of the chain are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.unwritten
    }

    /// Returns the number of segments that the chain has taken or reserved.
    pub(crate) fn segment_count(&self) -> usize {
        self.segments.len() + self.reserved.len()
    }

    /// Returns the segments of the chain, and the reserved segments that it has not used.
    pub(crate) fn into_segments(self) -> (Vec<u32>, Vec<u32>) {
        (self.segments, self.reserved)
    }

    /// Writes the pieces that are full. Leaves at least `keep` segments free.
    ///
    /// # Errors
    /// [`NoRoom`] if too few segments are free now. The call can be repeated.
    pub(crate) fn write_full<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        ctx: &mut PersistCtx,
        keep: u32,
    ) -> Result<(), NoRoom> {
        if self.segments.is_empty() {
            let first = self.take(engine, keep)?;
            self.segments.push(first);
        }
        let mut from = 0;
        let written = loop {
            if self.unwritten.len() - from <= piece_bytes(engine) {
                break Ok(());
            }
            match self.take(engine, keep) {
                Ok(next) => {
                    from += self.write_piece(engine, ctx, from, Some(next));
                    self.segments.push(next);
                }
                Err(no_room) => break Err(no_room),
            }
        };
        self.unwritten.drain(..from); // Once for all pieces: what follows them may be long.
        written
    }

    /// Writes the rest of the chain. Returns its first segment and that segment's generation. The caller drains.
    ///
    /// # Errors
    /// [`NoRoom`] if too few segments are free now. The call can be repeated.
    pub(crate) fn finish<M: Medium>(
        &mut self,
        engine: &Engine<M>,
        ctx: &mut PersistCtx,
        keep: u32,
    ) -> Result<(u32, u64), NoRoom> {
        self.write_full(engine, ctx, keep)?;
        self.write_piece(engine, ctx, 0, None);
        let first = self.segments[0];
        Ok((first, engine.info(first).generation.load(Relaxed)))
    }

    /// Takes the segment of the next piece.
    fn take<M: Medium>(&mut self, engine: &Engine<M>, keep: u32) -> Result<u32, NoRoom> {
        let reserved = self.reserved.pop();
        reserved.or_else(|| reserve(engine, keep)).ok_or(NoRoom)
    }

    /// Writes the piece of the unwritten bytes that begins at `from` into the last segment. `next` is the segment of the
    /// piece after it. Returns the number of bytes written.
    fn write_piece<M: Medium>(
        &self,
        engine: &Engine<M>,
        ctx: &mut PersistCtx,
        from: usize,
        next: Option<u32>,
    ) -> usize {
        let &segment = self.segments.last().expect("the first segment was taken");
        let part = &self.unwritten[from..];
        let part = &part[..part.len().min(piece_bytes(engine))];
        let next_generation = next.map_or(0, |s| engine.info(s).generation.load(Relaxed));
        let mut head = Vec::with_capacity(PIECE_HEAD);
        head.extend_from_slice(&next.map_or(0, |s| u64::from(s) + 1).to_le_bytes());
        head.extend_from_slice(&next_generation.to_le_bytes());
        head.extend_from_slice(&(part.len() as u64).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), part);
        head.extend_from_slice(&u64::from(crc).to_le_bytes());
        let place = engine.geometry().place(segment);
        let generation = engine.info(segment).generation.load(Relaxed);
        let open_epoch = engine.segments.open_epoch();
        let medium = engine.medium();
        place.open(
            medium,
            ctx,
            generation,
            open_epoch,
            SegmentPurpose::Snapshot,
        );
        medium.copy_in(ctx, place.at.plus(FIRST as u64), &[&head, part]);
        part.len()
    }
}

/// Takes a free segment for a piece if more than `keep` would remain free.
pub(crate) fn reserve<M: Medium>(engine: &Engine<M>, keep: u32) -> Option<u32> {
    let segment = engine.take_segment(keep)?;
    engine.info(segment).set_state(SegmentState::Piece);
    Some(segment)
}

/// A chain that was read.
#[derive(Debug)]
pub(crate) struct ReadChain {
    pub(crate) bytes: Vec<u8>,
    pub(crate) segments: Vec<u32>,
}

/// Reads and joins the pieces of the chain that begins at segment `first - 1`. `None` if a checksum or a generation is
/// wrong.
pub(crate) fn read<M: Medium>(
    engine: &Engine<M>,
    first: u64,
    generation: u64,
) -> Option<ReadChain> {
    let mut chain = ReadChain {
        bytes: Vec::new(),
        segments: Vec::new(),
    };
    let (mut next, mut generation) = (first, generation);
    while next != 0 {
        let segment = u32::try_from(next - 1)
            .ok()
            .filter(|s| *s < engine.segments.count())?;
        if engine.info(segment).generation.load(Relaxed) != generation
            || chain.segments.len() >= engine.segments.count() as usize
        {
            return None;
        }
        chain.segments.push(segment);
        let at = engine.geometry().base(segment).plus(FIRST as u64);
        let mut head = [0; PIECE_HEAD];
        engine.medium().copy_out(at, &mut head);
        let len = usize::try_from(u64_at(&head, 16)).ok()?;
        if len > piece_bytes(engine) {
            return None;
        }
        let start = chain.bytes.len();
        let from = at.plus(PIECE_HEAD as u64);
        engine.medium().append_out(from, len, &mut chain.bytes);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..24]), &chain.bytes[start..]);
        if u64::from(crc) != u64_at(&head, 24) {
            return None;
        }
        (next, generation) = (u64_at(&head, 0), u64_at(&head, 8));
    }
    Some(chain)
}
