//! Batches of verbs and their results.
//!
//! ```text
//!   Batch    count u16 │ each: tag u8, address u64, then  1 read: len u32      2 write: len u32, bytes
//!                                                         3 compare-and-swap: old, new, mask    4 add: by
//!   Results  for each verb in order: the bytes of a read, nothing for a write, the word found by an atomic
//! ```

use super::{BodyReader, FRAME_BYTES_MAX, FrameKind, HEAD_BYTES, WireError, put_frame};
use crate::addr::GAddr;
use crate::fabric::Verb;

/// Maximum number of verbs in a batch.
pub(crate) const VERBS_MAX: usize = 4096;
const READ: u8 = 1;
const WRITE: u8 = 2;
const CAS: u8 = 3;
const ADD: u8 = 4;
/// Bytes of a verb's tag and address.
const VERB_HEAD_BYTES: usize = 9;

/// A verb in a received batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VerbRef<'a> {
    Read {
        at: GAddr,
        len: usize,
    },
    Write {
        at: GAddr,
        bytes: &'a [u8],
    },
    Cas {
        at: GAddr,
        old: u64,
        new: u64,
        mask: u64,
    },
    Add {
        at: GAddr,
        by: u64,
    },
}

impl VerbRef<'_> {
    /// Returns the bytes of the verb's result.
    fn result_bytes(&self) -> usize {
        match self {
            VerbRef::Read { len, .. } => *len,
            VerbRef::Write { .. } => 0,
            VerbRef::Cas { .. } | VerbRef::Add { .. } => 8,
        }
    }
}

/// Returns the bytes of the frame that carries `verbs`, and of the frame that carries their results.
fn frame_bytes(verbs: &[Verb]) -> (usize, usize) {
    let mut bytes = (HEAD_BYTES + 2, HEAD_BYTES);
    for verb in verbs {
        let (there, back) = match verb {
            Verb::Read { bytes, .. } => (4, bytes.len()),
            Verb::Write { bytes, .. } => (4 + bytes.len(), 0),
            Verb::Cas { .. } => (24, 8),
            Verb::Add { .. } => (8, 8),
        };
        bytes = (bytes.0 + VERB_HEAD_BYTES + there, bytes.1 + back);
    }
    bytes
}

/// Returns whether `verbs` can be a batch: neither they nor their results exceed a frame.
pub(crate) fn is_batch(verbs: &[Verb]) -> bool {
    let (there, back) = frame_bytes(verbs);
    !verbs.is_empty() && verbs.len() <= VERBS_MAX && there.max(back) <= FRAME_BYTES_MAX
}

/// Appends a batch to `out`. Returns whether it was appended: it is not if it or its results exceed a frame.
pub(crate) fn encode_batch(id: u64, verbs: &[Verb], out: &mut Vec<u8>) -> bool {
    if !is_batch(verbs) {
        return false;
    }
    put_frame(out, FrameKind::Batch, id, |out| {
        out.extend((verbs.len() as u16).to_le_bytes());
        for verb in verbs {
            encode_verb(verb, out);
        }
    });
    true
}

fn encode_verb(verb: &Verb, out: &mut Vec<u8>) {
    let mut head = |tag: u8, at: &GAddr| {
        out.push(tag);
        out.extend(at.0.to_le_bytes());
    };
    match verb {
        Verb::Read { at, bytes } => {
            head(READ, at);
            out.extend((bytes.len() as u32).to_le_bytes());
        }
        Verb::Write { at, bytes } => {
            head(WRITE, at);
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        Verb::Cas {
            at, old, new, mask, ..
        } => {
            head(CAS, at);
            for word in [old, new, mask] {
                out.extend(word.to_le_bytes());
            }
        }
        Verb::Add { at, by, .. } => {
            head(ADD, at);
            out.extend(by.to_le_bytes());
        }
    }
}

/// The verbs of a received batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchReader<'a> {
    fields: BodyReader<'a>,
    left: u16,
}

impl<'a> BatchReader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Result<BatchReader<'a>, WireError> {
        let mut fields = BodyReader::new(body);
        let left = fields.u16()?;
        match usize::from(left) {
            1..=VERBS_MAX => Ok(BatchReader { fields, left }),
            _ => Err(WireError::Field {
                name: "count",
                found: left.into(),
            }),
        }
    }

    /// Decodes the next verb. Returns `None` at the end of the batch.
    pub(crate) fn next(&mut self) -> Result<Option<VerbRef<'a>>, WireError> {
        if self.left == 0 {
            self.fields.end()?;
            return Ok(None);
        }
        self.left -= 1;
        let tag = self.fields.u8()?;
        let at = GAddr(self.fields.u64()?);
        Ok(Some(match tag {
            READ => VerbRef::Read {
                at,
                len: self.fields.u32()? as usize,
            },
            WRITE => {
                let len = self.fields.u32()? as usize;
                let bytes = self.fields.bytes(len)?;
                VerbRef::Write { at, bytes }
            }
            CAS => VerbRef::Cas {
                at,
                old: self.fields.u64()?,
                new: self.fields.u64()?,
                mask: self.fields.u64()?,
            },
            ADD => VerbRef::Add {
                at,
                by: self.fields.u64()?,
            },
            _ => {
                return Err(WireError::Field {
                    name: "verb",
                    found: tag.into(),
                });
            }
        }))
    }
}

/// Returns the bytes of the frame with the results of `batch`.
pub(crate) fn response_bytes(mut batch: BatchReader<'_>) -> Result<usize, WireError> {
    let mut bytes = HEAD_BYTES;
    while let Some(verb) = batch.next()? {
        bytes += verb.result_bytes();
        if bytes > FRAME_BYTES_MAX {
            return Err(WireError::TooLong { bytes });
        }
    }
    Ok(bytes)
}

/// Decodes the results of `verbs` into them.
pub(crate) fn decode_results(body: &[u8], verbs: &mut [Verb]) -> Result<(), WireError> {
    let mut fields = BodyReader::new(body);
    for verb in verbs {
        match verb {
            Verb::Read { bytes, .. } => {
                let read = fields.bytes(bytes.len())?;
                bytes.copy_from_slice(read);
            }
            Verb::Write { .. } => {}
            Verb::Cas { found, .. } | Verb::Add { found, .. } => *found = fields.u64()?,
        }
    }
    fields.end()
}
